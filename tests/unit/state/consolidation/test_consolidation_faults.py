"""A merge that fails, is killed or is no longer wanted leaves the state unchanged, and no files behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.identifiers import BatchId
from keyscale.state.consolidation import consolidator
from keyscale.state.consolidation.consolidation_directory import consolidations
from keyscale.state.consolidation.consolidator import ConsolidationUnwantedError, consolidate, start_consolidator
from keyscale.state.consolidation.take_over import TAKE_OVER_CHANGELOGS_MAX
from keyscale.state.errors import StateError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import ALWAYS, StateJob
from tests.support.state.two_shards import leftovers, two_shards
from tests.support.waiting import wait_until


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return two_shards(tmp_path)


def test_a_failed_try_of_a_task_leaves_nothing_in_the_result(job: StateJob) -> None:
    job.checkpoint()
    job.run_task(0, BatchId(job.batch_id + 1), {7: 1_000_000})  # never committed
    job.run_batch({7: 1})
    job.run_task(0, BatchId(job.batch_id + 1), {8: 1_000_000})
    assert job.consolidate()
    job.run_batch({9: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_a_rebuild_on_another_host_gives_the_merge_up(job: StateJob, tmp_path: Path) -> None:
    job.checkpoint()
    here, job.local_root = job.local_root, tmp_path / "elsewhere"
    job.run_batch({1: 1})
    job.local_root = here
    job.run_batch({2: 1})
    assert leftovers(job) == []
    assert job.shards() == [2]
    assert job.dump() == job.reference


def test_a_missing_changelog_gives_the_merge_up(job: StateJob) -> None:
    """The negative control of the chain of lineages: with a hole in it the result would lack a batch."""
    job.checkpoint()
    job.run_batch({1: 1})
    job.run_batch({2: 1})
    [log] = job.local_root.rglob("catch-up")
    next(path for path in sorted(log.iterdir()) if path.is_file()).unlink()
    assert job.consolidate()  # its version is still the snapshot's
    job.run_batch({3: 1})
    assert job.shards() == [2]
    assert job.dump() == job.reference
    assert leftovers(job) == []


def test_after_a_kill_in_a_batch_the_result_is_used_like_a_rebuild(job: StateJob) -> None:
    job.checkpoint()
    job.run_batch({1: 1})
    assert job.consolidate()
    for marker in job.local_root.rglob("CLEAN"):
        marker.unlink()
    assert job.dump() == job.reference
    assert job.shards() == [1]


def test_a_damaged_result_is_not_used(job: StateJob) -> None:
    job.checkpoint()
    assert job.consolidate()
    for file in leftovers(job)[0].glob("shard/MANIFEST-*"):
        file.write_bytes(b"damaged")
    job.run_batch({1: 1})
    assert job.shards() == [2]
    assert job.dump() == job.reference
    assert leftovers(job) == []


def test_a_merge_whose_snapshot_is_gone_is_given_up_and_not_tried_again_at_once(job: StateJob) -> None:
    job.policy = replace(ALWAYS, retry_seconds=600)
    job.checkpoint()
    shutil.rmtree(next(job.spec(0).local_directory(job.local_root).glob("snapshots/*")))
    with pytest.raises(StateError, match="No such file"):
        job.consolidate()
    assert leftovers(job) == []
    job.checkpoint()
    assert job.consolidation is None
    job.policy = ALWAYS
    job.checkpoint()
    assert job.consolidation is not None


def test_a_merge_that_is_no_longer_wanted_ends(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.checkpoint()
    directory = job.consolidation
    assert directory is not None
    monkeypatch.setattr(
        consolidator,
        "merge_shards",
        lambda *_, **__: shutil.rmtree(directory / "catch-up"),
    )
    with pytest.raises(ConsolidationUnwantedError):
        consolidate(directory)
    assert leftovers(job) == []


def test_only_one_process_works_on_a_merge(job: StateJob) -> None:
    job.checkpoint()
    [consolidation] = consolidations(job.spec(0).local_directory(job.local_root))
    assert consolidation.acquire()
    assert not job.consolidate()
    consolidation.release()
    assert job.consolidate()


def test_only_one_subtask_of_a_host_is_merged_at_a_time(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    job.start(4)
    job.run_batch(dict.fromkeys(range(100), 1))
    manifest, _ = job.checkpoint()
    job.start(2, manifest.path)
    for done in ([1, 2], [1, 1]):
        job.checkpoint()
        assert len(leftovers(job)) == 1
        assert job.consolidate()
        assert job.shards() == done
    assert job.dump() == job.reference


def test_consolidation_can_be_turned_off(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.spec(0)
    off = replace(spec, settings=replace(spec.settings, background_consolidation=False))
    monkeypatch.setattr(job, "spec", lambda _index: off)
    job.checkpoint()
    assert job.consolidation is None


def test_a_process_of_its_own_consolidates(job: StateJob) -> None:
    job.checkpoint()
    assert job.consolidation is not None
    start_consolidator(job.consolidation, os.getpid())
    ready = job.consolidation / "READY"
    wait_until(ready.exists, what="the merge in a process of its own")
    job.run_batch({1: 1})
    assert job.shards() == [1]
    assert job.dump() == job.reference


def test_a_process_is_started_only_while_there_is_work_that_no_other_process_does(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []

    def popen(command: list[str], **options: Any) -> SimpleNamespace:
        started.append((command, options))
        return SimpleNamespace(wait=lambda: 0)

    job.checkpoint()
    directory = job.consolidation
    assert directory is not None
    [consolidation] = consolidations(job.spec(0).local_directory(job.local_root))
    monkeypatch.setattr(consolidator, "subprocess", SimpleNamespace(Popen=popen, DEVNULL="nowhere"))
    assert consolidation.acquire()
    start_consolidator(directory, 7)
    assert started == []
    consolidation.release()
    start_consolidator(directory, 7)
    [(command, options)] = started
    assert command[1:] == ["-m", "keyscale.state.consolidation.consolidator", str(directory), "--watched=7"]
    assert (options["stdin"], options["stdout"], options["start_new_session"]) == ("nowhere", "nowhere", True)
    assert consolidation.acquire(), "the new process can take the lock"
    consolidation.release()
    assert job.consolidate()
    for entries, processes in ((TAKE_OVER_CHANGELOGS_MAX, 1), (TAKE_OVER_CHANGELOGS_MAX + 1, 2)):
        monkeypatch.setattr(consolidator.CatchUpLog, "entries", lambda _, count=entries: [None] * count)
        start_consolidator(directory, 7)
        assert len(started) == processes

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no process")

    monkeypatch.setattr(consolidator.subprocess, "Popen", refuse)
    start_consolidator(directory, 7)
    assert not consolidation.is_wanted


def test_the_consolidator_ends_with_the_process_that_it_watches(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.checkpoint()
    directory = job.consolidation
    assert directory is not None
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    monkeypatch.setenv("KEYSCALE_FAILPOINT", "consolidate.linked")
    monkeypatch.setenv("KEYSCALE_FAILPOINT_DIRECTORY", str(barrier))
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start_consolidator(directory, watched.pid)
    wait_until(lambda: list(barrier.iterdir()), what="the consolidator to be at work")
    [held] = barrier.iterdir()
    watched.communicate(b"\n")
    wait_until(lambda: has_ended(int(held.suffix[1:])), what="the consolidator to end")
    assert job.dump() == job.reference
    assert leftovers(job) == []


def has_ended(process: int) -> bool:
    """Returns whether all threads have ended: the first may be a zombie while another one holds the locks."""
    directory = Path(f"/proc/{process}")
    try:
        status = (directory / "stat").read_text(encoding="ascii")
        threads = len(list((directory / "task").iterdir()))
    except FileNotFoundError:
        return True
    return threads <= 1 and status.rpartition(")")[2].split()[0] == "Z"

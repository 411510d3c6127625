"""The catch-up log and the start of a consolidation: what is kept, what is given up, and whose turn it is."""

from __future__ import annotations

import logging
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.consolidation import catch_up_log, consolidator, take_over
from keyscale.state.consolidation.catch_up_log import CatchUpEntry, CatchUpLog, begin_catch_up_log, find_catch_up_log
from keyscale.state.consolidation.consolidation_directory import (
    ConsolidationBase,
    ConsolidationDirectory,
    begin_consolidation,
)
from keyscale.state.consolidation.consolidator import ConsolidationUnwantedError
from keyscale.state.consolidation.policy import ConsolidationPolicy
from keyscale.state.documents.changelog import ChangelogCorruptError, SortedFile, write_changelog
from keyscale.state.documents.state_version import StateVersion
from keyscale.state.engine.engine import SortedRun
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.key_group_sizes import FileFacts
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.schema import KeyedSchema, TimersSchema
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.local.subtask_directory import CleanMarker, LocalShard, boot_id
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.snapshot.snapshot import LocalSnapshot

if TYPE_CHECKING:
    from pathlib import Path

OWN = KeyGroupRange(0, 7)
FILES = [[FileFacts(b"\0\0a", b"\0\7z", 9, 1_000)], [FileFacts(b"\0\0a", b"\0\7z", 9, 500)]]
A, B, C, D = (letter * 64 for letter in "abcd")


def snapshot(tmp_path: Path, **changes: Any) -> LocalSnapshot:
    facts: dict[str, Any] = {
        "directory": str(tmp_path / "snapshot"),
        "local_root": str(tmp_path),
        "job_id": JobId("job"),
        "operator_uid": OperatorUid("count"),
        "subtask": SubtaskIndex(0),
        "attempt": Attempt(1),
        "checkpoint_id": CheckpointId(1),
        "unique": "u",
        "version": StateVersion(BatchId(4), A),
        "key_groups": OWN,
        "shards": (KeyGroupRange(0, 3), KeyGroupRange(4, 7)),
        "schema": KeyedSchema((("id", "int64"),)),
        "ttls": {"count": Ttl(1000)},
        "settings": RocksDbSettings(bloom_bits=9),
    }
    return LocalSnapshot(**{**facts, **changes})


def begun(tmp_path: Path, **changes: Any) -> CatchUpLog:
    root = tmp_path / "subtask"
    root.mkdir(exist_ok=True)
    log = begin_catch_up_log(snapshot(tmp_path, **changes), root, FILES, ConsolidationPolicy(retry_seconds=0))
    assert log is not None
    return log


def add(log: CatchUpLog, store: LocalObjectStore, batch_id: int, before: str, after: str, **named: Any) -> None:
    path = f"job/changelog/count/{batch_id}-{after[0]}"
    handle = write_changelog(
        store,
        path,
        [SortedRun("count", [b"\0\1k"], [b"%d" % batch_id])],
        batch_id=BatchId(batch_id),
        subtask=SubtaskIndex(0),
        key_groups=OWN,
        copies=log,
        **named,
    )
    log.add(StateVersion(BatchId(batch_id - 1), before), StateVersion(BatchId(batch_id), after), handle)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store")


def test_a_consolidation_begins_with_all_facts_of_its_snapshot(tmp_path: Path) -> None:
    log = begun(tmp_path)
    assert log.consolidation.base() == ConsolidationBase(
        snapshot=str(tmp_path / "snapshot"),
        shards=(LocalShard("0", 0, 3), LocalShard("1", 4, 7)),
        batch_id=BatchId(4),
        lineage=A,
        key_group_start=0,
        key_group_end=7,
        boot_id=boot_id(),
        settings=RocksDbSettings(bloom_bits=9),
        schema=KeyedSchema((("id", "int64"),)),
        ttls={"count": Ttl(1000)},
    )
    assert log.consolidation.subtask_root == tmp_path / "subtask"
    found = find_catch_up_log(tmp_path / "subtask")
    assert found is not None
    assert found.consolidation.path == log.consolidation.path


@pytest.mark.parametrize("marks", [(), ("started",), ("READY",), ("started", "READY"), ("READY", "shard")])
def test_a_consolidations_marks_say_whether_it_died_or_was_moved(tmp_path: Path, marks: tuple[str, ...]) -> None:
    directory = begun(tmp_path).consolidation
    for mark in marks:
        (directory.path / mark).touch()
    assert (directory.is_ready, directory.has_died, directory.was_moved) == (
        "READY" in marks,
        marks == ("started",),
        "READY" in marks and "shard" not in marks,
    )


def test_the_changelogs_since_the_snapshot_are_kept_until_the_new_shard_has_them(
    tmp_path: Path, store: LocalObjectStore
) -> None:
    log = begun(tmp_path)
    add(log, store, 5, A, B)
    sorted_file = tmp_path / "file.sst"
    sorted_file.write_bytes(b"a sorted file")
    add(log, store, 6, B, C, files=[(SortedRun("large", [b"\0\1k"], [b"1"]), sorted_file)])
    (log.consolidation.catch_up_log / f"{CatchUpEntry(BatchId(7), C, D).name}.new").write_bytes(b"unfinished")
    entries = [CatchUpEntry(BatchId(5), A, B), CatchUpEntry(BatchId(6), B, C)]
    assert log.entries() == entries
    handles = log.handles(entries)
    objects = [path for handle in handles for path in handle.paths()]
    assert len(objects) == 3
    assert {info.path for info in log.objects.list("")} == {*objects}
    assert [log.objects.get(path) for path in objects] == [store.get(path) for path in objects]
    log.forget(entries[:1])
    assert log.entries() == entries[1:]
    assert {info.path for info in log.objects.list("")} == {*objects[1:]}
    (log.consolidation.catch_up_log / entries[1].name).write_bytes(b"damaged")
    with pytest.raises(ChangelogCorruptError):
        log.handles(entries[1:])
    log.give_up()
    assert (log.entries(), log.consolidation.is_wanted) == ([], False)
    assert find_catch_up_log(tmp_path / "subtask") is None


def test_a_log_of_a_batch_that_has_spilled_is_given_up(tmp_path: Path, store: LocalObjectStore) -> None:
    log = begun(tmp_path)
    add(log, store, 5, A, B)
    assert log.consolidation.is_wanted
    add(log, store, 6, B, C, spilled=[SortedFile("count", "job/changelog/count/6.0.sst", 1, "sha", 1)])
    assert not log.consolidation.is_wanted, "spilled files are in the object store alone"


def test_a_log_may_take_so_many_bytes_of_the_disk(
    tmp_path: Path, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = begun(tmp_path)
    add(log, store, 5, A, B)
    kept = sum(info.size_bytes for info in log.objects.list(""))
    monkeypatch.setattr(catch_up_log, "CATCH_UP_BYTES_MAX", 2 * kept)
    again = CatchUpLog(log.consolidation)  # as another process opens it
    add(again, store, 6, B, C)
    assert [entry.batch_id for entry in again.entries()] == [5, 6]
    add(again, store, 7, C, D)
    assert not log.consolidation.is_wanted
    assert "are no longer kept" in caplog.text
    add(again, store, 8, D, A)
    assert not log.consolidation.catch_up_log.exists(), "a log that was given up does not begin again"


def test_a_disk_that_fails_ends_the_log_and_not_the_batch(tmp_path: Path, store: LocalObjectStore) -> None:
    log = begun(tmp_path)
    (log.consolidation.catch_up_log / "objects").write_text("a file, so no directory")
    add(log, store, 5, A, B)
    assert not log.consolidation.is_wanted
    assert store.head("job/changelog/count/5-b") is not None


# Whose turn it is.


def test_a_host_has_one_consolidation_until_it_ends_or_waits_for_too_long(tmp_path: Path) -> None:
    def begins() -> ConsolidationDirectory | None:
        root = tmp_path / "other subtask"
        root.mkdir(exist_ok=True)
        return begin_consolidation(snapshot(tmp_path), root, FILES, ConsolidationPolicy(retry_seconds=0))

    first = begun(tmp_path).consolidation
    assert begins() is None
    old = time.time() - 601
    os.utime(first.path, (old, old))
    assert first.acquire()
    assert begins() is None, "a process works on it"
    first.release()
    second = begins()
    assert second is not None
    second.remove()
    assert begins() is not None


def test_a_consolidation_that_was_given_up_is_tried_again_after_its_delay(tmp_path: Path) -> None:
    def begins(retry_seconds: float) -> bool:
        root = tmp_path / "subtask"
        return (
            begin_consolidation(snapshot(tmp_path), root, FILES, ConsolidationPolicy(retry_seconds=retry_seconds))
            is not None
        )

    given_up = begun(tmp_path).consolidation
    given_up.give_up()
    given_up.remove()
    assert not begins(60)
    old = time.time() - 61
    os.utime(tmp_path / "subtask" / "consolidation" / "given-up", (old, old))
    assert begins(60)


def test_no_consolidation_begins_where_the_settings_or_the_disk_forbid_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "subtask").mkdir()

    def begins(**changes: Any) -> bool:
        made = begin_catch_up_log(snapshot(tmp_path, **changes), tmp_path / "subtask", FILES, ConsolidationPolicy())
        return made is not None

    assert not begins(settings=RocksDbSettings(background_consolidation=False))
    for free_bytes, can in ((1_499, False), (1_500, True)):  # twice the 750 bytes of the subtask's own key groups
        monkeypatch.setattr("shutil.disk_usage", lambda _, free_bytes=free_bytes: SimpleNamespace(free=free_bytes))
        assert begins() is can


# The process.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(consolidator, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None))
    return commands


def make_ready(directory: ConsolidationDirectory) -> None:
    directory.mark_ready(CleanMarker(BatchId(4), A, (LocalShard("shard", 0, 7),), boot_id()))


def test_a_process_is_started_unless_one_works_or_the_result_is_nearly_up_to_date(
    tmp_path: Path, store: LocalObjectStore, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(tmp_path)
    directory = log.consolidation
    assert directory.acquire()
    consolidator.start_consolidator(directory.path, 17)
    assert started == [], "another process works on it"
    directory.release()
    consolidator.start_consolidator(directory.path, 17, BatchClock(7, 5))
    (command,) = started
    assert command[1:] == [
        "-m",
        "keyscale.state.consolidation.consolidator",
        str(directory.path),
        "--watched=17",
        "--processing-time-ms=7",
        "--event-time-ms=5",
    ]
    make_ready(directory)
    monkeypatch.setattr(consolidator, "TAKE_OVER_CHANGELOGS_MAX", 1)
    add(log, store, 5, A, B)
    consolidator.start_consolidator(directory.path, 17)
    assert len(started) == 1, "a take-over applies one changelog itself"
    add(log, store, 6, B, C)
    consolidator.start_consolidator(directory.path, 17)
    assert len(started) == 2
    assert directory.acquire(), "the lock is the new process's"


def test_a_host_that_can_start_no_process_gives_the_consolidation_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def popen(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(consolidator, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None))
    directory = begun(tmp_path).consolidation
    consolidator.start_consolidator(directory.path, 17)
    assert not directory.is_wanted
    assert "no process can be started to merge shards" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (True, 0, "is ready after"),
        (False, 0, ""),
        (ConsolidationUnwantedError("too slow"), 1, "giving up /some/where: too slow"),
        (KeyscaleError("a defect"), 1, "giving up /some/where: a defect"),
        (OSError(28, "No space left on device"), 1, "giving up /some/where"),
    ],
)
def test_the_process_says_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcome: bool | Exception, code: int, words: str
) -> None:
    watched: list[int] = []
    niceness: list[int] = []

    def consolidate(*_: Any) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(consolidator, "consolidate", consolidate)
    monkeypatch.setattr(consolidator, "_end_with", watched.append)
    monkeypatch.setattr(os, "nice", niceness.append)
    with caplog.at_level(logging.INFO):
        assert consolidator.main(["/some/where", "--watched", "17"]) == code
    assert (watched, niceness) == ([17], [10])
    assert words in caplog.text
    assert bool(words) == bool(caplog.records)


@pytest.mark.parametrize(
    ("version", "changelogs_max", "can"), [(A, 0, True), (B, 1, True), (C, 2, True), (C, 1, False), (D, 9, False)]
)
def test_a_result_is_taken_over_if_few_changelogs_lead_to_the_version(
    tmp_path: Path,
    store: LocalObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    changelogs_max: int,
    *,
    can: bool,
) -> None:
    log = begun(tmp_path)
    add(log, store, 5, A, B)
    add(log, store, 6, B, C)
    monkeypatch.setattr(take_over, "TAKE_OVER_CHANGELOGS_MAX", changelogs_max)
    assert not take_over.can_take_over(StateVersion(BatchId(6), version), log.consolidation), "it is not ready"
    make_ready(log.consolidation)
    assert take_over.can_take_over(StateVersion(BatchId(6), version), log.consolidation) is can


# Catching up.


def version() -> consolidator._ShardVersion:
    return consolidator._ShardVersion(BatchId(4), A, KeyedSchema((("id", "int64"),)), {"count": Ttl(1000)})


def test_a_result_catches_up_with_the_batches_that_are_known_to_be_committed(
    tmp_path: Path, store: LocalObjectStore
) -> None:
    log, engine = begun(tmp_path), HeapEngine()
    more = KeyedSchema((("id", "int64"),)).with_timers(TimersSchema("t"))
    add(log, store, 5, A, B, schema=more)
    add(log, store, 6, B, "e" * 64)  # of a try that was lost
    add(log, store, 6, B, C)
    add(log, store, 7, C, D)
    caught_up = consolidator._catch_up(log.consolidation, OWN, engine, version())
    assert caught_up == consolidator._ShardVersion(BatchId(6), C, more, {"count": Ttl(1000)})
    assert list(engine.scan("count", b"", None)) == [(b"\0\1k", b"6")]
    assert [(entry.batch_id, entry.after) for entry in log.entries()] == [(6, "e" * 64), (7, D)]
    marker = caught_up.marker(log.consolidation.shard, OWN)
    assert marker == CleanMarker(BatchId(6), C, (LocalShard("shard", 0, 7),), boot_id(), more, {"count": Ttl(1000)})
    assert consolidator._catch_up(log.consolidation, OWN, engine, caught_up) == caught_up


def test_a_consolidation_that_batches_overtake_again_and_again_ends(
    tmp_path: Path, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rounds = begun(tmp_path), list[int]()
    for batch_id in (5, 6, 7):
        add(log, store, batch_id, "e" * 64, f"{batch_id}" * 64)
    monkeypatch.setattr(consolidator, "CATCH_UP_ROUNDS_MAX", 3)
    monkeypatch.setattr(consolidator, "_check_wanted", lambda _: rounds.append(1))
    with pytest.raises(ConsolidationUnwantedError, match="the batches are faster"):
        consolidator._catch_up(log.consolidation, OWN, HeapEngine(), version())
    assert len(rounds) == 3
    monkeypatch.setattr(consolidator, "LEFT_TO_TAKE_OVER_MAX", 3)
    assert consolidator._catch_up(log.consolidation, OWN, HeapEngine(), version()) == version()


def test_a_consolidation_whose_log_is_gone_ends_at_once(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.give_up()
    with pytest.raises(ConsolidationUnwantedError, match="no longer wanted"):
        consolidator._catch_up(log.consolidation, OWN, HeapEngine(), version())

"""A savepoint is there, is not there, or cannot be asked for: three answers, of which none stands for another."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.api import store_check
from keyscale.api.errors import PlanTimeoutError, RestoreSourceError, StoreUnavailableError
from keyscale.api.store_check import PublishedSavepoint, StoreCheck
from keyscale.identifiers import Attempt, BatchId
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import encode_manifest, read_manifest
from keyscale.state.documents.rewind import Rewind
from keyscale.state.layout import location_of
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.errors import StoreRefusedError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.faulty_store import FaultyStore
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    """A job with the savepoint `there`."""
    job = StateJob(FaultyStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    job.checkpoint("there")
    return job


def find(job: StateJob, savepoint_id: str) -> PublishedSavepoint | None:
    return StoreCheck(job.store.url).find_savepoint(job.store.url, job.job_id, savepoint_id)


def test_a_published_savepoint_is_found_with_its_location_and_number(job: StateJob) -> None:
    path = job.layout.manifest(1, "there")
    found, manifest = find(job, "there"), read_manifest(job.store, path)
    assert found is not None
    assert (found.location, found.checkpoint_id) == (location_of(job.store.url, path), 1)
    assert (found.batch_id, found.created_at_ms) == (manifest.batch_id, manifest.created_at_ms)
    assert found.state_size == sum(job.store.head(file.path).size_bytes for file in manifest.files()) > 0


def test_the_highest_attempt_is_that_of_the_log(job: StateJob) -> None:
    check = StoreCheck(job.store.url)
    before = job.attempt
    job.start(1)
    assert check.newest_attempt(job.store.url, job.job_id) == job.attempt > before
    assert check.newest_attempt(job.store.url, "unknown") == 0


def test_the_counters_are_those_of_the_last_commit_in_the_log(job: StateJob) -> None:
    check = StoreCheck(job.store.url)
    assert check.counters(job.store.url, "unknown", limit_ms=60_000) == JobCounters()
    log = CommitLog(job.store, job.layout)
    last = log.last()
    assert last is not None
    counters = JobCounters(7, 5, 3, 1)
    log.append(last[0] + 1, BatchCommitted(job.attempt, BatchId(9), {}, {}, 1, counters=counters))
    log.append(last[0] + 2, BatchPlanned(job.attempt, BatchId(10), {}))
    assert check.counters(job.store.url, job.job_id, limit_ms=60_000) == counters


def test_counters_that_are_not_read_in_time_are_unknown(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(CommitLog, "newest_counters", lambda _: answers.wait(60))
    with pytest.raises(PlanTimeoutError):
        StoreCheck(job.store.url).counters(job.store.url, job.job_id, limit_ms=1)
    answers.set()


def test_a_savepoint_without_a_readable_manifest_is_missing(job: StateJob) -> None:
    assert find(job, "never taken") is None
    path = job.layout.manifest(1, "there")
    job.store.put(path, job.store.get(path)[:-7])
    assert find(job, "there") is None


def test_a_manifest_that_is_too_large_to_be_read_is_no_savepoint(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that writes it could otherwise fill the memory of the control plane."""
    size_bytes = len(job.store.get(job.layout.manifest(1, "there")))
    monkeypatch.setattr("keyscale.api.store_check.READ_BYTES_MAX", size_bytes)
    assert find(job, "there") is not None
    monkeypatch.setattr("keyscale.api.store_check.READ_BYTES_MAX", size_bytes - 1)
    assert find(job, "there") is None
    assert not confirms(job, attempt=1)
    with pytest.raises(RestoreSourceError):
        StoreCheck(job.store.url).read_snapshot(job.store.url, job.layout.manifest(1, "there"), limit_ms=60_000)


def test_a_log_entry_that_is_too_large_to_be_read_confirms_nothing(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(info.size_bytes for info in job.store.list(f"{job.layout.savepoints}there/manifest"))
    monkeypatch.setattr("keyscale.api.store_check.READ_BYTES_MAX", largest)
    assert confirms(job, attempt=1)
    position = read_manifest(job.store, job.layout.manifest(1, "there")).log_position
    job.store.put(job.layout.log_entry(position), b" " * (largest + 1))
    assert not confirms(job, attempt=1)


def test_a_snapshot_that_the_job_went_back_behind_lacks_output(job: StateJob) -> None:
    check, path = StoreCheck(job.store.url), job.layout.manifest(1, "there")
    location = location_of(job.store.url, path)

    def answers() -> tuple[bool, bool]:
        found = check.read_snapshot(job.store.url, path, limit_ms=60_000)
        return found.keeps_output, check.keeps_output(job.store.url, location, limit_ms=60_000)

    assert answers() == (True, True)
    log = CommitLog(job.store, job.layout)
    last = log.last()
    assert last is not None
    back = msgspec.structs.replace(log.openings([1])[1], attempt=Attempt(job.attempt + 1), rewinds=True)
    back = msgspec.structs.replace(back, restored_from="earlier", output_history=(Rewind(back.attempt, BatchId(-1)),))
    log.append(last[0] + 1, back)
    assert answers() == (False, False)
    missing = location_of(job.store.url, job.layout.manifest(1, "missing"))
    for unreadable in (missing, "no location"):
        assert check.keeps_output(job.store.url, unreadable, limit_ms=60_000), "its restore says what is wrong"


@pytest.mark.parametrize("savepoint_id", ["there", "never taken"])
def test_a_store_that_does_not_answer_says_nothing_about_a_savepoint(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, savepoint_id: str
) -> None:
    assert isinstance(job.store, FaultyStore)
    job.store.away = True
    monkeypatch.setattr("keyscale.api.store_check.open_to_read", lambda _url: job.store)
    with pytest.raises(StoreUnavailableError):
        find(job, savepoint_id)


def test_a_store_that_refuses_its_credentials_says_nothing_about_a_savepoint(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_store: LocalObjectStore, _path: str) -> bytes:
        raise StoreRefusedError("the token has expired")

    monkeypatch.setattr(LocalObjectStore, "get", refused)
    with pytest.raises(StoreUnavailableError, match="the token has expired"):
        find(job, "there")


def test_a_store_that_may_not_be_read_says_nothing_about_a_savepoint(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_url: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("keyscale.api.store_check.open_to_read", denied)
    with pytest.raises(StoreUnavailableError, match="Permission denied"):
        find(job, "there")


def confirms(job: StateJob, *, attempt: int, checkpoint_id: int = 1, savepoint_id: str | None = "there") -> bool:
    return StoreCheck(job.store.url).confirms_checkpoint(
        job.store.url, job.job_id, attempt=attempt, checkpoint_id=checkpoint_id, savepoint_id=savepoint_id
    )


def test_the_store_confirms_a_checkpoint_of_the_attempt_that_took_it_alone(job: StateJob) -> None:
    assert confirms(job, attempt=1)
    assert not confirms(job, attempt=2)
    assert not confirms(job, attempt=1, checkpoint_id=2)
    assert not confirms(job, attempt=1, savepoint_id=None)


def test_the_store_does_not_confirm_a_checkpoint_of_what_another_attempt_has_committed(job: StateJob) -> None:
    path = job.layout.manifest(1, "there")
    mine = read_manifest(job.store, path)
    job.start(1)
    job.run_batch({1: 2})
    position = CommitLog(job.store, job.layout).last()
    assert position is not None
    job.store.put(path, encode_manifest(msgspec.structs.replace(mine, log_position=position[0])))
    assert not confirms(job, attempt=1)


def test_the_health_of_a_store_is_looked_at_again_after_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks, told = {"s": 100.0}, list[str](), list[tuple[float, bool]]()
    is_away = True

    def probe(_store: LocalObjectStore) -> None:
        clock["s"] += 0.5
        if is_away:
            raise PermissionError(13, "Permission denied")

    def opened(url: str) -> LocalObjectStore:
        looks.append(url)
        return LocalObjectStore(tmp_path / "store")

    monkeypatch.setattr(store_check, "time", SimpleNamespace(monotonic=lambda: clock["s"]))
    monkeypatch.setattr(store_check, "open_to_read", opened)
    monkeypatch.setattr(store_check, "probe", probe)
    check = StoreCheck("file:///own", lambda *checked: told.append(checked))
    assert [check.problem(), check.problem()] == ["PermissionError: Permission denied"] * 2
    clock["s"] += 10.0
    assert check.problem() is not None
    assert (looks, told) == (["file:///own"], [(0.5, True)])
    clock["s"] += 0.1
    is_away = False
    assert [check.problem(), check.problem()] == [None, None]
    assert (looks, told) == (["file:///own"] * 2, [(0.5, True), (0.5, False)])
    check.require_usable("file:///of-a-job")
    assert (looks[2:], len(told)) == (["file:///of-a-job"], 2), "the store of a job is not the configured one"


def test_a_commit_after_a_snapshot_is_of_an_attempt_after_the_named_one(job: StateJob) -> None:
    check, path = StoreCheck(job.store.url), job.layout.manifest(1, "there")
    location = location_of(job.store.url, path)

    def committed_at_ms(attempt: int) -> int | None:
        return check.first_commit_after(job.store.url, job.job_id, location, attempt=attempt)

    assert committed_at_ms(job.attempt) is None
    first = job.attempt
    job.start(1)
    job.run_batch({1: 1})
    assert committed_at_ms(first) is not None
    assert committed_at_ms(job.attempt) is None


def test_while_a_store_hangs_only_one_caller_waits_for_its_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, asked = threading.Event(), threading.Event()

    def hang(_url: str) -> LocalObjectStore:
        asked.set()
        assert hangs.wait(60)
        return LocalObjectStore(tmp_path / "store")

    monkeypatch.setattr("keyscale.api.store_check.open_to_read", hang)
    check = StoreCheck("file:///store")
    waiting = threading.Thread(target=check.problem)
    waiting.start()
    assert asked.wait(60)
    assert check.problem() is None
    assert waiting.is_alive()
    hangs.set()
    waiting.join()

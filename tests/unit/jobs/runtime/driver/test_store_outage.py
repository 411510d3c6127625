"""Operations on an object store are retried within a limit; nothing is written twice, and the status says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.runtime import retries
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver import store_watch
from keyscale.jobs.runtime.driver.journal import Journal
from keyscale.jobs.runtime.driver.store_watch import StoreWatch
from keyscale.jobs.runtime.retries import Retries, RetryingStore
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.errors import ObjectNotFoundError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.faulty_store import Fault, FaultyStore
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout(JobId("job"))
ENTRY = BatchPlanned(Attempt(1), BatchId(0), {})
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path / "store")


def returning(store: FaultyStore, after_tries: int) -> Retries:
    """Retries during which the store starts to answer again; no time passes."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        store.away = len(pauses) < after_tries

    return Retries(HOUR_MS, sleep=sleep)


def test_a_commit_waits_for_the_store_and_is_written_once(store: FaultyStore) -> None:
    store.away = True
    journal = Journal(CommitLog(store, LAYOUT), 1, returning(store, 3))
    journal.append(ENTRY)
    assert journal.last_position == 1
    assert CommitLog(store, LAYOUT).read() == [(1, ENTRY)]
    assert store.fired > 3, "the store was away"


def test_a_commit_whose_answers_are_lost_is_written_once(store: FaultyStore) -> None:
    store.faults.extend([Fault.ANSWER_LOST] * 6)  # more than the log tries by itself
    journal = Journal(CommitLog(store, LAYOUT), 1, returning(store, 9))
    journal.append(ENTRY)
    assert CommitLog(store, LAYOUT).read() == [(1, ENTRY)]


def test_without_retries_the_first_failure_is_final(store: FaultyStore) -> None:
    store.away = True
    with pytest.raises(StoreUnavailableError):
        Journal(CommitLog(store, LAYOUT), 1).append(ENTRY)


def test_retries_end_at_the_limit_and_their_pauses_grow(store: FaultyStore) -> None:
    store.away = True
    pauses: list[float] = []
    with pytest.raises(StoreUnavailableError):
        RetryingStore(store, Retries(20_000, sleep=pauses.append)).put("a", b"")
    assert sum(pauses) <= 20
    assert sum(pauses) > 19
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert max(pauses) == 5


def test_the_time_of_tries_that_hang_counts_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, ends_s = [0.0], []

    def pass_time(seconds: float) -> None:
        now_s[0] += seconds

    def hang() -> None:
        pass_time(30)
        ends_s.append(now_s[0])
        message = "no answer"
        raise StoreUnavailableError(message)

    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with pytest.raises(StoreUnavailableError):
        Retries(60_000, sleep=pass_time).run(hang)
    assert len(ends_s) == 3, "the first failure, and two more tries of 30 seconds"


def test_nothing_is_retried_in_a_run_that_has_ended(store: FaultyStore) -> None:
    store.away = True
    pauses: list[float] = []
    with pytest.raises(StoreUnavailableError):
        RetryingStore(store, Retries(HOUR_MS, lambda: len(pauses) >= 2, pauses.append)).get("a")
    assert len(pauses) == 2


def test_a_missing_object_or_a_refusal_is_not_retried(store: FaultyStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        RetryingStore(store, Retries(HOUR_MS)).get("a")


def test_a_retrying_store_returns_what_the_store_returns(store: FaultyStore, tmp_path: Path) -> None:
    retrying = RetryingStore(store, Retries(0))
    retrying.put("a/b", b"1")
    retrying.copy("a/b", "a/c")
    retrying.create("a/d", b"3")
    retrying.download("a/c", tmp_path / "file")
    retrying.upload(tmp_path / "file", "a/e")
    retrying.delete(iter(["a/b"]))
    assert [info.path for info in retrying.list("a/")] == ["a/c", "a/d", "a/e"]
    assert (retrying.get("a/e"), retrying.head("a/b"), retrying.url) == (b"1", None, store.url)
    limited = LocalObjectStore(tmp_path, get_bytes_max=5)
    assert (retrying.get_bytes_max, RetryingStore(limited, Retries(0)).get_bytes_max) == (None, 5)


class Silent(LocalObjectStore):
    """A store that answers or not."""

    away = True

    def head(self, path: str) -> None:  # type: ignore[override]  # noqa: ARG002 - it returns nothing
        if self.away:
            message = "no answer"
            raise StoreUnavailableError(message)


def test_the_status_says_since_when_the_store_does_not_answer_until_it_does(tmp_path: Path) -> None:
    status, store = DriverStatus(), Silent(tmp_path / "store")
    watch = StoreWatch(store, "log", status)
    watch.poll()
    since = status.heartbeat().metrics.store_away_since_ms
    assert since is not None
    watch.poll()
    assert status.heartbeat().metrics.store_away_since_ms == since, "it has been away all the while"
    store.away = False
    watch.poll()
    assert status.heartbeat().metrics.store_away_since_ms is None


def test_the_store_is_asked_again_and_again_until_the_watch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_POLL_SECONDS", 0.0)
    status, store = DriverStatus(), Silent(tmp_path / "store")
    watch = StoreWatch(store, "log", status)
    watch.start()
    wait_until(lambda: status.heartbeat().metrics.store_away_since_ms is not None)
    store.away = False
    wait_until(lambda: status.heartbeat().metrics.store_away_since_ms is None)
    watch.end()
    watch._thread.join(60)
    assert not watch._thread.is_alive()

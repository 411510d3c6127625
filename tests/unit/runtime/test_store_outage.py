"""An object store that is away is waited for, within a limit; nothing is written twice, and the status says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.runtime.attempt import Journal
from jobs.runtime.patience import Patience, PatientStore
from jobs.runtime.status import DriverStatus
from jobs.runtime.store_watch import StoreWatch
from state.identifiers import Attempt, BatchId, JobId
from state.layout import Layout
from state.log import BatchPlanned, CommitLog
from state.objects import LocalObjectStore, ObjectNotFoundError, StoreUnavailableError
from tests.support.faulty_store import Fault, FaultyStore

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout(JobId("job"))
ENTRY = BatchPlanned(Attempt(1), BatchId(0), {})
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path / "store")


def returning(store: FaultyStore, after_tries: int) -> Patience:
    """Patience during which the store comes back; no time passes."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        store.away = len(pauses) < after_tries

    return Patience(HOUR_MS, sleep=sleep)


def test_a_commit_waits_for_the_store_and_is_made_once(store: FaultyStore) -> None:
    store.away = True
    journal = Journal(CommitLog(store, LAYOUT), 1, returning(store, 3))
    journal.append(ENTRY)
    assert journal.last_position == 1
    assert CommitLog(store, LAYOUT).read() == [(1, ENTRY)]
    assert store.fired > 3, "the store was away"


def test_a_commit_whose_answers_are_lost_is_made_once(store: FaultyStore) -> None:
    store.faults.extend([Fault.ANSWER_LOST] * 6)  # more than the log's own tries
    journal = Journal(CommitLog(store, LAYOUT), 1, returning(store, 9))
    journal.append(ENTRY)
    assert CommitLog(store, LAYOUT).read() == [(1, ENTRY)]


def test_without_patience_the_first_failure_is_final(store: FaultyStore) -> None:
    store.away = True
    with pytest.raises(StoreUnavailableError):
        Journal(CommitLog(store, LAYOUT), 1).append(ENTRY)


def test_a_store_that_stays_away_is_waited_for_as_long_as_allowed_in_ever_longer_pauses(store: FaultyStore) -> None:
    store.away = True
    pauses: list[float] = []
    with pytest.raises(StoreUnavailableError):
        PatientStore(store, Patience(20_000, sleep=pauses.append)).put("a", b"")
    assert sum(pauses) <= 20
    assert sum(pauses) > 19
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert max(pauses) == 5


def test_nobody_waits_for_the_store_in_a_run_that_has_ended(store: FaultyStore) -> None:
    store.away = True
    pauses: list[float] = []
    with pytest.raises(StoreUnavailableError):
        PatientStore(store, Patience(HOUR_MS, lambda: len(pauses) >= 2, pauses.append)).get("a")
    assert len(pauses) == 2


def test_what_is_not_there_or_refused_is_not_waited_for(store: FaultyStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        PatientStore(store, Patience(HOUR_MS)).get("a")


def test_a_patient_store_gives_what_the_store_gives(store: FaultyStore, tmp_path: Path) -> None:
    patient = PatientStore(store, Patience(0))
    patient.put("a/b", b"1")
    patient.copy("a/b", "a/c")
    patient.create("a/d", b"3")
    patient.download("a/c", tmp_path / "file")
    patient.upload(tmp_path / "file", "a/e")
    patient.delete(iter(["a/b"]))
    assert [info.path for info in patient.list("a/")] == ["a/c", "a/d", "a/e"]
    assert (patient.get("a/e"), patient.head("a/b"), patient.url) == (b"1", None, store.url)


class Silent(LocalObjectStore):
    """A store that answers or not."""

    away = True

    def head(self, path: str) -> None:  # type: ignore[override]  # noqa: ARG002 - it tells nothing
        if self.away:
            message = "no answer"
            raise StoreUnavailableError(message)


def test_the_status_says_since_when_the_store_is_away_and_when_it_is_back(tmp_path: Path) -> None:
    status, store = DriverStatus(), Silent(tmp_path / "store")
    watch = StoreWatch(store, "log", status)
    watch.look()
    since = status.heartbeat().metrics.store_away_since_ms
    assert since is not None
    watch.look()
    assert status.heartbeat().metrics.store_away_since_ms == since, "it has been away all the while"
    store.away = False
    watch.look()
    assert status.heartbeat().metrics.store_away_since_ms is None

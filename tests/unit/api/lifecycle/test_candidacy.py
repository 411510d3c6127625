"""What a candidate and a leader ask of the database, in its order."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.errors import LeadershipLostError
from keyscale.api.lifecycle import leadership as module
from keyscale.api.lifecycle.leadership import Candidacy, Leadership
from keyscale.db.repositories.leaders import LeaderSeen

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = ("SELECT pg_try_advisory_lock(:key)", {"key": 0x6C656164})


class Database:
    """In place of the database: its answers are the attributes, and `noted` is what it was asked.

    Attributes:
        is_free: Whether no other replica holds the lock.
        lasts: Whether the epoch that it is asked about lasts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_free = self.lasts = True
        self.before: LeaderSeen | None = None
        self.noted: list[Any] = []
        for repository in ("leaders", "job_signs", "events"):
            monkeypatch.setattr(module, repository, self)
        monkeypatch.setattr(module, "Session", self.session)
        monkeypatch.setattr(module, "shared_now_ms", lambda: 77)

    def connect(self) -> Database:
        return self

    def detach(self) -> None:
        self.noted.append("detach")

    def execute(self, statement: Any) -> None:
        self.noted.append(str(statement))

    def commit(self) -> None:
        self.noted.append("commit")

    def close(self) -> None:
        self.noted.append("close")

    @contextmanager
    def session(self, connection: Any) -> Iterator[Database]:
        assert connection is self
        yield self

    @contextmanager
    def begin(self) -> Iterator[Database]:
        self.noted.append("begin")
        yield self
        self.noted.append("commit")

    def scalar(self, statement: Any, parameters: dict[str, int]) -> bool:
        self.noted.append((str(statement), parameters))
        return self.is_free

    def read(self, session: Any) -> LeaderSeen | None:
        assert session is self
        self.noted.append("read")
        return self.before

    def begin_epoch(self, session: Any, url: str) -> int:
        assert session is self
        self.noted.append(("epoch", url))
        return 6

    def record(self, session: Any, **event: Any) -> None:
        assert session is self
        self.noted.append(event)

    def beat(self, session: Any, epoch: int) -> bool:
        assert session is self
        self.noted.append(("beat", epoch))
        return self.lasts

    def share_epoch(self, session: Any, epoch: int) -> bool:
        assert session is self
        self.noted.append(("share", epoch))
        return self.lasts

    def to_reconcile(self, session: Any) -> list[str]:
        assert session is self
        return ["a job's sign"]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


@pytest.fixture
def candidate(database: Database) -> Candidacy:
    candidate = Candidacy(cast("Any", database), "http://this:1")
    assert database.noted == ["detach", "SET idle_session_timeout = '15s'", "commit"]
    database.noted.clear()
    return candidate


def test_a_candidate_begins_an_epoch_at_its_own_address_after_it_has_seen_who_led(
    database: Database, candidate: Candidacy
) -> None:
    assert candidate.stand() == 6
    assert database.noted == ["begin", LOCK, "read", ("epoch", "http://this:1"), "commit"]
    candidate.close()
    assert database.noted[-1] == "close"


def test_a_candidate_without_the_lock_leaves_the_epoch_of_the_other_as_it_is(
    database: Database, candidate: Candidacy
) -> None:
    database.is_free = False
    assert candidate.stand(60_000) is None
    assert database.noted == ["begin", LOCK, "commit"]


@pytest.mark.parametrize(
    ("silent_ms", "away_ms", "expected"),
    [
        (30_000, None, ("NO_LEADER", "no replica led for 30 s")),
        (29_999, None, None),
        (None, None, None),
        (40_000, 30_000, ("DATABASE_AWAY", "the database did not answer for 30 s")),
        (None, 50_000, ("DATABASE_AWAY", "the database did not answer for 50 s")),
        (40_000, 29_999, ("NO_LEADER", "no replica led for 40 s")),
    ],
)
def test_a_new_leader_says_how_long_none_led_or_how_long_the_database_was_away(
    database: Database,
    candidate: Candidacy,
    silent_ms: int | None,
    away_ms: int | None,
    expected: tuple[str, str] | None,
) -> None:
    database.before = None if silent_ms is None else LeaderSeen(5, "http://first:1", 1, silent_ms)
    assert candidate.stand(away_ms) == 6
    told = [each for each in database.noted if isinstance(each, dict)]
    if expected is None:
        assert told == []
    else:
        assert told == [{"job_id": None, "at_ms": 77, "kind": expected[0], "message": expected[1]}]


def test_a_leader_learns_its_jobs_with_each_beat_until_its_epoch_is_over(
    database: Database, candidate: Candidacy
) -> None:
    assert candidate.beat(6) == ["a job's sign"]
    assert database.noted == ["begin", ("beat", 6), "commit"]
    database.lasts = False
    with pytest.raises(LeadershipLostError, match="epoch 6 is over"):
        candidate.beat(6)


def test_a_leader_writes_only_in_transactions_that_keep_its_epoch(database: Database) -> None:
    leadership = Leadership(cast("Any", database), 6)
    with leadership.transaction() as session:
        database.noted.append("write")
    assert cast("object", session) is database
    assert database.noted == ["begin", ("share", 6), "write", "commit"]
    leadership.require()
    assert database.noted[4:] == ["begin", ("share", 6), "commit"]
    database.lasts = False
    with pytest.raises(LeadershipLostError, match="epoch 6 is over"):
        leadership.require()
    with pytest.raises(LeadershipLostError, match="epoch 6 is over"), leadership.transaction():
        database.noted.append("too late")
    assert "too late" not in database.noted

"""A job that waits for news is looked at when there is news, and rarely otherwise."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from keyscale.api.errors import LeadershipLostError
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import reconciler
from keyscale.api.lifecycle.decision import waits_for_news
from keyscale.api.lifecycle.fact_reader import FactReader
from keyscale.api.lifecycle.facts import AttemptFacts, ChangeFacts, CommandFacts, JobFacts, Timeouts
from keyscale.api.lifecycle.job_worker import Waiting
from keyscale.api.lifecycle.reconciler import REST_S_MAX, ROUND_S, UNCERTAIN_S, JobWorkers
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.api.lifecycle.watched_clock import WatchedClock
from keyscale.db.repositories import events
from keyscale.db.repositories.job_signs import JobSign
from keyscale.vocabulary import ChangePhase, CommandStatus, DesiredState, JobStatus
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER, SUPERVISOR = 7, 6
TIMEOUTS = Timeouts(suspended_ms=20_000, silence_ms=60_000)


class Rounds:
    """Rounds of a reconciler over one job, on a clock of the test.

    It is the worker, too. The job's driver reports in each round, unless it is silent.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting: Waiting | None = Waiting(frozenset({DRIVER, SUPERVISOR}))
        self.living = frozenset({1, SUPERVISOR, DRIVER})
        self.version = "1"
        self.is_silent = False
        self.failure: Exception | None = None
        self.looks: list[float] = []
        self.silences: list[int] = []
        self._heartbeat_at_ms = 0
        self._reader = FactReader(cast("Any", None), Stopwatch(WatchedClock(lambda: self.now_s)), TIMEOUTS)
        self.served = JobWorkers(cast("Any", self), cast("Any", None), TIMEOUTS, lambda: self.now_s)

    def silent_ms(self, sign: JobSign) -> int:
        return self._reader.silent_ms(sign)

    def advance(self, _job_id: str) -> Waiting | None:
        self.looks.append(round(self.now_s, 3))
        if self.failure is not None:
            raise self.failure
        if self.is_silent:
            self.silences.append(self.silent_ms(JobSign("job", self.version, 1, self._heartbeat_at_ms, 1)))
        return self.waiting

    def play(self, seconds: float) -> list[float]:
        """Plays rounds; returns the times of the looks in them, from their begin."""
        before, begun_s = len(self.looks), self.now_s
        for _ in range(round(seconds / ROUND_S)):
            self._heartbeat_at_ms += not self.is_silent
            self.served.serve([JobSign("job", self.version, 1, self._heartbeat_at_ms, 1)], self.living)
            wait_until(lambda: not self.served._busy, what="the end of the look")
            self.now_s += ROUND_S
        return [round(at_s - begun_s, 3) for at_s in self.looks[before:]]


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    rounds = Rounds()
    yield rounds
    rounds.served.close()


@pytest.fixture
def told(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Returns the recorded events and their failures, without a database."""
    told: list[tuple[str, str | None]] = []

    def record(_job_id: str, kind: str, _message: str, failure_code: str | None = None) -> None:
        told.append((kind, failure_code))

    monkeypatch.setattr(rounds.served, "_record", record)
    return told


def test_a_job_that_waits_for_news_is_looked_at_rarely(rounds: Rounds) -> None:
    assert rounds.play(30) == [0]
    assert rounds.served.all_rest
    rounds.now_s += REST_S_MAX
    assert rounds.play(1) == [0]


def test_a_change_of_a_row_ends_the_rest_in_the_same_round(rounds: Rounds) -> None:
    rounds.play(5)
    rounds.version = "2"
    assert rounds.play(5) == [0]


def test_the_end_of_a_process_ends_the_rest_in_the_same_round(rounds: Rounds) -> None:
    rounds.play(5)
    rounds.living = frozenset({1, SUPERVISOR})
    rounds.waiting = None  # the job has a next step from then on
    assert rounds.play(1)[0] == 0


def test_a_job_with_a_silent_driver_is_looked_at_when_a_limit_is_over(rounds: Rounds) -> None:
    rounds.play(5)
    rounds.is_silent = True
    looks = rounds.play(64)
    assert looks[:2] == pytest.approx([20, 60], abs=2 * ROUND_S)
    assert len(looks[2:]) == pytest.approx(4 / UNCERTAIN_S, abs=2)
    assert rounds.silences[0] > TIMEOUTS.suspended_ms
    assert rounds.silences[1] > TIMEOUTS.silence_ms


def test_a_pause_of_the_control_plane_is_no_silence_of_the_driver(rounds: Rounds) -> None:
    rounds.play(5)
    rounds.is_silent = True
    rounds.now_s += 90
    assert rounds.play(10) == []
    rounds.play(50)
    assert rounds.silences, "a driver that stays silent"


def test_a_job_with_unknown_processes_is_looked_at_every_second(rounds: Rounds) -> None:
    rounds.waiting = Waiting()
    assert len(rounds.play(10)) == pytest.approx(10 / UNCERTAIN_S, abs=2)


def test_a_job_that_waits_for_something_is_looked_at_in_each_round(rounds: Rounds) -> None:
    rounds.waiting = None
    assert len(rounds.play(2)) == round(2 / ROUND_S)
    assert not rounds.served.all_rest


def test_a_job_that_does_no_longer_rest_is_looked_at_in_each_round(rounds: Rounds) -> None:
    rounds.play(5)
    rounds.version, rounds.waiting = "2", None
    assert len(rounds.play(2)) == round(2 / ROUND_S)


RUNNING = AttemptFacts(2, ProcessState.ALIVE)


def test_a_request_ends_the_pause_after_failed_steps_in_the_same_round(rounds: Rounds, told: list[Any]) -> None:
    rounds.failure = ValueError("again")
    assert rounds.play(6) == pytest.approx([0, 1, 3], abs=2 * ROUND_S)
    rounds.version = "2"
    assert rounds.play(1) == [0]
    assert rounds.play(7) == [], "the pause has doubled"
    assert told == [("JOB_SET_ASIDE", "ValueError")]


@pytest.mark.parametrize(
    ("expected", "changed"),
    [
        (True, {}),
        (False, {"status": JobStatus.SUBMITTING}),
        (True, {"is_starting": True}),
        (False, {"active": None}),
        (False, {"standby": RUNNING}),
        (False, {"ended": (RUNNING,)}),
        (False, {"change": ChangeFacts(ChangePhase.REQUESTED, 2)}),
        (False, {"desired": DesiredState.STOPPED}),
        (True, {"stop": CommandFacts("failed", CommandStatus.FAILED, 2)}),
    ],
)
def test_a_job_whose_next_step_may_depend_on_a_time_does_not_rest(expected: bool, changed: dict[str, Any]) -> None:
    facts = {"status": JobStatus.RUNNING, "desired": DesiredState.RUNNING, "revision": 1, "active": RUNNING}
    assert waits_for_news(JobFacts(**{**facts, **changed})) is expected


def test_a_job_whose_steps_fail_is_told_once_for_each_cause_and_when_they_succeed_again(
    rounds: Rounds, told: list[Any]
) -> None:
    for failure, seconds in ((ValueError("one"), 2.6), (KeyError("another"), 2.6), (None, 4.0)):
        rounds.failure = failure
        assert rounds.play(seconds)
    assert told == [("JOB_SET_ASIDE", "ValueError"), ("JOB_SET_ASIDE", "KeyError"), ("JOB_TAKEN_UP", None)]


@pytest.mark.parametrize("failure", [LeadershipLostError("over"), OperationalError("SELECT", None, Exception("away"))])
def test_a_job_is_not_set_aside_for_a_lost_leadership_or_a_database_that_is_away(
    rounds: Rounds, told: list[Any], failure: Exception
) -> None:
    rounds.failure = failure
    assert len(rounds.play(2 * ROUND_S)) == 2
    assert (rounds.served.quarantined, told) == (0, [])
    rounds.failure = ValueError("its own")
    rounds.play(ROUND_S)
    assert rounds.served.quarantined == 1


def test_an_event_of_a_job_is_recorded_only_by_the_leader(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded: list[Any] = []
    answers = iter([nullcontext("session"), LeadershipLostError("over")])

    def transaction() -> Any:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(events, "record", lambda session, **event: recorded.append((session, event)))
    monkeypatch.setattr(reconciler, "now_ms", lambda: 70)
    monkeypatch.setattr(rounds.served, "_leadership", SimpleNamespace(transaction=transaction))
    for _ in range(2):
        rounds.served._record("job", "JOB_SET_ASIDE", "a step failed", failure_code="X")
    event = {"job_id": "job", "at_ms": 70, "kind": "JOB_SET_ASIDE", "message": "a step failed", "failure_code": "X"}
    assert recorded == [("session", event)]
    assert caplog.messages == ["job job: the event JOB_SET_ASIDE was not recorded"]

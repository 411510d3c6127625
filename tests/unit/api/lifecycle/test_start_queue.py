"""The turns of drivers on one host: of several threads, homes, and stages of a start."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.facts import Timeouts, Turn
from keyscale.api.lifecycle.start_queue import PATIENCE_S, StartQueue
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.db.models import Attempt
from keyscale.db.repositories import attempts
from keyscale.vocabulary import AttemptStage, DriverState


class Host:
    """A queue of one start at once, the attempts of the database, and the launcher of the host `here`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.attempts, self.jobs_created_at_ms = 0.0, dict[str, Attempt](), dict[str, int]()
        monkeypatch.setattr(attempts, "list_unstarted", lambda *_: self.unstarted())
        clock = lambda: self.seconds  # noqa: E731
        self.queue = StartQueue(cast("Any", self), 1, Stopwatch(clock), Timeouts(), clock)

    def unstarted(self) -> list[tuple[Attempt, int]]:
        return [(each, self.jobs_created_at_ms.get(job_id, 0)) for job_id, each in self.attempts.items()]

    def inspect(self, attempt: Attempt) -> Seen:
        if attempt.launched_on is None:
            return Seen(ProcessState.UNLAUNCHED)
        return Seen(ProcessState.ALIVE if attempt.launched_on == "here:/home" else ProcessState.UNKNOWN)

    def is_of_this_host(self, attempt: Attempt) -> bool:
        return str(attempt.launched_on).startswith("here:")

    def add(self, job_id: str, launched_on: str | None = None, **columns: Any) -> None:
        given = {"stage": AttemptStage.ACTIVE, "created_at_ms": 0, "launched_on": launched_on, **columns}
        self.attempts[job_id] = Attempt(job_id=job_id, number=1, **given)

    def ask(self, job_id: str) -> Turn:
        self.seconds += 1.0
        return self.queue.ask(cast("Any", None), self.attempts[job_id])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_two_threads_that_were_both_told_to_start_do_not_start_both(host: Host) -> None:
    host.add("younger", created_at_ms=1)
    assert host.ask("younger").place == 0
    host.add("older")
    assert host.ask("older").place == 0
    with host.queue.turn("older", 1) as of_older:
        assert of_older
        with host.queue.turn("younger", 1) as of_younger:
            assert not of_younger
        assert host.ask("younger").place == 1
        host.attempts["older"].launched_on = "here:/home"
    with host.queue.turn("younger", 1) as of_younger:
        assert not of_younger, "the launch has ended, the start has not"
    assert host.ask("younger").place == 1
    host.attempts["older"].launched_on = "elsewhere:/home"
    assert host.ask("younger").place == 0, "what it has read is a second old"


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        ({}, 1),
        ({"launched_on": "here:/other-home"}, 1),
        ({"launched_on": "elsewhere:/home"}, 0),
        ({"attached_at_ms": 1, "driver_state": DriverState.STANDBY}, 1),
        ({"attached_at_ms": 1, "driver_state": DriverState.STANDBY, "stage": AttemptStage.STANDBY}, 0),
        ({"attached_at_ms": 1, "driver_state": DriverState.RESTORING}, 1),
    ],
)
def test_a_driver_of_this_host_has_its_turn_until_it_runs_or_is_warm(
    host: Host, columns: dict[str, Any], place: int
) -> None:
    host.add("starting", **{"launched_on": "here:/home", **columns})
    host.add("waiting")
    assert host.ask("waiting").place == place


@pytest.mark.parametrize(("is_attached", "place"), [(False, 1), (True, 0)])
def test_a_driver_that_restores_for_long_leaves_its_turn(host: Host, is_attached: bool, place: int) -> None:
    host.add("starting", "here:/home", attached_at_ms=1 if is_attached else None)
    host.add("waiting")
    assert host.ask("waiting").place == 1
    host.seconds += 30.0
    assert host.ask("waiting").place == place


def test_a_start_that_nothing_asks_for_loses_its_place_until_it_is_asked_for_again(host: Host) -> None:
    host.add("older")
    host.add("younger", created_at_ms=1)
    places = [host.ask("younger").place]
    host.seconds += PATIENCE_S
    places += [host.ask("younger").place, host.ask("older").place, host.ask("younger").place]
    assert places == [1, 0, 0, 1]


def test_starts_go_by_their_own_time_and_those_of_one_minute_by_the_age_of_their_jobs(host: Host) -> None:
    for job_id, asked_minute, created_minute in (("last", 9, 1), ("first", 7, 3), ("second", 7, 5)):
        host.add(job_id, created_at_ms=60_000 * asked_minute)
        host.jobs_created_at_ms[job_id] = 60_000 * created_minute
    assert {job_id: host.ask(job_id).place for job_id in host.attempts} == {"first": 0, "second": 1, "last": 2}


def test_a_wait_is_announced_once(host: Host) -> None:
    host.add("older")
    host.add("younger", created_at_ms=1)
    assert host.ask("younger") == Turn(1, is_announced=False)
    host.queue.note_announced("younger", 1)
    assert host.ask("younger") == Turn(1, is_announced=True)


def test_a_launch_that_has_just_ended_keeps_its_turn_until_the_database_is_read_again(host: Host) -> None:
    host.add("older")
    host.add("younger", created_at_ms=1)
    assert (host.ask("older").place, host.ask("younger").place) == (0, 1)
    with host.queue.turn("older", 1) as has_turn:
        assert has_turn
    with host.queue.turn("younger", 1) as has_turn:
        assert not has_turn, "the process of the older one may not be seen yet"
    del host.attempts["older"]
    assert host.ask("younger").place == 0


def test_the_job_that_is_down_starts_before_one_of_its_minute_that_runs_meanwhile(host: Host) -> None:
    host.add("runs", stage=AttemptStage.STANDBY)
    host.add("down", created_at_ms=59_999)
    assert (host.ask("runs").place, host.ask("down").place) == (1, 0)


def test_a_later_attempt_of_a_job_has_a_wait_of_its_own_that_is_announced_again(host: Host) -> None:
    host.add("starting", "here:/home")
    host.add("waiting")
    host.ask("waiting")
    host.queue.note_announced("waiting", 1)
    assert host.ask("waiting") == Turn(1, is_announced=True)
    host.attempts["waiting"].launched_on = "here:/home"
    host.add("another")
    host.ask("another")
    host.attempts["waiting"].launched_on = None
    assert host.ask("waiting") == Turn(2)
    host.queue.note_announced("waiting", 1)
    host.attempts["waiting"].number = 2
    assert host.ask("waiting") == Turn(2)


@pytest.mark.parametrize("launched_on", ["here:/home", None])
def test_a_dead_driver_and_one_that_the_queue_has_never_been_asked_about(
    host: Host, monkeypatch: pytest.MonkeyPatch, launched_on: str | None
) -> None:
    host.add("gone", launched_on)
    host.add("waiting", created_at_ms=60_000)
    dead = Seen(ProcessState.DEAD if launched_on else ProcessState.UNLAUNCHED)
    inspect = host.inspect
    monkeypatch.setattr(host, "inspect", lambda found: dead if found.job_id == "gone" else inspect(found))
    places = [host.ask("waiting").place for _ in range(7)]
    assert places == ([0] * 7 if launched_on else [1] * 5 + [0] * 2), "its steps fail"

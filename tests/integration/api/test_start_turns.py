"""As many drivers start at once as the host has room for, with stand-ins for drivers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import job_worker, start_queue
from keyscale.api.lifecycle.reconciler import JobWorkers
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Job, Operation
from keyscale.db.repositories import attempts, job_signs
from keyscale.vocabulary import AttemptStage, DriverState, OperationKind, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.real

AT_ONCE = 2
NAMES = ("first", "second", "third", "fourth", "fifth")


class Store:
    """In place of the store: it has nothing of any job."""

    def newest_attempt(self, *_: str) -> int:
        return 0

    def counters(self, *_: str, limit_ms: int) -> None:
        del limit_ms


@dataclass(slots=True)
class Drivers:
    """In place of the launcher: notes which drivers were launched, and in which order."""

    place: str = "host:/home"
    launched: list[tuple[str, int]] = field(default_factory=list)
    dead: set[tuple[str, int]] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def inspect(self, attempt: Attempt) -> Seen:
        key = attempt.job_id, attempt.number
        if key in self.dead:
            return Seen(ProcessState.DEAD)
        return Seen(ProcessState.STARTING if key in self.launched else ProcessState.UNLAUNCHED)

    def is_of_this_host(self, attempt: Attempt) -> bool:
        return attempt.launched_on == self.place

    def prepare(self, job_id: str, attempt: int) -> str:
        if job_id in self.broken:
            raise OSError("the disk is full")
        return f"{job_id}-{attempt}"

    def launch(self, job: Job, _revision: object, attempt: Attempt, *_: object) -> None:
        self.launched.append((job.id, attempt.number))

    def kill(self, job_id: str, attempt: int) -> None:
        self.dead.add((job_id, attempt))

    clean_up = kill


class Host:
    """Five jobs and a control plane on a host that carries out two starts at once."""

    def __init__(self, context: Context, leadership: Leadership, client: httpx.Client, ids: dict[str, str]) -> None:
        self.context, self.client, self.ids = context, client, ids
        self.drivers, self.seconds = Drivers(), 0.0
        self._leadership = leadership
        self.lead()

    def lead(self) -> None:
        """Begins to lead: what a leader before knew beside the database and the processes is lost."""
        self._worker = job_worker.JobWorker(
            leadership=self._leadership,
            launcher=cast("Any", self.drivers),
            store=cast("Any", Store()),
            starts_at_once=AT_ONCE,
        )

    def turn(self, *names: str) -> None:
        """Takes the steps of some jobs, or of all jobs as the reconciler does."""
        with self.context.sessions() as session:
            wanted = [self.ids[name] for name in names] or [sign.id for sign in job_signs.to_reconcile(session)]
        for job_id in wanted:
            try:
                self._worker.advance(job_id)
            except OSError:
                assert job_id in self.drivers.broken

    def turn_side_by_side(self) -> None:
        """Takes the steps of all jobs in a thread per job."""
        served = JobWorkers(self._worker, self._leadership)
        with self.context.sessions() as session:
            served.serve(job_signs.to_reconcile(session), frozenset())
        served._threads.shutdown()  # waits for the steps of all jobs

    def launched(self) -> list[str]:
        names = {job_id: name for name, job_id in self.ids.items()}
        return [names[job_id] for job_id, _ in self.drivers.launched]

    def report(self, name: str, state: DriverState | None, **columns: Any) -> None:
        """Stores what the newest driver of a job has reported."""
        with self.context.sessions.begin() as session:
            attempt = session.get_one(Attempt, (self.ids[name], attempts.next_number(session, self.ids[name]) - 1))
            attempt.driver_state, attempt.attached_at_ms = state, now_ms()
            for column, value in columns.items():
                setattr(attempt, column, value)

    def waits(self, name: str) -> list[tuple[int, int]]:
        """Returns the attempts whose waits were announced, with their places."""
        events = self.client.get(f"/v1/jobs/{name}/events?kind=START_WAITS").json()["events"]
        return [(event["details"]["attempt"], event["details"]["place"]) for event in events]

    def health(self, name: str) -> list[str]:
        return [item["message"] for item in self.client.get(f"/v1/jobs/{name}").json()["status"]["health"]["reasons"]]


@pytest.fixture
def host(
    context: Context,
    leadership: Leadership,
    client: httpx.Client,
    upload: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Host]:
    monkeypatch.setattr(start_queue, "READ_EVERY_S", 0.0)
    artifact_id = upload().json()["id"]
    ids = {}
    for name in NAMES:
        ids[name] = client.post("/v1/jobs", json={"name": name, "spec": {"artifact_id": artifact_id}}).json()["id"]
        client.post(f"/v1/jobs/{name}/start")
    with context.sessions.begin() as session:
        for age, job_id in enumerate(ids.values()):
            session.get_one(Job, job_id).created_at_ms = age
    host = Host(context, leadership, client, ids)
    monkeypatch.setattr(job_worker, "Stopwatch", lambda: Stopwatch(lambda: host.seconds, lambda: 1.0))
    host.lead()
    yield host
    assert not host.drivers.broken or host.launched()


def test_the_oldest_jobs_start_first_and_each_driver_that_runs_makes_room_for_the_next(host: Host) -> None:
    host.turn()
    assert host.launched() == ["first", "second"]
    assert [host.waits(name) for name in NAMES] == [[], [], [(1, 1)], [(1, 2)], [(1, 3)]]
    assert host.health("fourth") == ["the start waits for its turn, in place 2 of 3: other drivers start first"]
    host.report("second", DriverState.RESTORING)
    host.turn("fifth", "fourth", "third")
    assert host.launched() == ["first", "second"], "a driver that restores has its turn"
    host.report("second", DriverState.RUNNING)
    host.turn("fifth", "fourth", "third")
    assert host.launched() == ["first", "second", "third"]
    assert host.health("third") == []
    host.drivers.dead.add((host.ids["first"], 1))
    host.lead()
    host.turn("fifth", "fourth")
    assert host.launched() == ["first", "second", "third", "fourth"], "a new leader goes on with the line"
    assert host.waits("fifth") == [(1, 1), (1, 3)], "a new leader tells the place again"
    host.report("third", None)
    host.turn("fifth")
    assert host.launched()[4:] == [], "a driver that has asked for work has its turn until it runs"
    host.seconds = 31.0
    host.turn("fifth")
    assert host.launched()[4:] == ["fifth"], "a long restore makes room, too"


def test_no_more_drivers_start_when_all_jobs_ask_at_the_same_moment(host: Host) -> None:
    host.turn_side_by_side()
    assert len(host.launched()) == AT_ONCE
    host.turn()
    assert len(host.launched()) == AT_ONCE


def test_a_job_that_cannot_be_launched_keeps_no_other_job_waiting(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.drivers.broken = {host.ids["first"], host.ids["second"]}
    host.turn()
    assert host.launched() == [], "they are the oldest, and tried first"
    monkeypatch.setattr(start_queue, "PATIENCE_S", 0.0)  # as after five seconds without a try
    host.turn("third", "fourth")
    assert host.launched() == ["third", "fourth"]


def test_the_clocks_of_a_change_begin_when_its_driver_is_launched(host: Host) -> None:
    host.turn("first")
    host.report("first", DriverState.RUNNING, first_commit_at_ms=1, restored_at_ms=1)
    host.turn("first", "second", "third")
    assert host.client.post("/v1/jobs/first/rescale", json={"parallelism": 2}).status_code == 202
    host.turn("first")
    host.seconds = 1000.0
    host.turn("first")
    assert host.waits("first") == [(2, 1)]
    assert change_of(host).status is OperationStatus.IN_PROGRESS, "its driver has waited for 1000 s"
    host.report("second", DriverState.RUNNING)
    host.turn("first")
    assert host.launched() == ["first", "second", "third", "first"]
    host.seconds += 299.0
    host.turn("first")
    assert change_of(host).status is OperationStatus.IN_PROGRESS
    host.report("third", DriverState.RUNNING)
    with host.context.sessions.begin() as session:
        standby = attempts.of_stage(session, host.ids["first"], AttemptStage.STANDBY)
        assert standby is not None
        standby.attached_at_ms = None
    host.seconds += 2.0
    host.turn("first")
    assert change_of(host).failure == {
        "code": "RESCALE_TIMED_OUT",
        "message": "the new driver did not start within 300 s",
        "traceback": None,
        "operator_uid": None,
        "subtask": None,
    }


def change_of(host: Host) -> Operation:
    with host.context.sessions() as session:
        return session.query(Operation).filter_by(job_id=host.ids["first"], kind=OperationKind.RESCALE).one()

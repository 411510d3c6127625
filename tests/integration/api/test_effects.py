"""What each step and each request changes in the database, and that it changes nothing else, nor another job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from keyscale.api.access.principal import Principal
from keyscale.api.job_spec import spec_of
from keyscale.api.lifecycle import requests, steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.operation_results import settle_command
from keyscale.api.lifecycle.requests import Change
from keyscale.api.lifecycle.restoring import Restore
from keyscale.db.models import Artifact, Attempt, Checkpoint, Job, Operation, Revision
from keyscale.jobs.protocol.messages import DriverMetrics, FailureHistory
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CheckpointStatus,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    RestoreMode,
    Role,
    UpgradeMode,
)
from tests.support.control_plane.row_changes import RowChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

pytestmark = pytest.mark.either_database

FAILURE = {"code": "BROKE", "message": "it broke"}
ANN = Principal("u1", "ann", Role.OPERATOR)
STOP, START, RESCALE, SAVEPOINT = (
    OperationKind.STOP,
    OperationKind.START,
    OperationKind.RESCALE,
    OperationKind.SAVEPOINT,
)
UPGRADE = OperationKind.UPGRADE
JOBS = ("other", "mine")


class World:
    """Two jobs with the same rows.

    Each has an attempt that runs, one that stands by, a complete and an incomplete checkpoint, and a savepoint to come.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._add(
            Artifact(
                id="a", name="a", version=1, filename="a.py", kind="PYTHON", sha256="a", size_bytes=1, created_at_ms=1
            )
        )
        for job_id in JOBS:
            self._add(
                Job(
                    id=job_id,
                    name=f"{job_id}-name",
                    max_parallelism=8,
                    hash_id="spark",
                    store_url=f"file:///{job_id}",
                    desired=DesiredState.RUNNING,
                    status=JobStatus.RUNNING,
                    created_at_ms=10,
                    started_at_ms=11,
                    restarts=3,
                    consecutive_failures=4,
                    revision=1,
                )
            )
            for number in (1, 2):
                spec = {"artifact_id": "a", "libraries": [], "parallelism": 2 * number}
                self._add(Revision(job_id=job_id, number=number, created_at_ms=20 + number, spec=spec))
            self.attempt(1, AttemptStage.ACTIVE, 1, job_id=job_id)
            self.attempt(2, AttemptStage.STANDBY, 2, job_id=job_id)
            for number, status in ((1, CheckpointStatus.COMPLETED), (2, CheckpointStatus.IN_PROGRESS)):
                self._add(
                    Checkpoint(
                        job_id=job_id,
                        checkpoint_id=number,
                        attempt=1,
                        status=status,
                        is_savepoint=False,
                        trigger_timestamp=40 + number,
                        latest_ack_timestamp=50 + number,
                        end_to_end_duration=10,
                        checkpointed_size=1,
                        state_size=2,
                        processed_records=3,
                        num_subtasks=0,
                        num_acknowledged_subtasks=0,
                        external_path=f"file:///{job_id}/{number}",
                    )
                )
            self.operation(f"snapshot-{job_id}", SAVEPOINT, job_id=job_id, command_status=CommandStatus.IN_PROGRESS)

    @property
    def job(self) -> Job:
        return self.session.get_one(Job, "mine")

    def operation_of(self, name: str) -> Operation:
        return self.session.get_one(Operation, f"{name}-mine")

    def revision(self, number: int) -> Revision:
        return self.session.get_one(Revision, ("mine", number))

    def attempt(self, number: int, stage: AttemptStage, revision: int, *, job_id: str = "mine", **columns: Any) -> None:
        metrics = DriverMetrics(batches=10 * number, input_records=100 * number, lag_records=7).model_dump(mode="json")
        given = {
            "cause": "start",
            "parallelism": 2 * revision,
            "created_at_ms": 30 + number,
            "launched_at_ms": 60 + number,
            "launched_on": f"host-{number}",
            "attached_at_ms": 70 + number,
            "running_at_ms": 80 + number,
            "restored_at_ms": 90 + number,
            "first_commit_at_ms": 100 + number,
            "last_commit_at_ms": 110 + number,
            "heartbeat_at_ms": 120 + number,
            "pid": 130 + number,
            "host": f"inside-{number}",
            "spark_ui_url": f"http://ui-{number}",
            "slots": 8,
            "driver_state": "RUNNING" if stage is AttemptStage.ACTIVE else "STANDBY",
            "metrics": metrics,
            **columns,
        }
        self._add(Attempt(job_id=job_id, number=number, stage=stage, revision=revision, reaped=False, **given))

    def operation(self, operation_id: str, kind: OperationKind, *, job_id: str = "mine", **columns: Any) -> None:
        given = {"old_attempt": 1, "status": OperationStatus.IN_PROGRESS, "requested_at_ms": 200, **columns}
        self._add(Operation(id=operation_id, job_id=job_id, kind=kind, requested_by="bob", **given))

    def rescale(self, phase: ChangePhase | None = ChangePhase.SAVEPOINT, **columns: Any) -> None:
        given: dict[str, Any] = {
            "phase": phase,
            "phases": [{"phase": phase, "started_at_ms": 210, "ended_at_ms": None}],
            "from_revision": 1,
            "to_revision": 2,
            "from_parallelism": 2,
            "to_parallelism": 4,
            "upgrade_mode": UpgradeMode.SAVEPOINT,
            "rescale_mode": RescaleMode.STANDBY,
            "new_attempt": 2,
            "location": "file:///taken",
            "command_status": CommandStatus.COMPLETED,
            "metrics_before": {"pending_records": 5.0},
            **columns,
        }
        for job_id in JOBS:
            self.operation(f"rescale-{job_id}", RESCALE, job_id=job_id, **given)
            self.session.get_one(Job, job_id).status = JobStatus.RESCALING

    def live_rescale(self, phase: ChangePhase = ChangePhase.PREPARE, **columns: Any) -> None:
        """A rescale by the running driver, which has opened the next attempt, in place of the one that stands by."""
        for job_id in JOBS:
            self.session.delete(self.session.get_one(Attempt, (job_id, 2)))
            self.session.flush()
            opened = {"rescale": {"switched_at_ms": 330, "prepared_at_ms": 320}, "run": 1, "driver_state": "RUNNING"}
            self.attempt(3, AttemptStage.RESERVED, 2, job_id=job_id, **opened)
            self.attempt(4, AttemptStage.RESERVED, 1, job_id=job_id, run=1, driver_state=None)
        live = {
            "rescale_mode": RescaleMode.LIVE,
            "new_attempt": 3,
            "location": None,
            "command_status": CommandStatus.IN_PROGRESS,
        }
        self.rescale(phase, **{**live, **columns})

    def _add(self, row: Any) -> None:
        self.session.add(row)
        self.session.flush()


@pytest.fixture(scope="module")
def postgres_world(postgres_engine: Engine) -> Iterator[World]:
    with Session(postgres_engine) as session:
        yield World(session)
        session.rollback()


@pytest.fixture(scope="module")
def memory_world(memory_engine: Engine) -> Iterator[World]:
    with Session(memory_engine) as session:
        yield World(session)
        session.rollback()


@pytest.fixture
def world(request: pytest.FixtureRequest, database_kind: str) -> Iterator[World]:
    """The jobs as they were built, whatever the tests before have changed."""
    built: World = request.getfixturevalue(f"{database_kind}_world")
    attempt = built.session.begin_nested()
    yield built
    attempt.rollback()


def lost(world: World) -> None:
    """The active attempt has ended."""
    for job_id in JOBS:
        world.session.get_one(Attempt, (job_id, 1)).stage = AttemptStage.ENDED
    world.session.flush()


def taken_over(world: World) -> None:
    """A rescale has given the state to the attempt that stood by."""
    lost(world)
    for job_id in JOBS:
        world.session.get_one(Attempt, (job_id, 2)).stage = AttemptStage.ACTIVE
    world.rescale(ChangePhase.RESTORE, stopped_at_ms=300)
    set_jobs(world, revision=2, restore=Restore("rescale", location="file:///taken").dump())


def without_standby(world: World) -> None:
    for job_id in JOBS:
        world.session.delete(world.session.get_one(Attempt, (job_id, 2)))
    world.session.flush()


def set_jobs(world: World, **columns: Any) -> None:
    for job_id in JOBS:
        for name, value in columns.items():
            setattr(world.session.get_one(Job, job_id), name, value)


def requested(world: World) -> None:
    without_standby(world)
    world.rescale(ChangePhase.REQUESTED, new_attempt=None, command_status=None, location=None)


def live(world: World) -> None:
    world.live_rescale()


def returned(world: World) -> None:
    world.live_rescale(ChangePhase.VERIFY, stopped_at_ms=300)
    for job_id in JOBS:
        back = world.session.get_one(Attempt, (job_id, 4))
        back.driver_state, back.rescale = "RUNNING", {"failure": FAILURE}
    set_jobs(world, revision=2)


def live_requested(world: World) -> None:
    without_standby(world)
    unsent: dict[str, Any] = {"new_attempt": None, "command_status": None, "location": None}
    world.rescale(ChangePhase.PREPARE, rescale_mode=RescaleMode.LIVE, **unsent)


def starting(world: World) -> None:
    for job_id in JOBS:
        world.operation(f"start-{job_id}", START, job_id=job_id)


def stopping(world: World) -> None:
    for job_id in JOBS:
        world.operation(f"stop-{job_id}", STOP, job_id=job_id, command_status=CommandStatus.IN_PROGRESS)
    set_jobs(world, desired=DesiredState.STOPPED, status=JobStatus.SAVEPOINTING)


def rescaling(world: World) -> None:
    world.rescale()


def failed(world: World) -> None:
    set_jobs(world, failure=FAILURE)


def restarting(world: World) -> None:
    set_jobs(world, status=JobStatus.RESTARTING)


def idle(_: World) -> None:
    """The job runs."""


def settled(world: World) -> None:
    set_jobs(
        world,
        status=JobStatus.STOPPED,
        desired=DesiredState.STOPPED,
        failure=FAILURE,
        failures={"count": 1},
        next_start_at_ms=5,
        ended_at_ms=6,
    )


def without_state_of_the_savepoint(world: World) -> None:
    without_standby(world)
    world.rescale(upgrade_mode=UpgradeMode.LAST_STATE)


def rewound(world: World) -> None:
    """An attempt has carried out the pending restore."""
    for job_id in JOBS:
        world.session.get_one(Attempt, (job_id, 1)).restore_id = "rewind"
    set_jobs(world, restore=Restore("rewind", RestoreMode.REWIND, "file:///back").dump())


def rolled_back(world: World) -> None:
    taken_over(world)
    world.operation_of("rescale").failure = FAILURE


def awaiting(world: World) -> None:
    world.rescale(phase=None, phases=[], command_status=None, status=OperationStatus.PENDING_APPROVAL)
    set_jobs(world, status=JobStatus.RUNNING)


def upgrade(world: World) -> Change:
    return Change(UPGRADE, world.revision(2), UpgradeMode.LAST_STATE, True, "file:///back", 77)


CASES: dict[str, tuple[Callable[[World], None], object]] = {
    "a new attempt": (lost, steps.CreateAttempt(2, steps.Cause.RECOVER, after=7)),
    "a standby": (requested, steps.CreateAttempt(2, steps.Cause.RESCALE, standby=True)),
    "the place in the line": (idle, steps.AnnounceWait(2, 3)),
    "the processes are gone": (idle, steps.MarkReaped(1)),
    "the end of an attempt": (idle, steps.EndAttempt(1)),
    "a job wakes for a savepoint": (without_standby, steps.WakeJob(1, 1)),
    "an attempt is replaced later": (
        idle,
        steps.ReplaceAttempt(1, FAILURE, 5, 7_200_000, FailureHistory(count=3, times_ms=[1, 2])),
    ),
    "an attempt is replaced now": (stopping, steps.ReplaceAttempt(1, FAILURE, 1, 0)),
    "a job fails during a rescale": (rescaling, steps.FailJob(FAILURE)),
    "a job fails during a live rescale": (live, steps.FailJob(FAILURE)),
    "a stop ends": (stopping, steps.SettleJob(JobStatus.STOPPED)),
    "a job finishes": (idle, steps.SettleJob(JobStatus.FINISHED)),
    "a stop without a savepoint": (stopping, steps.StopWithoutSavepoint(FAILURE)),
    "a job runs": (restarting, steps.ShowStatus(JobStatus.RUNNING)),
    "a start is complete": (starting, steps.CompleteStart()),
    "a failure is forgotten": (failed, steps.ForgetFailure()),
    "a stop moves to another attempt": (stopping, steps.ReassignStop("stop-mine", 2)),
    "a stop is given up": (stopping, steps.ResumeJob(FAILURE)),
    "the next phase": (rescaling, steps.AdvanceChange(ChangePhase.STOP)),
    "a change takes its savepoint": (requested, steps.BeginSavepoint()),
    "a standby takes over": (rescaling, steps.SwitchOver()),
    "a new attempt takes over from the last state": (without_state_of_the_savepoint, steps.SwitchOver()),
    "attempts are reserved": (live_requested, steps.ReserveAttempts(after=9)),
    "a driver is told to rescale": (live_requested, steps.SendRescale()),
    "a live rescale falls back": (live, steps.FallBack(FAILURE)),
    "a driver has switched": (live, steps.FollowSwitch()),
    "a driver has gone back": (returned, steps.FollowReturn()),
    "a restore is tried again": (taken_over, steps.RetryRestore(2)),
    "a change is given up": (rescaling, steps.AbandonChange(FAILURE)),
    "a change is given up with its driver": (rescaling, steps.AbandonChange(FAILURE, replaced=1)),
    "a phase waits": (rescaling, steps.NoteWait({"job": "other", "turn": 3})),
    "a change goes back": (taken_over, steps.RollBack(2, FAILURE)),
    "a change is complete": (taken_over, steps.CompleteChange(rolled_back=False, resumed_at_ms=555)),
    "a change has gone back": (rolled_back, steps.CompleteChange(rolled_back=True, resumed_at_ms=555)),
    "start": (
        settled,
        lambda at: requests.start(at.session, at.job, ANN, "new", skip_lost_records=True, reset_time=True),
    ),
    "stop": (starting, lambda at: requests.stop(at.session, at.job, ANN, "new", OperationKind.STOP)),
    "drain": (idle, lambda at: requests.stop(at.session, at.job, ANN, "new", OperationKind.DRAIN)),
    "cancel": (rescaling, lambda at: requests.cancel(at.session, at.job, ANN, "new")),
    "savepoint": (idle, lambda at: requests.snapshot(at.session, at.job, ANN, "new", SAVEPOINT)),
    "revision": (idle, lambda at: requests.revise(at.session, at.job, spec_of(at.revision(2)), ANN, "wider")),
    "selection of a revision": (settled, lambda at: requests.select_revision(at.session, at.job, at.revision(2))),
    "adjustment": (idle, lambda at: requests.adjust(at.session, at.job, at.revision(2), ANN)),
    "rescale": (starting, lambda at: requests.change(at.session, at.job, ANN, "new", Change(RESCALE, at.revision(2)))),
    "upgrade": (idle, lambda at: requests.change(at.session, at.job, ANN, "new", upgrade(at))),
    "request for an approval": (idle, lambda at: requests.await_approval(at.session, at.job, ANN, "new", upgrade(at))),
    "approval": (awaiting, lambda at: requests.approve(at.session, at.job, ANN, at.operation_of("rescale"))),
    "cancel of a change": (
        rescaling,
        lambda at: requests.cancel_operation(at.session, at.operation_of("rescale"), ANN),
    ),
    "the latest snapshot after a rewind": (
        rewound,
        lambda at: JobTransaction(at.session, at.job).latest_completed(),
    ),
    "savepoint taken": (
        idle,
        lambda at: settle_command(
            at.session,
            at.operation_of("snapshot"),
            status=CommandStatus.COMPLETED,
            location="file:///taken",
            checkpoint_id=9,
        ),
    ),
}


def expected_effects() -> dict[str, list[str]]:
    """Reads the expected effects: the lines of each case, below its name."""
    text = (Path(__file__).parent / "effects.txt").read_text()
    parts = (part.splitlines() for part in text.split("\n\n")[1:])
    return {name: [line.strip() for line in lines] for name, *lines in parts}


EXPECTED = expected_effects()


@pytest.mark.parametrize("case", CASES)
def test_an_action_has_its_effects_and_no_others(world: World, case: str) -> None:
    scene, action = CASES[case]
    scene(world)
    changes = RowChanges(world.session)
    if callable(action):
        action(world)
    else:
        apply(action, JobTransaction(world.session, world.job))
    assert changes.lines() == EXPECTED[case]


def test_every_case_has_its_effects() -> None:
    assert EXPECTED.keys() == CASES.keys()


def test_a_change_of_another_job_is_an_effect(world: World) -> None:
    changes = RowChanges(world.session)
    world.session.get_one(Attempt, ("other", 1)).reaped = True
    assert changes.lines() == ["attempt 1 of other: reaped True"]

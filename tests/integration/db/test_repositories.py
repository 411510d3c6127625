"""Each query finds exactly the rows that it names, beside rows that differ from them in one thing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import (
    Alarm,
    Artifact,
    Attempt,
    BrowserSession,
    Checkpoint,
    CheckpointDay,
    CheckpointSubtask,
    DeletedJob,
    Delivery,
    Diagnostic,
    Event,
    Job,
    JobException,
    Leader,
    Operation,
    Replica,
    Revision,
    ScalingDecision,
    Subscription,
    Token,
)
from keyscale.db.models.operation import SAVEPOINT_POLICY
from keyscale.db.repositories import (
    alarms,
    artifacts,
    attempts,
    browser_sessions,
    checkpoints,
    deleted_jobs,
    diagnostics,
    events,
    exceptions,
    history,
    job_signs,
    job_versions,
    jobs,
    leaders,
    operations,
    overviews,
    replicas,
    revisions,
    savepoint_policies,
    scaling,
    scrapes,
    secret_labels,
    series,
    snapshot_needs,
    subscriptions,
    tokens,
)
from keyscale.db.repositories.events import EventFilter
from keyscale.db.repositories.pages import PageRequest
from keyscale.vocabulary import (
    ArtifactKind,
    AttemptStage,
    AutoscalerMode,
    ChangePhase,
    Channel,
    CheckpointStatus,
    ClaimMode,
    CommandStatus,
    DeliveryStatus,
    DesiredState,
    DiagnosticKind,
    JobStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    Role,
    ScalingOutcome,
    ScalingVerdict,
    SnapshotOwner,
    UpgradeMode,
)
from tests.support.control_plane.condition_watch import ConditionWatch
from tests.support.distinct_values import distinct_row, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Engine
    from sqlalchemy.orm import ORMExecuteState

pytestmark = pytest.mark.either_database

ENDED, ACTIVE, STANDBY = AttemptStage.ENDED, AttemptStage.ACTIVE, AttemptStage.STANDBY
THE_TEST_OF_THE_WATCH = "test_each_condition_and_order_of_a_query_decides_in_a_test_above"
UNDECIDING = {
    "events.id >= :id",  # for speed: the events of a page are newer anyway
    # Of the models: SQLAlchemy makes them of a key and of a relation, and a query cannot forget them.
    *("attempts.job_id = :pk", "attempts.number = :pk"),
    *("attempts.job_id = heartbeats.job_id", "attempts.number = heartbeats.attempt"),
}
COMPLETED, FAILED, SUBSUMED = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED, CheckpointStatus.SUBSUMED


class Rows:
    """The rows of one transaction: the jobs `mine` and `other`, and what a test adds to them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._add(
            Artifact(
                id="program",
                name="program",
                version=1,
                filename="job.py",
                kind=ArtifactKind.PYTHON,
                sha256="aa",
                size_bytes=1,
                created_at_ms=1,
            )
        )
        self.job("mine")
        self.job("other")

    def job(self, job_id: str, **columns: Any) -> None:
        """Adds a job with a first revision."""
        defaults = {"desired": DesiredState.STOPPED, "status": JobStatus.STOPPED, "created_at_ms": 1}
        self._add(
            Job(
                id=job_id,
                name=f"{job_id}-name",
                max_parallelism=8,
                hash_id="spark",
                store_url=f"file:///{job_id}",
                **{**defaults, **columns},
            )
        )
        self.revision(1, job_id=job_id)

    def revision(self, number: int, *, job_id: str = "mine", **columns: Any) -> None:
        spec = {"artifact_id": "program", "libraries": [], **columns}
        self._add(Revision(job_id=job_id, number=number, created_at_ms=number, spec=spec))

    def attempt(self, number: int, stage: AttemptStage = ENDED, *, job_id: str = "mine", **columns: Any) -> Attempt:
        defaults = {"cause": "start", "parallelism": 2, "created_at_ms": number}
        made = Attempt(job_id=job_id, number=number, stage=stage, **{**defaults, **columns})
        self._add(made)
        return made

    def change(self, change_id: str, *, job_id: str = "mine", at_ms: int = 1, **columns: Any) -> Operation:
        defaults = {
            "kind": OperationKind.RESCALE,
            "status": OperationStatus.COMPLETED,
            "phase": ChangePhase.VERIFY,
            "phases": [],
            "from_revision": 1,
            "to_revision": 1,
            "from_parallelism": 2,
            "to_parallelism": 2,
            "upgrade_mode": UpgradeMode.SAVEPOINT,
            "old_attempt": 1,
        }
        made = Operation(id=change_id, job_id=job_id, requested_at_ms=at_ms, **{**defaults, **columns})
        self._add(made)
        return made

    def command(self, operation_id: str, *, job_id: str = "mine", at_ms: int = 1, **columns: Any) -> None:
        defaults = {
            "kind": OperationKind.SAVEPOINT,
            "status": OperationStatus.COMPLETED,
            "command_status": CommandStatus.IN_PROGRESS,
            "old_attempt": 1,
        }
        self._add(Operation(id=operation_id, job_id=job_id, requested_at_ms=at_ms, **{**defaults, **columns}))

    def checkpoint(
        self, number: int, status: CheckpointStatus = COMPLETED, *, job_id: str = "mine", **columns: Any
    ) -> Checkpoint:
        defaults = {
            "attempt": 1,
            "is_savepoint": False,
            "trigger_timestamp": 10 * number,
            "latest_ack_timestamp": 10 * number + 5,
            "end_to_end_duration": number,
            "checkpointed_size": number,
            "state_size": number,
            "processed_records": number,
            "num_subtasks": 0,
            "num_acknowledged_subtasks": 0,
        }
        made = Checkpoint(job_id=job_id, checkpoint_id=number, status=status, **{**defaults, **columns})
        self._add(made)
        return made

    def decision(self, at_ms: int = 1, *, job_id: str = "mine", **columns: Any) -> ScalingDecision:
        defaults = {"verdict": ScalingVerdict.STEADY, "parallelism": 2, "target": 2, "message": "m", "facts": {}}
        made = ScalingDecision(job_id=job_id, at_ms=at_ms, confirmed_at_ms=at_ms, **{**defaults, **columns})
        self._add(made)
        return made

    def diagnostic(self, name: str, *, job_id: str = "mine", at_ms: int = 1, **columns: Any) -> Diagnostic:
        defaults = {"attempt": 1, "kind": DiagnosticKind.THREAD_DUMP, "request": {}, "requested_by": "ann"}
        defaults |= {"until_ms": 100, **columns}
        made = Diagnostic(id=name, job_id=job_id, requested_at_ms=at_ms, **defaults)
        self._add(made)
        return made

    def token(self, name: str, **columns: Any) -> None:
        defaults = {"role": Role.VIEWER, "created_by": "system", "created_at_ms": 1}
        self._add(Token(sha256=name, id=name, name=name, **{**defaults, **columns}))

    def browser_session(self, name: str, **columns: Any) -> None:
        defaults = {"user_id": name, "name": name, "role": Role.VIEWER, "created_at_ms": 1}
        self._add(BrowserSession(sha256=name, **{**defaults, **columns}))

    def set_job(self, job_id: str = "mine", **columns: Any) -> Job:
        job = self.session.get_one(Job, job_id)
        for name, value in columns.items():
            setattr(job, name, value)
        self.session.flush()
        return job

    def _add(self, row: Any) -> None:
        self.session.add(row)
        self.session.flush()


@pytest.fixture(scope="module", autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[ConditionWatch]:
    """Watches all queries of this module's tests on PostgreSQL, if the test of the watch is among the chosen ones."""
    watch = ConditionWatch("keyscale.db.repositories")
    is_asked = any(item.name.startswith(THE_TEST_OF_THE_WATCH) for item in request.session.items)
    with watch.watching(request.getfixturevalue("postgres_engine")) if is_asked else nullcontext():
        yield watch


@pytest.fixture
def engine(request: pytest.FixtureRequest, database_kind: str) -> Engine:
    found: Engine = request.getfixturevalue(f"{database_kind}_engine")
    return found


@pytest.fixture
def rows(engine: Engine) -> Iterator[Rows]:
    """Rows that are gone after the test."""
    with Session(engine) as session:
        yield Rows(session)
        session.rollback()


def parts(number: int, indices: Sequence[int], operator: str = "count") -> list[dict[str, Any]]:
    """Returns the columns of a checkpoint's subtasks."""
    measured = ("end_to_end_duration", "start_delay", "sync_duration", "async_duration", "checkpointed_size", "files")
    return [
        {
            "operator_uid": operator,
            "subtask": index,
            "status": COMPLETED,
            "key_group_start": 0,
            "key_group_end": 1,
            "ack_timestamp": 1,
            "state_size": number,
            "distinct_size": None,
            "entries": 1,
            "key_group_entries": [],
            "key_group_bytes": [],
            **dict.fromkeys(measured, 1),
        }
        for index in indices
    ]


class TestAttempts:
    def test_only_later_attempts_of_the_causes_count(self, rows: Rows) -> None:
        for number, cause in ((3, "rescale"), (4, "rescale"), (5, "start"), (6, "upgrade")):
            rows.attempt(number, cause=cause)
        rows.attempt(7, job_id="other", cause="rescale")
        assert attempts.count_after(rows.session, "mine", 3, ("rescale", "upgrade")) == 2

    def test_only_attempts_created_since_a_time_count(self, rows: Rows) -> None:
        for number, created_at_ms in ((3, 8), (4, 9), (5, 10)):
            rows.attempt(number, created_at_ms=created_at_ms)
        rows.attempt(7, job_id="other", created_at_ms=9)
        assert attempts.count_since(rows.session, "mine", 9) == 2

    def test_the_newest_finished_restore_is_shown_with_the_number_of_all(self, rows: Rows) -> None:
        assert attempts.restores(rows.session, "mine") is None
        rows.attempt(1, restore_from="a", restored_at_ms=90)
        rows.attempt(2, restore_from="b", restored_at_ms=50)
        rows.attempt(3, restore_from="pending")
        rows.attempt(4, restored_at_ms=100)
        rows.attempt(5, job_id="other", restore_from="c", restored_at_ms=99)
        assert attempts.restores(rows.session, "mine") == attempts.Restores(2, 50, "b")

    def test_the_origins_of_pending_restores_are_among_the_origins(self, rows: Rows) -> None:
        rows.attempt(1, restore_from="a", restored_at_ms=1)
        rows.attempt(2, restore_from="a")
        rows.attempt(3, restore_from="b")
        rows.attempt(4)
        rows.attempt(5, job_id="other", restore_from="c")
        assert sorted(location for location, _ in attempts.restored_from(rows.session, "mine")) == ["a", "b"]

    def test_counters_come_from_the_newest_earlier_attempt_that_reported_some(self, rows: Rows) -> None:
        rows.attempt(1, metrics={"batches": 1})
        rows.attempt(2, metrics={"batches": 2})
        rows.attempt(3, heartbeat_at_ms=5)
        rows.attempt(4, metrics={"batches": 4})
        rows.attempt(3, job_id="other", metrics={"batches": 3})
        rows.attempt(5, job_id="other", metrics={"batches": 5})
        rows.attempt(5, heartbeat_at_ms=5)
        assert (newest := attempts.newest_counted(rows.session, "mine")) is not None
        assert newest.number == 4
        found = attempts.counted_before(rows.session, "mine", 4)
        assert found is not None
        assert found.number == 2
        assert attempts.counted_before(rows.session, "mine", 1) is None

    def test_the_first_attempt_that_carried_out_a_restore_is_found(self, rows: Rows) -> None:
        rows.attempt(1, restore_id="r", job_id="other", restored_at_ms=1)
        rows.attempt(1, restore_id="r")
        rows.attempt(2, restore_id="q", restored_at_ms=1)
        rows.attempt(3, restore_id="r", restored_at_ms=1)
        rows.attempt(4, restore_id="r", restored_at_ms=1)
        found = attempts.find_restored(rows.session, "mine", "r")
        assert found is not None
        assert found.number == 3

    def test_the_newest_earlier_attempt_that_has_restored_is_found(self, rows: Rows) -> None:
        for number, at_ms in ((1, 5), (2, 5), (3, None), (4, 5)):
            rows.attempt(number, restored_at_ms=at_ms)
        rows.attempt(3, job_id="other", restored_at_ms=5)
        assert attempts.newest_restored(rows.session, "mine", before=4) == 2
        assert attempts.newest_restored(rows.session, "mine", before=5) == 4
        assert attempts.newest_restored(rows.session, "mine", before=1) == 0

    @pytest.mark.parametrize(
        ("columns", "reported", "beside", "is_repetition"),
        [
            ({}, {}, {}, True),
            ({"stage": ENDED}, {}, {}, False),
            ({"stage": STANDBY}, {}, {}, False),
            ({"driver_state": "RESTORING"}, {}, {}, False),
            ({"sleep_requested_at_ms": 1}, {}, {}, False),
            ({"caught_up_at_ms": None}, {}, {}, False),
            ({"settled_at_ms": None}, {}, {}, False),
            ({}, {"revision": 2}, {}, False),
            ({}, {"restored_at_ms": 6}, {}, False),
            ({"restored_at_ms": None}, {"restored_at_ms": None}, {}, True),
            ({}, {"restored_at_ms": None}, {}, False),
            ({}, {"last_batch_id": 8}, {}, False),
            ({}, {"last_batch_id": None}, {}, False),
            ({"last_commit_batch_id": None}, {"last_batch_id": None}, {}, True),
            ({}, {"metrics_json": '{"batches": 2, "rate": 1.5}'}, {}, False),
            ({}, {"metrics_json": '{"rate":1.5,"batches":1}'}, {}, True),
            ({}, {}, {"command": {"old_attempt": 3}}, False),
            ({}, {}, {"command": {"old_attempt": 2}}, True),
            ({}, {}, {"command": {"old_attempt": 3, "job_id": "other"}}, True),
            ({}, {}, {"command": {"old_attempt": 3, "command_status": CommandStatus.COMPLETED}}, True),
            ({}, {}, {"look": {}}, False),
            ({}, {}, {"look": {"attempt": 2}}, True),
            ({}, {}, {"look": {"job_id": "other"}}, True),
            ({}, {}, {"look": {"ended_at_ms": 50}}, True),
            ({}, {}, {"look": {"until_ms": 60}}, True),
        ],
    )
    def test_a_heartbeat_is_a_repetition_only_if_nothing_has_happened(
        self, rows: Rows, columns: dict[str, Any], reported: dict[str, Any], beside: dict[str, Any], is_repetition: bool
    ) -> None:
        usual: dict[str, Any] = {"driver_state": "RUNNING", "revision": 1, "restored_at_ms": 5, "caught_up_at_ms": 1}
        usual |= {"settled_at_ms": 1, "metrics": {"batches": 1, "rate": 1.5}, "last_commit_batch_id": 7}
        usual |= {"heartbeat_at_ms": 40, "totals_before": {"records": 3}, "stage": ACTIVE}
        rows.attempt(3, **{**usual, **columns})
        rows.attempt(3, job_id="other", **usual)
        if "command" in beside:
            rows.command("command", **beside["command"])
        if "look" in beside:
            look = {"job_id": "mine", "attempt": 3, "requested_at_ms": 1, "until_ms": 61, **beside["look"]}
            of = {"kind": DiagnosticKind.THREAD_DUMP, "request": {}, "requested_by": "ann"}
            rows.session.add(Diagnostic(id="d", **of, **look))
            rows.session.flush()
        told: dict[str, Any] = {"metrics_json": '{"batches": 1, "rate": 1.5}', "last_batch_id": 7, "revision": 1}
        given = {**told, "restored_at_ms": 5, "at_ms": 60, **reported}
        found = attempts.repeat_heartbeat(rows.session, "mine", 3, **given)
        assert found == ((40, {"records": 3}) if is_repetition else None)
        rows.session.expire_all()
        seen = {job_id: attempts.find(rows.session, job_id, 3) for job_id in ("mine", "other")}
        times = {job_id: each and each.heartbeat_at_ms for job_id, each in seen.items()}
        assert times == {"mine": 60 if is_repetition else 40, "other": 40}

    def test_the_shown_attempt_is_the_active_one_or_the_newest_that_ran(self, rows: Rows) -> None:
        rows.attempt(8, ACTIVE, job_id="other")
        rows.change("elsewhere", job_id="other", new_attempt=1)
        rows.attempt(1)
        rows.attempt(2)
        rows.change("gone", new_attempt=2)
        found = attempts.latest(rows.session, "mine")
        assert found is not None
        assert found.number == 1, "attempt 2 only warmed up"
        rows.change("done", new_attempt=3, stopped_at_ms=4)
        rows.attempt(3)
        found = attempts.latest(rows.session, "mine")
        assert found is not None
        assert found.number == 3, "its change stopped the attempt before"
        rows.attempt(4, run=3)
        rows.change("given up", new_attempt=4, stopped_at_ms=5)
        found = attempts.latest(rows.session, "mine")
        assert found is not None
        assert found.number == 3, "attempt 4 was only reserved"
        rows.attempt(5, run=3, driver_state="STOPPED")
        found = attempts.latest(rows.session, "mine")
        assert found is not None
        assert found.number == 5, "its driver has opened it"
        rows.attempt(6, ACTIVE)
        rows.attempt(7, STANDBY)
        found = attempts.latest(rows.session, "mine")
        assert found is not None
        assert found.number == 6

    def test_an_attempt_that_was_only_reserved_is_neither_listed_nor_started(self, rows: Rows) -> None:
        rows.attempt(1, ACTIVE, launched_at_ms=1, driver_state="RUNNING")
        rows.attempt(2, AttemptStage.RESERVED, run=1)
        rows.attempt(3, AttemptStage.RESERVED, run=1)
        rows.attempt(4, AttemptStage.RESERVED, run=1, job_id="other")
        rows.attempt(5, job_id="other")

        def listed() -> list[int]:
            return [each.number for each in attempts.list_page(rows.session, "mine", PageRequest()).rows]

        assert listed() == [1]
        assert attempts.list_unlaunched(rows.session) == []
        assert attempts.list_unstarted(rows.session, ["STANDBY"]) == []
        reserved = attempts.all_of_stage(rows.session, "mine", AttemptStage.RESERVED)
        assert [each.number for each in reserved] == [2, 3]
        reserved[0].driver_state = "RUNNING"
        rows.session.flush()
        assert listed() == [2, 1], "its driver has opened it"
        assert attempts.numbers_of(rows.session, ["mine"]) == {"mine": {1, 2, 3}}

    def test_attempts_that_do_not_run_yet_and_those_that_were_never_launched_have_not_ended(self, rows: Rows) -> None:
        rows.attempt(1, ACTIVE)
        rows.attempt(2, STANDBY, launched_at_ms=1)
        rows.attempt(3)
        rows.attempt(4, ACTIVE, job_id="other", driver_state="WARM")
        rows.attempt(5, STANDBY, job_id="other", driver_state="RUNNING")
        unstarted = attempts.list_unstarted(rows.session, ["WARM"])
        assert sorted((each.number, created_at_ms) for each, created_at_ms in unstarted) == [(1, 1), (2, 1), (4, 1)]
        assert [tuple(each) for each in attempts.list_unlaunched(rows.session)] == [("mine", 1, ACTIVE, 1, 1)]
        assert [each.number for each in attempts.list_page(rows.session, "mine", PageRequest()).rows] == [3, 2, 1]

    def test_a_driver_is_known_by_its_token_and_a_job_has_an_attempt_of_each_stage(self, rows: Rows) -> None:
        rows.attempt(2, STANDBY, token_sha256="two")  # noqa: S106 - a test's own
        rows.attempt(1, ACTIVE, token_sha256="one")  # noqa: S106 - a test's own
        rows.attempt(3, ACTIVE, job_id="other")
        assert attempts.find_by_token(rows.session, "one") == ("mine", 1, ACTIVE, "one")
        assert attempts.find_by_token(rows.session, "none") is None
        for stage, number in ((ACTIVE, 1), (STANDBY, 2)):
            assert (found := attempts.of_stage(rows.session, "mine", stage)) is not None
            assert (found.job_id, found.number) == ("mine", number)

    def test_the_attempts_before_one_that_ran_are_the_newest_since_a_time(self, rows: Rows) -> None:
        for number in (1, 2, 3, 5, 6):
            rows.attempt(number, created_at_ms=10 * number, assigned_at_ms=1)
        rows.attempt(4, created_at_ms=40)
        rows.attempt(4, job_id="other", created_at_ms=45, assigned_at_ms=1)

        def ran(limit: int) -> list[int]:
            return [each.number for each in attempts.ran_before(rows.session, "mine", 6, since_ms=20, limit=limit)]

        assert (ran(9), ran(2)) == ([5, 3, 2], [5, 3])
        first = [attempts.first_since(rows.session, "mine", *times) for times in ((15, 30), (20, 20), (41, 49))]
        assert [each and each.number for each in first] == [2, 2, None]

    def test_the_attempts_that_run_here_come_with_the_newest_start_first(self, rows: Rows) -> None:
        rows.attempt(1, launched_on="here:/home", driver_state="RUNNING")
        rows.attempt(2, ACTIVE, launched_on="here:/home", launched_at_ms=2, driver_state="RUNNING")
        rows.attempt(3, ACTIVE, job_id="other", launched_on="here:/home", launched_at_ms=3, driver_state="RESTORING")

        def running(limit: int = 9) -> list[str]:
            return [each.job_id for each in attempts.list_running(rows.session, "here:/home", limit)]

        assert running() == ["mine"]
        attempts.find(rows.session, "other", 3).driver_state = "RUNNING"  # type: ignore[union-attr]
        rows.session.flush()
        assert (running(), running(1)) == (["other", "mine"], ["other"])
        assert attempts.list_running(rows.session, "elsewhere:/home", 9) == []

    def test_the_last_attempt_of_a_job_that_restarts_counts_as_running(self, rows: Rows) -> None:
        here = {"launched_on": "here:/home", "driver_state": "FAILED"}
        for job_id, status in (("restarts", JobStatus.RESTARTING), ("failed", JobStatus.FAILED)):
            rows.job(job_id, status=status)
            rows.attempt(1, job_id=job_id, launched_at_ms=1, running_at_ms=1, **here)
            rows.attempt(2, job_id=job_id, launched_at_ms=2, running_at_ms=2, **here)
            rows.attempt(3, job_id=job_id, launched_at_ms=3, **here)
        rows.attempt(7, job_id="other", launched_at_ms=4, running_at_ms=4, **here)
        found = attempts.list_running(rows.session, "here:/home", 9)
        assert [(each.job_id, each.number) for each in found] == [("restarts", 2)]

    def test_attempts_without_a_commit_count_for_a_time(self, rows: Rows) -> None:
        rows.attempt(1, running_at_ms=5)
        rows.attempt(2, ACTIVE, running_at_ms=5)
        rows.attempt(3, ACTIVE, job_id="other", running_at_ms=5, first_commit_at_ms=6)
        assert attempts.count_uncommitted(rows.session, 5) == 1
        assert attempts.count_uncommitted(rows.session, 6) == 0

    def test_attempts_whose_processes_may_live_have_ended_and_are_not_reaped(self, rows: Rows) -> None:
        rows.attempt(1, reaped=True)
        rows.attempt(3)
        rows.attempt(2)
        rows.attempt(4, ACTIVE)
        rows.attempt(5, job_id="other")
        assert [one.number for one in attempts.unreaped(rows.session, "mine")] == [2, 3]

    def test_the_next_number_is_above_all_of_the_job(self, rows: Rows) -> None:
        assert attempts.next_number(rows.session, "mine") == 1
        rows.attempt(4)
        rows.attempt(9, job_id="other")
        assert attempts.next_number(rows.session, "mine") == 5

    def test_the_numbers_of_some_jobs_are_by_job(self, rows: Rows) -> None:
        rows.attempt(1)
        rows.attempt(2)
        rows.attempt(3, job_id="other")
        assert attempts.numbers_of(rows.session, ["mine"]) == {"mine": {1, 2}}

    def test_the_number_of_a_run_is_known_without_its_first_attempt(self, rows: Rows) -> None:
        rows.attempt(4, run=3)
        assert attempts.numbers_of(rows.session, ["mine"]) == {"mine": {3, 4}}

    def test_each_origin_comes_with_the_way_in_which_it_was_restored(self, rows: Rows) -> None:
        rows.attempt(1, restore_from="a", claim_mode=ClaimMode.CLAIM)
        rows.attempt(2, restore_from="a")
        rows.attempt(3, restore_from="b")
        rows.attempt(4, restore_from="b")
        assert sorted(attempts.restored_from(rows.session, "mine")) == [
            ("a", ClaimMode.CLAIM),
            ("a", ClaimMode.NO_CLAIM),
            ("b", ClaimMode.NO_CLAIM),
        ]

    def test_an_attempt_that_waits_for_its_launch_has_its_own_time_and_the_jobs(self, rows: Rows) -> None:
        rows.job("late", created_at_ms=70)
        rows.attempt(2, STANDBY, job_id="late", created_at_ms=90)
        rows.attempt(3, job_id="late", created_at_ms=80)
        rows.attempt(4, ACTIVE, job_id="late", created_at_ms=95, launched_at_ms=96)
        unlaunched = attempts.list_unlaunched(rows.session)
        assert [tuple(each) for each in unlaunched] == [("late", 2, STANDBY, 90, 70)]
        unstarted = attempts.list_unstarted(rows.session, [])
        assert sorted((each.number, created_at_ms) for each, created_at_ms in unstarted) == [(2, 70), (4, 70)]

    @pytest.mark.parametrize("status", JobStatus)
    def test_the_last_attempt_of_a_job_that_goes_on_counts_as_running(self, rows: Rows, status: JobStatus) -> None:
        rows.set_job(status=status)
        rows.attempt(1, launched_on="here:/home", launched_at_ms=1, running_at_ms=1)
        goes_on = {JobStatus.RUNNING, JobStatus.SLEEPING, JobStatus.SAVEPOINTING, JobStatus.RESCALING}
        goes_on |= {JobStatus.UPGRADING, JobStatus.RESTARTING}
        assert len(attempts.list_running(rows.session, "here:/home", 9)) == (status in goes_on)

    def test_a_row_that_another_transaction_has_changed_is_read_again(self, rows: Rows) -> None:
        known = rows.attempt(1, ACTIVE)
        job, change = rows.set_job(), rows.change("move", status=OperationStatus.IN_PROGRESS)
        read_again: list[Callable[[], Any]] = [
            lambda: attempts.find(rows.session, "mine", 1, lock=True),
            lambda: attempts.of_stage(rows.session, "mine", ACTIVE),
            lambda: attempts.all_of_stage(rows.session, "mine", ACTIVE)[0],
            lambda: jobs.lock(rows.session, "mine"),
            lambda: operations.find(rows.session, "move"),
            lambda: operations.find(rows.session, "move", lock=True),
            lambda: operations.running(rows.session, "mine"),
        ]
        as_others_do = {"synchronize_session": False}
        for number, read in enumerate(read_again, 10):
            rows.session.execute(update(Attempt).values(pid=number), execution_options=as_others_do)
            rows.session.execute(update(Job).values(restarts=number), execution_options=as_others_do)
            rows.session.execute(update(Operation).values(checkpoint_id=number), execution_options=as_others_do)
            read()
            assert number in {known.pid, job.restarts, change.checkpoint_id}, number


class TestChanges:
    def test_progress_belongs_to_the_change_that_created_the_attempt(self, rows: Rows) -> None:
        mine, older = rows.change("mine", new_attempt=3, old_attempt=2), rows.change("older", new_attempt=2)
        foreign = rows.change("foreign", job_id="other", new_attempt=3)
        operations.note_progress(rows.session, "mine", 3, 70, {"rate": 1})
        for change in (mine, older, foreign):
            rows.session.refresh(change)
        assert (mine.caught_up_at_ms, mine.metrics_after) == (70, {"rate": 1})
        assert older.caught_up_at_ms is foreign.caught_up_at_ms is None

    def test_the_newest_change_to_each_revision_is_found(self, rows: Rows) -> None:
        rows.revision(2)
        rows.revision(3)
        rows.change("b", at_ms=20, to_revision=2)
        rows.change("a", at_ms=10, to_revision=2)
        rows.change("c", at_ms=30, to_revision=3)
        rows.change("d", at_ms=40, job_id="other", to_revision=2)
        rows.change("e", at_ms=50, from_revision=2, to_revision=2)
        rows.change("bb", at_ms=20, to_revision=2)
        rows.revision(2, job_id="other")
        found = operations.last_to(rows.session, "mine", [1, 2])
        assert {number: change.id for number, change in found.items()} == {2: "bb"}

    def test_past_downtimes_are_of_completed_changes_of_the_kind_with_the_newest_first(self, rows: Rows) -> None:
        for name, at_ms, downtime, columns in (
            ("a", 1, 100, {}),
            ("b", 2, 200, {}),
            ("c", 3, 300, {}),
            ("d", 4, 400, {"status": OperationStatus.ROLLED_BACK}),
            ("e", 5, 500, {"kind": OperationKind.UPGRADE}),
            ("f", 6, 600, {"job_id": "other"}),
            ("h", 8, 700, {"rescale_mode": RescaleMode.LIVE}),
        ):
            rows.change(name, at_ms=at_ms, stopped_at_ms=1000, resumed_at_ms=1000 + downtime, **columns)
        rows.change("g", at_ms=7, resumed_at_ms=5)
        assert operations.last_downtimes(rows.session, "mine", OperationKind.RESCALE, None, 2) == [300, 200]
        assert operations.last_downtimes(rows.session, "mine", OperationKind.RESCALE, RescaleMode.LIVE, 2) == [700]

    def test_the_last_warm_ups_end_with_the_first_phase_of_their_change_and_are_the_newest_first(
        self, rows: Rows
    ) -> None:
        for number in range(2, 8):
            rows.attempt(number, attached_at_ms=None if number == 7 else 1000)
        rows.attempt(2, job_id="other", attached_at_ms=1000)

        def change(new: int, next_at_ms: int | None, **columns: Any) -> None:
            begun = [{"phase": "REQUESTED", "started_at_ms": 1, "ended_at_ms": next_at_ms}]
            later = [{"phase": "SAVEPOINT", "started_at_ms": next_at_ms, "ended_at_ms": None}]
            phases = begun if next_at_ms is None else begun + later
            owner = columns.get("job_id", "mine")
            rows.change(f"{owner}-{new}", at_ms=new, new_attempt=new, phases=phases, **columns)

        change(2, 1200)
        change(3, 1300)
        change(4, 1_700_000_001_400, kind=OperationKind.UPGRADE)
        change(5, None, status=OperationStatus.ROLLED_BACK)
        change(6, 900)  # a later attempt of its change
        change(7, 1700)
        change(2, 1999, job_id="other")
        rows.attempt(8, attached_at_ms=1000)
        change(8, 1800, rescale_mode=RescaleMode.LIVE)
        assert operations.last_warm_ups(rows.session, "mine", 2) == [1_700_000_000_400, 300]
        assert operations.last_warm_ups(rows.session, "mine", 9) == [1_700_000_000_400, 300, 200]

    def test_ended_operations_of_all_jobs_are_in_exactly_one_of_two_intervals_that_follow(self, rows: Rows) -> None:
        for ended_at_ms, job_id in ((10, "mine"), (20, "other"), (30, "mine"), (40, "mine"), (None, "mine")):
            rows.change(f"at {ended_at_ms}", job_id=job_id, ended_at_ms=ended_at_ms)
        first, second = (operations.ended_between(rows.session, *times) for times in ((10, 30), (30, 40)))
        assert [[one.id for one in found] for found in (first, second)] == [["at 20", "at 30"], ["at 40"]]

    def test_a_list_of_one_kind_or_status_leaves_out_the_others(self, rows: Rows) -> None:
        rows.change("a", at_ms=2)
        rows.change("b", at_ms=1)
        rows.change("c", at_ms=3, kind=OperationKind.UPGRADE)
        page = PageRequest()
        assert [one.id for one in operations.list_page(rows.session, "mine", page).rows] == ["c", "a", "b"]
        of_kind = operations.list_page(rows.session, "mine", page, kinds={OperationKind.RESCALE})
        assert [one.id for one in of_kind.rows] == ["a", "b"]
        rows.change("d", at_ms=4, status=OperationStatus.FAILED)
        rows.change("elsewhere", at_ms=4, job_id="other")
        rows.change("of the same time", at_ms=4)
        last_first = operations.list_page(rows.session, "mine", PageRequest(limit=2))
        assert [one.id for one in last_first.rows] == ["of the same time", "d"]
        rest = operations.list_page(rows.session, "mine", PageRequest(limit=2, after=last_first.next))
        assert [one.id for one in rest.rows] == ["c", "a"]
        failed = operations.list_page(rows.session, "mine", page, statuses={OperationStatus.FAILED})
        assert [one.id for one in failed.rows] == ["d"]

    def test_operations_are_found_by_their_ids_and_one_waits_for_an_approval(self, rows: Rows) -> None:
        rows.change("a", status=OperationStatus.PENDING_APPROVAL)
        rows.change("b")
        rows.change("c", job_id="other", status=OperationStatus.PENDING_APPROVAL)
        assert (found := operations.find(rows.session, "b")) is not None
        assert found.id == "b"
        assert sorted(one.id for one in operations.find_all(rows.session, ["b", "c", "none"])) == ["b", "c"]
        assert (waiting := operations.waiting(rows.session, "mine")) is not None
        assert waiting.id == "a"

    def test_a_change_without_metrics_since_then_has_none_in_the_database(self, rows: Rows) -> None:
        rows.change("mine", new_attempt=3, metrics_after={"rate": 1})
        operations.note_progress(rows.session, "mine", 3, 70, None)
        without = select(Operation.id).where(Operation.metrics_after.is_(None))
        assert rows.session.scalars(without).all() == ["mine"]

    def test_operations_whose_savepoint_may_be_there_unheard_come_with_the_store_of_their_job(self, rows: Rows) -> None:
        for job_id in ("mine", "other"):
            rows.attempt(1, job_id=job_id)
        rows.attempt(2, ACTIVE)
        failed: dict[str, Any] = {"command_status": CommandStatus.FAILED, "kind": OperationKind.STOP}
        for name, columns in (
            ("early", {"ended_at_ms": 49}),
            ("first", {"ended_at_ms": 50}),
            ("heard", {"command_status": CommandStatus.COMPLETED}),
            ("checkpoint", {"kind": OperationKind.CHECKPOINT}),
            ("live", {"kind": OperationKind.RESCALE, "rescale_mode": RescaleMode.LIVE}),
            ("of a driver that lives", {"old_attempt": 2}),
            ("listed", {}),
            ("listed as subsumed", {}),
            ("listed as failed", {"ended_at_ms": 70}),
            ("listed as unfinished", {"ended_at_ms": 80}),
            ("elsewhere", {"job_id": "other", "ended_at_ms": 90}),
        ):
            rows.command(name, **{"ended_at_ms": 60, **failed, **columns})
        for number, (name, status) in enumerate(
            (
                ("listed", COMPLETED),
                ("listed as subsumed", SUBSUMED),
                ("listed as failed", FAILED),
                ("listed as unfinished", CheckpointStatus.IN_PROGRESS),
                ("elsewhere", COMPLETED),
            ),
            1,
        ):
            rows.checkpoint(number, status, savepoint_id=name, is_savepoint=True)
        assert [(each.id, store) for each, store in operations.without_savepoint(rows.session, 50)] == [
            ("elsewhere", "file:///other"),
            ("listed as unfinished", "file:///mine"),
            ("listed as failed", "file:///mine"),
            ("first", "file:///mine"),
        ]


class TestCommands:
    @pytest.mark.parametrize(
        ("columns", "command", "is_wanted"),
        [
            ({"revision": 1}, {}, False),
            ({"revision": 2}, {}, True),
            ({"revision": 1, "stage": STANDBY}, {}, True),
            ({"revision": 1}, {"old_attempt": 3}, True),
            ({"revision": 1}, {"old_attempt": 2}, False),
            ({"revision": 1}, {"old_attempt": 3, "job_id": "other"}, False),
            ({"revision": 1}, {"old_attempt": 3, "command_status": CommandStatus.COMPLETED}, False),
        ],
    )
    def test_a_driver_is_wanted_for_a_command_other_settings_or_another_attempt(
        self, rows: Rows, columns: dict[str, Any], command: dict[str, Any], is_wanted: bool
    ) -> None:
        rows.revision(2)
        rows.attempt(3, **{"stage": ACTIVE, **columns})
        rows.attempt(3, ACTIVE, job_id="other", revision=1)
        if command:
            rows.command("command", **command)
        driver = operations.Listening("mine", 3, 1)
        beside = operations.Listening("other", 3, 1)
        wanted = operations.wanted(rows.session, [driver, beside])
        assert (driver in wanted) is is_wanted
        assert (beside in wanted) is (command.get("job_id") == "other")

    @pytest.mark.parametrize(
        ("columns", "is_wanted"),
        [
            ({}, True),
            ({"attempt": 2}, False),
            ({"job_id": "other"}, False),
            ({"ended_at_ms": 5}, False),
            ({"until_ms": 10**11}, False),
        ],
    )
    def test_a_driver_is_wanted_for_a_diagnostic_until_it_has_answered_or_the_time_is_over(
        self, rows: Rows, columns: dict[str, Any], is_wanted: bool
    ) -> None:
        rows.attempt(3, ACTIVE)
        rows.diagnostic("look", **{"attempt": 3, "until_ms": 10**14, **columns})
        driver = operations.Listening("mine", 3, 1)
        assert operations.wanted(rows.session, [driver]) == ({driver} if is_wanted else set())

    def test_a_driver_gets_the_open_commands_of_its_attempt_in_their_order(self, rows: Rows) -> None:
        rows.command("z", at_ms=1)
        rows.command("b", at_ms=2)
        rows.command("a", at_ms=2)
        rows.command("done", command_status=CommandStatus.COMPLETED)
        rows.command("later", old_attempt=2)
        rows.command("foreign", job_id="other")
        assert [one.id for one in operations.pending(rows.session, "mine", 1)] == ["z", "a", "b"]
        assert operations.count_pending(rows.session, "mine") == 4

    def test_a_result_belongs_to_the_command_that_the_driver_knows(self, rows: Rows) -> None:
        rows.command("stop", kind=OperationKind.STOP)
        rows.change("wider")
        found = {name: operations.find_commanded(rows.session, name) for name in ("stop", "rescale:wider")}
        assert {name: one and one.id for name, one in found.items()} == {"stop": "stop", "rescale:wider": "wider"}
        for unknown in ("wider", "upgrade:wider", "stop:stop", "none"):
            assert operations.find_commanded(rows.session, unknown) is None

    def test_one_operation_moves_a_job_and_snapshots_and_a_cancel_are_beside_it(self, rows: Rows) -> None:
        now = {"status": OperationStatus.IN_PROGRESS}
        rows.change("ended")
        rows.change("elsewhere", job_id="other", **now)
        for kind in (OperationKind.SAVEPOINT, OperationKind.CHECKPOINT, OperationKind.CANCEL):
            rows.command(kind, kind=kind, **now)
        assert operations.running(rows.session, "mine") is None
        rows.command("stop", kind=OperationKind.STOP, **now)
        running = operations.running(rows.session, "mine")
        assert running is not None
        assert running.id == "stop"
        assert len(operations.in_progress(rows.session, "mine")) == 4
        with pytest.raises(IntegrityError):
            rows.command("start", kind=OperationKind.START, **now)

    def test_a_policy_knows_the_last_savepoint_that_it_has_requested_of_a_running_job(self, rows: Rows) -> None:
        for job_id in ("mine", "other"):
            rows.revision(2, job_id=job_id, savepoints={"interval_ms": 5, "keep_count": 3})
        rows.revision(3, savepoints={"keep_count": 3})

        def known() -> list[tuple[str, int | None, OperationStatus | None]]:
            found = savepoint_policies.running_policies(rows.session)
            return [(each.job_id, each.requested_at_ms, each.status) for each in found]

        rows.set_job(status=JobStatus.RUNNING, revision=2)
        rows.set_job("other", status=JobStatus.RUNNING, revision=1)
        assert known() == [("mine", None, None)], "the policy has requested no savepoint yet"
        rows.command("first", at_ms=10, requested_by=SAVEPOINT_POLICY, status=OperationStatus.COMPLETED)
        rows.command("second", at_ms=20, requested_by=SAVEPOINT_POLICY, status=OperationStatus.FAILED)
        rows.command("of a user", at_ms=30, requested_by="ann")
        rows.command("elsewhere", at_ms=40, requested_by=SAVEPOINT_POLICY, job_id="other")
        rows.command("another kind", at_ms=50, requested_by=SAVEPOINT_POLICY, kind=OperationKind.CHECKPOINT)
        assert known() == [("mine", 20, OperationStatus.FAILED)]
        rows.set_job(revision=3)
        assert known() == [], "without an interval the policy takes no savepoints"
        rows.set_job(revision=2, status=JobStatus.RESCALING)
        assert known() == []

    def test_the_savepoints_of_a_policy_are_those_that_no_change_took_and_no_user_keeps(self, rows: Rows) -> None:
        rows.revision(2, savepoints={"keep_count": 3})
        rows.set_job(revision=2)
        rows.command("of a policy")
        rows.change("of a change")
        own = {"is_savepoint": True, "savepoint_id": "of a policy", "owner": SnapshotOwner.PLATFORM}
        rows.checkpoint(1, **own)
        rows.checkpoint(2, **own)
        rows.checkpoint(3, **{**own, "owner": SnapshotOwner.USER})
        rows.checkpoint(4, CheckpointStatus.DISCARDED, **own)
        rows.checkpoint(5, **{**own, "savepoint_id": "of a change"})
        rows.checkpoint(6, **{**own, "is_savepoint": False})
        rows.command("elsewhere", job_id="other")
        rows.checkpoint(7, job_id="other", **{**own, "savepoint_id": "elsewhere"})
        rows.checkpoint(8, **{**own, "savepoint_id": "elsewhere"})
        found = savepoint_policies.kept_savepoints(rows.session)
        assert [each.savepoint.checkpoint_id for each in found] == [2, 1, 7]
        assert found[0].settings == {"keep_count": 3}

    def test_a_revision_goes_back_to_the_savepoint_of_its_last_attempt_that_ran(self, rows: Rows) -> None:
        stop: dict[str, Any] = {"kind": OperationKind.STOP, "command_status": CommandStatus.COMPLETED}
        rows.attempt(1, assigned_at_ms=1)
        rows.attempt(2, assigned_at_ms=1)
        rows.attempt(3)
        rows.attempt(4, job_id="other", assigned_at_ms=1)
        rows.command("elsewhere", job_id="other", old_attempt=2, location="elsewhere", **stop)
        rows.command("failed", old_attempt=2, location="failed", **{**stop, "command_status": CommandStatus.FAILED})
        rows.command("first", old_attempt=1, location="first", **stop)
        rows.command("savepoint", old_attempt=2, location="aside", command_status=CommandStatus.COMPLETED)
        assert operations.last_savepoint_of(rows.session, "mine", 1) is None, "attempt 2 has not stopped with one"
        rows.command("second", old_attempt=2, location="second", **stop)
        assert operations.last_savepoint_of(rows.session, "mine", 1) == "second"
        assert operations.last_savepoint_of(rows.session, "mine", 2) is None
        rows.checkpoint(1, is_savepoint=True, external_path="first", discard_requested_at_ms=1)
        rows.checkpoint(3, is_savepoint=True, external_path="second")
        rows.checkpoint(1, job_id="other", is_savepoint=True, external_path="second", discard_requested_at_ms=1)
        assert operations.last_savepoint_of(rows.session, "mine", 1) == "second"
        rows.checkpoint(2, is_savepoint=True, external_path="second", discard_requested_at_ms=1)
        assert operations.last_savepoint_of(rows.session, "mine", 1) is None, "a user has deleted it"


class TestCheckpoints:
    def test_removed_checkpoints_are_among_the_counts(self, rows: Rows) -> None:
        rows.checkpoint(1)
        rows.checkpoint(2, FAILED)
        rows.checkpoint(3, job_id="other")
        sums = ("checkpointed_size", "state_size_max", "end_to_end_duration", "end_to_end_duration_max")
        for day, completed, failed in ((1, 10, 2), (2, 20, 3)):
            zeros = dict.fromkeys((*sums, "processed_records"), 0)
            rows.session.add(CheckpointDay(job_id="mine", day=day, completed=completed, failed=failed, **zeros))
        rows.session.flush()
        assert dict(checkpoints.counts(rows.session, "mine")) == {COMPLETED: 1, FAILED: 6, SUBSUMED: 30}

    def test_statistics_are_of_the_newest_checkpoints_of_the_statuses(self, rows: Rows) -> None:
        for number, status in ((1, COMPLETED), (2, SUBSUMED), (3, FAILED), (4, COMPLETED)):
            rows.checkpoint(number, status, state_size=100 * number, processed_records=7 * number)
        rows.checkpoint(5, job_id="other")
        found = checkpoints.sizes(rows.session, "mine", {COMPLETED, SUBSUMED}, 2)
        assert (sorted(found.checkpointed_size), sorted(found.state_size)) == ([2, 4], [200, 400])
        assert (sorted(found.end_to_end_duration), sorted(found.processed_records)) == ([2, 4], [14, 28])

    def test_the_latest_are_the_newest_checkpoint_savepoint_and_failure_of_either(self, rows: Rows) -> None:
        for number, status, is_savepoint in (
            (1, COMPLETED, False),
            (2, COMPLETED, True),
            (3, COMPLETED, False),
            (4, FAILED, True),
            (5, FAILED, False),
            (6, SUBSUMED, False),
        ):
            rows.checkpoint(number, status, is_savepoint=is_savepoint)
        found = checkpoints.latest(rows.session, "mine")
        shown = [one and one.checkpoint_id for one in (found.completed, found.savepoint, found.failed)]
        assert shown == [3, 2, 5]
        rows.checkpoint(7, is_savepoint=True)
        rows.checkpoint(8, FAILED, is_savepoint=True)
        rows.checkpoint(9, job_id="other")
        again = checkpoints.latest(rows.session, "mine")
        assert [one and one.checkpoint_id for one in (again.completed, again.savepoint, again.failed)] == [3, 7, 8]
        saved = checkpoints.list_savepoints(rows.session, "mine", PageRequest()).rows
        assert [one.checkpoint_id for one in saved] == [7, 2]

    def test_failures_of_an_interval_began_within_it_with_both_ends(self, rows: Rows) -> None:
        for number in (1, 2, 3, 4):
            rows.checkpoint(number, FAILED)
        rows.checkpoint(5, trigger_timestamp=25)
        rows.checkpoint(3, FAILED, job_id="other")
        found = checkpoints.failed_between(rows.session, "mine", 20, 30, limit=9)
        assert [one.checkpoint_id for one in found] == [3, 2]
        assert checkpoints.failed_between(rows.session, "mine", 0, 30, limit=1) == [], "only the newest is read"

    def test_the_latest_snapshot_is_of_the_attempts_since_one_and_was_complete_before_a_time(self, rows: Rows) -> None:
        rows.checkpoint(1, attempt=1)
        rows.checkpoint(2, attempt=2)
        rows.checkpoint(3, FAILED, attempt=3)
        rows.checkpoint(4, job_id="other", trigger_timestamp=10)

        def found(**limits: int) -> int | None:
            latest = checkpoints.latest_completed(rows.session, "mine", **limits)
            return None if latest is None else latest.checkpoint_id

        assert (found(), found(since_attempt=2), found(since_attempt=3)) == (2, 2, None)
        assert (found(before_ms=26), found(before_ms=25), found(before_ms=15)) == (2, 1, None)

    def test_a_checkpoints_number_is_never_used_again(self, rows: Rows) -> None:
        assert checkpoints.next_id(rows.session, "mine") == 1
        rows.checkpoint(7, FAILED)
        rows.checkpoint(9, job_id="other")
        assert checkpoints.next_id(rows.session, "mine") == 8

    def test_a_report_replaces_the_parts_of_its_checkpoint_and_no_others(self, rows: Rows) -> None:
        first, second = rows.checkpoint(1), rows.checkpoint(2)
        for beside in (first, rows.checkpoint(2, job_id="other")):
            checkpoints.store_subtasks(rows.session, beside, parts(1, (0, 1, 2)))
        checkpoints.store_subtasks(rows.session, second, parts(2, (0, 1, 2)) + parts(2, (0, 1), "also"))

        def found(number: int, job_id: str = "mine") -> list[tuple[str, int, int]]:
            rows.session.expire_all()
            stored: Sequence[CheckpointSubtask] = checkpoints.subtasks(rows.session, job_id, number)
            return [(part.operator_uid, part.subtask, part.state_size) for part in stored]

        checkpoints.store_subtasks(rows.session, second, parts(3, (0, 1)) + parts(3, (0,), "also"))
        assert found(2) == [("also", 0, 3), ("count", 0, 3), ("count", 1, 3)]
        checkpoints.store_subtasks(rows.session, second, parts(4, (0,)))
        assert found(2) == [("count", 0, 4)]
        for number, job_id in ((1, "mine"), (2, "other")):
            assert found(number, job_id) == [("count", 0, 1), ("count", 1, 1), ("count", 2, 1)]

    def test_the_newest_snapshots_with_parts_are_complete_ones(self, rows: Rows) -> None:
        for number, status in ((1, COMPLETED), (2, SUBSUMED), (3, FAILED), (4, CheckpointStatus.IN_PROGRESS)):
            checkpoints.store_subtasks(rows.session, rows.checkpoint(number, status), parts(number, (0,)))
        rows.checkpoint(5)
        checkpoints.store_subtasks(rows.session, rows.checkpoint(5, job_id="other"), parts(5, (0,)))
        newest = checkpoints.latest_with_parts(rows.session, "mine", 9)
        assert [one.checkpoint_id for one in newest] == [2, 1]
        assert len(checkpoints.latest_with_parts(rows.session, "mine", 1)) == 1

    def test_the_parts_of_one_operator_are_by_index(self, rows: Rows) -> None:
        stored = rows.checkpoint(1)
        checkpoints.store_subtasks(rows.session, stored, parts(1, (1, 0)) + parts(1, (0,), "join"))
        for beside in (rows.checkpoint(2), rows.checkpoint(1, job_id="other")):
            checkpoints.store_subtasks(rows.session, beside, parts(2, (2,)))
        of_one = checkpoints.parts_of(rows.session, "mine", [1], "count")
        assert [(part.operator_uid, part.subtask) for part in of_one] == [("count", 0), ("count", 1)]
        assert len(checkpoints.parts_of(rows.session, "mine", [1], None)) == 3

    def test_only_named_complete_checkpoints_are_subsumed(self, rows: Rows) -> None:
        made = [
            rows.checkpoint(1),
            rows.checkpoint(2, is_savepoint=True),
            rows.checkpoint(3, FAILED),
            rows.checkpoint(4),
            rows.checkpoint(1, job_id="other"),
        ]
        checkpoints.mark_subsumed(rows.session, "mine", [1, 2, 3])
        rows.session.expire_all()
        assert [one.status for one in made] == [SUBSUMED, COMPLETED, FAILED, COMPLETED, COMPLETED]

    def test_only_unfinished_checkpoints_of_the_attempt_fail_with_it(self, rows: Rows) -> None:
        unfinished = CheckpointStatus.IN_PROGRESS
        lost = rows.checkpoint(1, unfinished, attempt=1)
        others = [
            rows.checkpoint(2, attempt=1),
            rows.checkpoint(3, unfinished, attempt=2),
            rows.checkpoint(4, unfinished, attempt=1, job_id="other"),
        ]
        assert checkpoints.fail_unfinished(rows.session, "mine", 1, at_ms=8, message="why") == 1
        rows.session.expire_all()
        assert (lost.status, lost.failure_timestamp, lost.failure_message) == (FAILED, 8, "why")
        assert all(one.failure_timestamp is None for one in others)

    def test_of_two_rows_of_a_savepoint_or_a_location_the_newest_counts(self, rows: Rows) -> None:
        for number in (1, 2):
            rows.checkpoint(number, is_savepoint=True, savepoint_id="s", external_path="here")
        rows.checkpoint(3, job_id="other", savepoint_id="s", external_path="here")
        rows.checkpoint(3, is_savepoint=True, savepoint_id="t", external_path="there")
        by_id = checkpoints.find_savepoint(rows.session, "mine", "s")
        by_path = checkpoints.find_by_path(rows.session, "mine", "here")
        assert (by_id and by_id.checkpoint_id, by_path and by_path.checkpoint_id) == (2, 2)

    def test_a_savepoint_that_was_published_but_not_reported_is_stored_for_its_own_attempt(self, rows: Rows) -> None:
        operation = rows.change("s", kind=OperationKind.STOP, old_attempt=3, new_attempt=4)
        published = {"location": "there", "batch_id": 7, "state_size": 90, "created_at_ms": 50}
        checkpoints.store_published(rows.session, operation, checkpoint_id=5, **published)
        rows.session.flush()
        stored = rows.session.get_one(Checkpoint, ("mine", 5), populate_existing=True)
        columns = {name: getattr(stored, name) for name in Checkpoint.__table__.columns.keys()}  # noqa: SIM118 - no dictionary
        assert {name: value for name, value in columns.items() if value is not None} == {
            "job_id": "mine",
            "checkpoint_id": 5,
            "attempt": 3,
            "status": COMPLETED,
            "is_savepoint": True,
            "savepoint_id": "s",
            "owner": SnapshotOwner.USER,
            "trigger_timestamp": 50,
            "latest_ack_timestamp": 50,
            "end_to_end_duration": 0,
            "checkpointed_size": 90,
            "state_size": 90,
            "processed_records": 0,
            "external_path": "there",
            "batch_id": 7,
            "num_subtasks": 0,
            "num_acknowledged_subtasks": 0,
        }

    @pytest.mark.parametrize("status", CheckpointStatus)
    def test_a_reported_savepoint_is_completed_if_it_is_the_same_and_has_not_ended_well(
        self, rows: Rows, status: CheckpointStatus
    ) -> None:
        operation = rows.change("s", old_attempt=3)
        failed = {"failure_timestamp": 1, "failure_message": "lost"}
        mine = rows.checkpoint(5, status, savepoint_id="s", attempt=2, state_size=1, checkpointed_size=2, **failed)
        another = rows.checkpoint(6, status, savepoint_id="t", state_size=1, **failed)
        published = {"location": "there", "batch_id": 7, "state_size": 90, "created_at_ms": 99}
        for number in (5, 6):
            checkpoints.store_published(rows.session, operation, checkpoint_id=number, **published)
        rows.session.flush()
        rows.session.expire_all()
        is_completed = status in {FAILED, CheckpointStatus.IN_PROGRESS}
        changed = (
            (COMPLETED, "there", 7, 90, 99, None, None) if is_completed else (status, None, None, 1, 55, 1, "lost")
        )
        names = ("status", "external_path", "batch_id", "state_size", "latest_ack_timestamp", *failed)
        assert tuple(getattr(mine, name) for name in names) == changed
        assert (mine.attempt, mine.trigger_timestamp, mine.checkpointed_size) == (2, 50, 2), "as reported"
        assert (another.status, another.external_path, another.state_size) == (status, None, 1)

    def test_a_savepoint_of_changed_state_is_outside_the_jobs_history_and_its_users(self, rows: Rows) -> None:
        facts = {"location": "there", "batch_id": 7, "state_size": 90, "created_at_ms": 50}
        checkpoints.store_changed(rows.session, "mine", "s", checkpoint_id=5, **facts)
        rows.session.flush()
        stored = rows.session.get_one(Checkpoint, ("mine", 5), populate_existing=True)
        assert (stored.attempt, stored.owner, stored.savepoint_id) == (0, SnapshotOwner.USER, "s")
        assert (stored.status, stored.is_savepoint, stored.external_path) == (COMPLETED, True, "there")
        assert (stored.batch_id, stored.state_size, stored.checkpointed_size) == (7, 90, 90)
        assert (stored.trigger_timestamp, stored.latest_ack_timestamp) == (50, 50)

    def test_checkpoints_of_the_asked_statuses_and_of_one_job_are_listed(self, rows: Rows) -> None:
        for number, status in enumerate((COMPLETED, FAILED, SUBSUMED, COMPLETED), 1):
            rows.checkpoint(number, status)
        rows.checkpoint(9, job_id="other")

        def listed(*statuses: CheckpointStatus) -> list[int]:
            found = checkpoints.list_page(rows.session, "mine", PageRequest(), statuses=statuses)
            return [each.checkpoint_id for each in found.rows]

        assert (listed(), listed(FAILED, SUBSUMED), listed(COMPLETED)) == ([4, 3, 2, 1], [3, 2], [4, 1])

    def test_requested_deletions_are_carried_out_in_the_order_of_the_requests(self, rows: Rows) -> None:
        rows.checkpoint(5, is_savepoint=True, external_path="five")
        assert checkpoints.first_discarded(rows.session, ()) is None
        rows.checkpoint(1, discard_requested_at_ms=30, is_savepoint=True, external_path="one")
        rows.checkpoint(2, discard_requested_at_ms=20, external_path="two")
        rows.checkpoint(3, discard_requested_at_ms=10, objects_deleted_at_ms=11, is_savepoint=True, external_path="3")
        rows.checkpoint(4, is_savepoint=True, external_path="four")
        first = checkpoints.first_discarded(rows.session, ())
        assert first is not None
        assert (first[0].checkpoint_id, first[1]) == (2, "file:///mine")
        second = checkpoints.first_discarded(rows.session, {("mine", 2), ("other", 1)})
        assert second is not None
        assert second[0].checkpoint_id == 1
        rows.checkpoint(3, discard_requested_at_ms=40, is_savepoint=True, external_path="elsewhere", job_id="other")
        assert checkpoints.waiting_discarded(rows.session, "mine") == ["one"]
        keys = {("mine", 1), ("mine", 4), ("other", 1)}
        assert checkpoints.discarded_among(rows.session, keys) == {("mine", 1)}
        assert checkpoints.is_discarded(rows.session, "3")
        assert not checkpoints.is_discarded(rows.session, "four")

    def test_the_savepoints_of_changes_are_complete_and_no_user_keeps_them(self, rows: Rows) -> None:
        own: dict[str, Any] = {"is_savepoint": True, "owner": SnapshotOwner.PLATFORM}
        rows.checkpoint(1, **own)
        rows.checkpoint(2, FAILED, **own)
        rows.checkpoint(3, **{**own, "owner": SnapshotOwner.USER})
        rows.checkpoint(4, **{**own, "is_savepoint": False})
        rows.checkpoint(5, job_id="other", **own)
        assert [one.checkpoint_id for one in checkpoints.of_changes(rows.session, "mine")] == [1]

    def test_a_verification_belongs_to_one_checkpoint(self, rows: Rows) -> None:
        verified, *others = rows.checkpoint(1), rows.checkpoint(2), rows.checkpoint(1, job_id="other")
        checkpoints.note_verification(rows.session, "mine", 1, {"files": 3})
        rows.session.expire_all()
        assert verified.verification == {"files": 3}
        assert [one.verification for one in others] == [None, None]
        for one in (verified, *others):
            assert checkpoints.find(rows.session, one.job_id, one.checkpoint_id) is one

    def test_the_checkpoints_of_a_deleted_job_go_a_few_at_a_time(self, rows: Rows) -> None:
        for number in (1, 2, 3):
            rows.checkpoint(number)
            rows.checkpoint(number, job_id="other")
        assert len(checkpoints.list_page(rows.session, "mine", PageRequest()).rows) == 3
        assert [checkpoints.delete_some(rows.session, "mine", 2) for _ in range(3)] == [2, 1, 0]
        assert len(checkpoints.list_page(rows.session, "other", PageRequest()).rows) == 3

    def test_savepoints_of_one_owner_or_of_both_are_listed(self, rows: Rows) -> None:
        for number, owner in ((1, SnapshotOwner.USER), (2, SnapshotOwner.PLATFORM), (3, SnapshotOwner.USER)):
            rows.checkpoint(number, is_savepoint=True, owner=owner)
        rows.checkpoint(4, owner=SnapshotOwner.USER)
        rows.checkpoint(5, SUBSUMED, is_savepoint=True, owner=SnapshotOwner.USER)
        rows.checkpoint(6, job_id="other", is_savepoint=True, owner=SnapshotOwner.USER)

        def listed(**chosen: SnapshotOwner) -> list[int]:
            found = checkpoints.list_savepoints(rows.session, "mine", PageRequest(), **chosen)
            return [each.checkpoint_id for each in found.rows]

        assert listed() == [3, 2, 1]
        assert (listed(owner=SnapshotOwner.USER), listed(owner=SnapshotOwner.PLATFORM)) == ([3, 1], [2])

    def test_the_counts_have_the_removed_checkpoints_of_the_job_alone(self, rows: Rows) -> None:
        sums = ("checkpointed_size", "state_size_max", "end_to_end_duration", "end_to_end_duration_max")
        for job_id, completed, failed in (("mine", 10, 2), ("other", 50, 60)):
            rows.session.add(
                CheckpointDay(
                    job_id=job_id,
                    day=1,
                    completed=completed,
                    failed=failed,
                    **dict.fromkeys((*sums, "processed_records"), 0),
                )
            )
        rows.session.flush()
        assert dict(checkpoints.counts(rows.session, "mine")) == {FAILED: 2, SUBSUMED: 10}

    def test_each_statistic_is_of_its_own_column_and_the_lists_are_in_one_order(self, rows: Rows) -> None:
        for number in (1, 2):
            measured = {"checkpointed_size": 10, "state_size": 20, "end_to_end_duration": 30, "processed_records": 40}
            rows.checkpoint(number, **{name: value + number for name, value in measured.items()})
        found = checkpoints.sizes(rows.session, "mine", {COMPLETED}, 9)
        columns = (found.checkpointed_size, found.state_size, found.end_to_end_duration, found.processed_records)
        assert set(zip(*columns, strict=True)) == {(11, 21, 31, 41), (12, 22, 32, 42)}
        assert checkpoints.sizes(rows.session, "mine", {FAILED}, 9) == checkpoints.Sizes((), (), (), ())

    def test_a_savepoint_of_changed_state_is_never_the_latest_snapshot(self, rows: Rows) -> None:
        rows.checkpoint(1)
        rows.checkpoint(2, attempt=0, is_savepoint=True)
        assert (found := checkpoints.latest_completed(rows.session, "mine")) is not None
        assert found.checkpoint_id == 1

    def test_a_second_report_replaces_every_value_of_a_part(self, rows: Rows) -> None:
        stored = rows.checkpoint(1)
        columns = [column.name for column in CheckpointSubtask.__table__.columns]
        keys = {"operator_uid": "count", "subtask": 0}
        values = {name: number for number, name in enumerate(columns, 100) if name not in {"job_id", "checkpoint_id"}}
        values |= {"status": COMPLETED, "key_group_entries": [1], "key_group_bytes": [2], **keys}
        values |= {"largest_key_groups": [{"key_group": 3}]}
        checkpoints.store_subtasks(rows.session, stored, parts(1, (0,)))
        checkpoints.store_subtasks(rows.session, stored, [values])
        rows.session.expire_all()
        [part] = checkpoints.subtasks(rows.session, "mine", 1)
        assert {name: getattr(part, name) for name in columns} == {"job_id": "mine", "checkpoint_id": 1, **values}


class TestSnapshotNeeds:
    @pytest.mark.parametrize(
        ("status", "taken", "is_needed"),
        [
            (JobStatus.RUNNING, 0, True),
            (JobStatus.RUNNING, 1, True),
            (JobStatus.RUNNING, 2, False),
            (JobStatus.STOPPED, 0, True),
            (JobStatus.STOPPED, 1, False),
        ],
    )
    def test_a_running_job_needs_its_origin_until_it_has_two_checkpoints_since(
        self, rows: Rows, status: JobStatus, taken: int, is_needed: bool
    ) -> None:
        rows.set_job(status=status)
        rows.attempt(4, restore_from="here")
        rows.checkpoint(1, attempt=3)
        rows.checkpoint(2, attempt=4, is_savepoint=True)
        rows.checkpoint(3, FAILED, attempt=4)
        for number in range(taken):
            rows.checkpoint(10 + number, attempt=4)
        found = snapshot_needs.restoring_jobs(rows.session, "here", [JobStatus.STOPPED])
        assert [job.id for job in found] == (["mine"] if is_needed else [])

    def test_checkpoints_that_were_subsumed_since_count_and_those_of_another_job_do_not(self, rows: Rows) -> None:
        rows.set_job(status=JobStatus.RUNNING)
        rows.attempt(4, restore_from="here")
        for number, columns in enumerate(({"job_id": "other"}, {"status": SUBSUMED}, {}), 10):
            assert snapshot_needs.restoring_jobs(rows.session, "here", []), number
            rows.checkpoint(number, **{"attempt": 4, **columns})
        assert snapshot_needs.restoring_jobs(rows.session, "here", []) == []

    def test_a_restore_counts_from_its_own_attempt_once_it_was_carried_out(self, rows: Rows) -> None:
        rows.set_job(status=JobStatus.RUNNING, restore={"id": "r", "location": "here"})
        for number, columns in enumerate(({"restore_id": "q"}, {"restore_id": "r"}, {"restore_id": "r"}), 1):
            rows.attempt(number, **columns)
            rows.checkpoint(number, attempt=number)
        assert snapshot_needs.restoring_jobs(rows.session, "here", []), "no attempt has carried it out"
        attempts.find(rows.session, "mine", 2).restored_at_ms = 5  # type: ignore[union-attr] # it is there
        rows.session.flush()
        assert snapshot_needs.restoring_jobs(rows.session, "here", []) == [], "two checkpoints since attempt 2"

    @pytest.mark.parametrize("status", OperationStatus)
    def test_only_changes_that_may_still_restore_need_a_snapshot(self, rows: Rows, status: OperationStatus) -> None:
        restore = {OperationKind.RESTART, OperationKind.RESCALE, OperationKind.UPGRADE, OperationKind.ROLLBACK}
        is_open = status in {OperationStatus.PENDING_APPROVAL, OperationStatus.IN_PROGRESS}
        for kind in OperationKind:
            rows.job(f"job-{kind}")
            rows.change(kind, job_id=f"job-{kind}", kind=kind, status=status, location="here", rewind_to="there")
            for location in ("here", "there"):
                found = snapshot_needs.running_changes(rows.session, f"job-{kind}", location)
                assert found == ([kind] if is_open and kind in restore else [])
            assert snapshot_needs.running_changes(rows.session, f"job-{kind}", "elsewhere") == []

    @pytest.mark.parametrize(
        ("taken", "later", "is_released"),
        [
            ({"kind": OperationKind.RESCALE}, None, True),
            ({"kind": OperationKind.RESTART}, None, True),
            ({"kind": OperationKind.UPGRADE}, None, False),
            ({"kind": OperationKind.ROLLBACK}, None, False),
            ({"kind": OperationKind.UPGRADE, "status": OperationStatus.CANCELLED}, None, True),
            ({"kind": OperationKind.UPGRADE, "status": OperationStatus.ROLLED_BACK}, None, True),
            ({"kind": OperationKind.UPGRADE, "status": OperationStatus.FAILED}, None, False),
            ({"kind": OperationKind.RESCALE, "status": OperationStatus.IN_PROGRESS}, None, False),
            ({"kind": OperationKind.SAVEPOINT}, None, False),
            ({"kind": OperationKind.UPGRADE}, {"kind": OperationKind.ROLLBACK}, True),
            ({"kind": OperationKind.UPGRADE}, {"status": OperationStatus.FAILED}, True),
            ({"kind": OperationKind.UPGRADE}, {"status": OperationStatus.ROLLED_BACK}, False),
            ({"kind": OperationKind.UPGRADE}, {"kind": OperationKind.RESCALE}, False),
            ({"kind": OperationKind.UPGRADE}, {"job_id": "other"}, False),
        ],
    )
    def test_the_savepoint_of_a_change_is_released_once_its_job_cannot_go_back_to_it(
        self, rows: Rows, taken: dict[str, Any], later: dict[str, Any] | None, is_released: bool
    ) -> None:
        own: dict[str, Any] = {"is_savepoint": True, "owner": SnapshotOwner.PLATFORM}
        rows.change("taken", at_ms=1, **taken)
        rows.checkpoint(5, savepoint_id="taken", **own)
        rows.checkpoint(4, savepoint_id="taken", job_id="other", **own)
        if later is not None:
            rows.change("later", at_ms=2, **{"kind": OperationKind.UPGRADE, **later})
            rows.checkpoint(6, savepoint_id="later", job_id=later.get("job_id", "mine"), **own)
        rows.checkpoint(4)
        rows.checkpoint(9, FAILED)
        rows.checkpoint(9, job_id="other")

        def released() -> list[tuple[str, int]]:
            found = snapshot_needs.releasable_savepoints(rows.session)
            return [(each.job_id, each.checkpoint_id) for each in found if each.savepoint_id == "taken"]

        if later is None or "job_id" in later:
            assert released() == [], "its job has no newer snapshot"
        rows.checkpoint(10)
        assert released() == ([("mine", 5)] if is_released else [])
        kept = rows.session.get_one(Checkpoint, ("mine", 5))
        kept.owner = SnapshotOwner.USER
        rows.session.flush()
        assert released() == [], "its user keeps it"

    def test_a_pending_restore_and_a_rewind_need_their_snapshots(self, rows: Rows) -> None:
        rows.set_job(restore={"location": "wanted"}, rewound_by=3, rewound_to="rewound")
        rows.attempt(3, restore_from="rewound")
        rows.attempt(4, restore_from="newer")
        for location in ("wanted", "rewound", "newer"):
            assert snapshot_needs.restoring_jobs(rows.session, location, [JobStatus.STOPPED]), location
        assert not snapshot_needs.restoring_jobs(rows.session, "elsewhere", [JobStatus.STOPPED])

    def test_a_change_needs_its_snapshots_while_it_is_in_progress(self, rows: Rows) -> None:
        rows.change("old", location="here", rewind_to="there")
        assert snapshot_needs.running_changes(rows.session, "mine", "here") == []
        rows.change("now", status=OperationStatus.IN_PROGRESS, location="here", rewind_to="there")
        for location in ("here", "there"):
            assert snapshot_needs.running_changes(rows.session, "mine", location) == ["now"]
        assert snapshot_needs.running_changes(rows.session, "other", "here") == []

    def test_earlier_revisions_keep_the_savepoint_that_they_stopped_with(self, rows: Rows) -> None:
        rows.revision(2)
        rows.revision(3)
        stop: dict[str, Any] = {
            "kind": OperationKind.STOP,
            "command_status": CommandStatus.COMPLETED,
            "location": "here",
        }
        for number in (1, 2, 3):
            rows.attempt(number, revision=number)
            rows.command(f"stop-{number}", old_attempt=number, **stop)
        rows.command("failed", old_attempt=1, **{**stop, "command_status": CommandStatus.FAILED, "location": "there"})
        rows.set_job(revision=3)
        assert snapshot_needs.revisions_kept_by(rows.session, "mine", "here") == [1, 2]
        assert snapshot_needs.revisions_kept_by(rows.session, "mine", "there") == []

    def test_the_newest_checkpoints_are_complete_and_no_savepoints(self, rows: Rows) -> None:
        for number in (1, 2, 3):
            rows.checkpoint(number)
        rows.checkpoint(4, is_savepoint=True)
        rows.checkpoint(5, SUBSUMED)
        rows.checkpoint(6, job_id="other")
        assert snapshot_needs.newest_checkpoints(rows.session, "mine", 2) == [3, 2]

    def test_only_a_stop_or_a_change_of_the_job_itself_keeps_a_revisions_last_state(self, rows: Rows) -> None:
        rows.revision(2)
        rows.set_job(revision=2)
        done: dict[str, Any] = {"command_status": CommandStatus.COMPLETED, "location": "here"}
        rows.attempt(1, revision=1)
        rows.attempt(1, revision=1, job_id="other")
        rows.set_job("other", revision=9)
        for kind in (OperationKind.CHECKPOINT, OperationKind.SAVEPOINT):
            rows.command(kind, kind=kind, **done)
        rows.command("elsewhere", kind=OperationKind.STOP, job_id="other", **done)
        assert snapshot_needs.revisions_kept_by(rows.session, "mine", "here") == []
        rows.command("stop", kind=OperationKind.STOP, **done)
        assert snapshot_needs.revisions_kept_by(rows.session, "mine", "here") == [1]


class TestJobSigns:
    def test_the_reconciler_gets_jobs_that_run_should_run_or_have_processes(self, rows: Rows) -> None:
        assert _to_reconcile(rows) == []
        rows.set_job(desired=DesiredState.RUNNING)
        assert _to_reconcile(rows) == ["mine"]
        rows.set_job(desired=DesiredState.CANCELLED, status=JobStatus.STOPPING)
        assert _to_reconcile(rows) == ["mine"]
        rows.set_job(desired=DesiredState.STOPPED, status=JobStatus.FAILED)
        assert _to_reconcile(rows) == []
        rows.attempt(1)
        assert _to_reconcile(rows) == ["mine"]

    def test_a_sign_has_the_last_signs_of_life_of_the_active_attempt(self, rows: Rows) -> None:
        rows.set_job(desired=DesiredState.RUNNING)
        rows.attempt(1, reaped=False, attached_at_ms=5, heartbeat_at_ms=6)
        rows.attempt(2, stage=AttemptStage.ACTIVE, attached_at_ms=7, heartbeat_at_ms=8)
        rows.attempt(3, stage=AttemptStage.STANDBY, attached_at_ms=9, heartbeat_at_ms=10)
        (sign,) = job_signs.to_reconcile(rows.session)
        assert sign[2:] == (2, 8, 7)

    @pytest.mark.parametrize("status", JobStatus)
    def test_a_job_that_shall_not_run_needs_the_reconciler_until_its_status_is_settled(
        self, rows: Rows, status: JobStatus
    ) -> None:
        rows.set_job(status=status)
        settled = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED}
        assert _to_reconcile(rows) == ([] if status in settled else ["mine"])

    def test_the_jobs_of_the_reconciler_come_with_the_oldest_first_and_without_reaped_attempts(
        self, rows: Rows
    ) -> None:
        rows.job("b", created_at_ms=5, desired=DesiredState.RUNNING)
        rows.job("a", created_at_ms=5, desired=DesiredState.RUNNING)
        rows.set_job("other", created_at_ms=3)
        rows.attempt(1, job_id="other", reaped=False)
        rows.attempt(1, reaped=True, attached_at_ms=5)
        rows.attempt(7, STANDBY, job_id="a", reaped=True, heartbeat_at_ms=8)
        rows.change("ended", job_id="b")
        found = [sign[:1] + sign[2:] for sign in job_signs.to_reconcile(rows.session)]
        assert found == [(job_id, None, None, None) for job_id in ("other", "a", "b")]

    def test_each_job_has_one_version_of_each_topic_with_its_labels(self, rows: Rows) -> None:
        rows.set_job(labels={"team": "a"})
        rows.attempt(1, reaped=True)
        found = job_versions.of_all_jobs(rows.session)
        assert found.keys() == {"mine", "other"}
        mine = found["mine"]
        assert (mine.name, mine.labels, mine.topics["metrics"]) == ("mine-name", {"team": "a"}, None)
        rows.attempt(2, ACTIVE, heartbeat_at_ms=5)
        rows.attempt(3, reaped=False)
        rows.attempt(9, ACTIVE, job_id="other")
        topics = job_versions.of_all_jobs(rows.session)["mine"].topics
        attempt_parts = [part.split(":")[0] for part in (topics["metrics"] or "").split(",")]
        assert (topics.keys(), attempt_parts) == ({"job", "metrics"}, ["2", "3"])
        assert topics["job"] == mine.topics["job"]

    def test_a_watched_job_has_the_versions_of_its_own_newest_rows(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        few = job_versions._WATCHED.replace(f"LIMIT {job_versions._NEWEST}", "LIMIT 2")
        monkeypatch.setattr(job_versions, "_WATCHED", few)
        nothing = {"checkpoints": None, "operations": None, "events": None, "metrics": None}
        found = job_versions.of_jobs(rows.session, ["mine", "gone"])
        assert found == {"mine": {"job": found["mine"]["job"], **nothing}}
        for job_id in ("mine", "other"):
            for number in (3, 1, 2):
                rows.checkpoint(number if job_id == "mine" else 10 + number, job_id=job_id)
                rows.change(f"{job_id}{number}", job_id=job_id, at_ms=number)
            rows.attempt(4, ACTIVE, job_id=job_id)
            rows.attempt(5, reaped=True, job_id=job_id)
        events_of = [
            Event(at_ms=1, kind="A", actor="a", message="m", details={}, job_id=of) for of in ("mine", "other")
        ]
        rows.session.add_all(events_of)
        rows.session.flush()
        [mine] = job_versions.of_jobs(rows.session, ["mine"]).values()
        versions = {name: sorted(part.split(":")[0] for part in str(text).split(",")) for name, text in mine.items()}
        assert {**versions, "job": []} == {
            "job": [],
            "metrics": ["4"],
            "checkpoints": ["2", "3"],
            "operations": ["mine2", "mine3"],
            "events": [str(events_of[0].id)],
        }

    @pytest.mark.real
    def test_a_mark_differs_after_each_change_except_a_repeated_heartbeat(self, rows: Rows) -> None:
        rows.set_job(desired=DesiredState.RUNNING)
        active = rows.attempt(1, stage=AttemptStage.ACTIVE, heartbeat_at_ms=1)
        versions = [job_signs.to_reconcile(rows.session)[0].version]
        for change in (
            lambda: rows.set_job(desired=DesiredState.CANCELLED),
            lambda: setattr(active, "driver_state", "RUNNING"),
            lambda: rows.change("rescale", status=OperationStatus.IN_PROGRESS),
            lambda: setattr(active, "heartbeat_at_ms", 2),
        ):
            with rows.session.begin_nested():  # which has a number of its own, like a transaction
                change()
            versions.append(job_signs.to_reconcile(rows.session)[0].version)
        assert len(set(versions)) == 4, versions
        assert versions[3] == versions[4], "the heartbeat"

    @pytest.mark.real
    def test_the_mark_of_a_start_differs_when_its_driver_reads_input_or_waits_for_it(self, rows: Rows) -> None:
        rows.set_job(desired=DesiredState.RUNNING)
        start = rows.change("start", kind=OperationKind.START, status=OperationStatus.IN_PROGRESS)
        active = rows.attempt(1, stage=AttemptStage.ACTIVE, metrics={"input_batches": 0, "waits_for_input": False})
        versions = [job_signs.to_reconcile(rows.session)[0].version]
        for metrics in (
            {"input_batches": 0, "waits_for_input": True},
            {"input_batches": 1, "waits_for_input": False},
            {"input_batches": 2, "waits_for_input": False},
        ):
            active.metrics = metrics
            rows.session.flush()
            versions.append(job_signs.to_reconcile(rows.session)[0].version)
        assert len(set(versions)) == 3
        assert versions[2] == versions[3], "further input"
        start.status = OperationStatus.COMPLETED
        rows.session.flush()
        versions = []
        for waits in (True, False):
            active.metrics = {"input_batches": 2, "waits_for_input": waits}
            rows.session.flush()
            versions.append(job_signs.to_reconcile(rows.session)[0].version)
        assert versions[0] == versions[1], "the start has ended"


class TestJobs:
    def test_stores_in_use_are_of_jobs_that_should_run(self, rows: Rows) -> None:
        rows.set_job(desired=DesiredState.RUNNING)
        assert jobs.stores_in_use(rows.session) == ["file:///mine"]

    def test_an_operation_belongs_to_its_job(self, rows: Rows) -> None:
        rows.command("savepoint")
        rows.change("change", job_id="other")
        found = [jobs.id_of_operation(rows.session, name) for name in ("savepoint", "change", "none")]
        assert found == ["mine", "other", None]

    def test_an_overview_has_the_active_attempt_and_the_newest_snapshots(self, rows: Rows) -> None:
        rows.attempt(1, ACTIVE, metrics={"batches": 5})
        rows.attempt(2, STANDBY)
        rows.checkpoint(1)
        rows.checkpoint(2, is_savepoint=True)
        rows.checkpoint(3, FAILED)
        rows.change("done")
        beside: dict[str, Any] = {"job_id": "other"}
        rows.attempt(1, job_id="other", metrics={"batches": 9})
        rows.attempt(7, ACTIVE, job_id="other")
        rows.checkpoint(8, **beside)
        rows.checkpoint(9, is_savepoint=True, **beside)
        rows.change("elsewhere", status=OperationStatus.IN_PROGRESS, **beside)
        rows.revision(2)
        for kind in (OperationKind.SAVEPOINT, OperationKind.CHECKPOINT, OperationKind.CANCEL):
            rows.command(kind, kind=kind, status=OperationStatus.IN_PROGRESS)
        found = overviews.find(rows.session, "mine-name")
        assert found is not None
        assert found.attempt is not None
        assert (found.attempt["number"], found.attempt["metrics"], found.operation_id) == (1, {"batches": 5}, None)
        assert found.checkpoint == overviews.LatestSnapshot(1, 15, 1, 1, 1)
        assert found.savepoint == overviews.LatestSnapshot(2, 25, 2, 2, 2)
        rows.change("now", status=OperationStatus.IN_PROGRESS, kind=OperationKind.UPGRADE)
        assert (again := overviews.of_jobs(rows.session, ["mine"])["mine"]).operation_id == "now"
        assert (again.operation_kind, again.operation_phases) == (OperationKind.UPGRADE, [])
        rows.checkpoint(4)
        for found in (overviews.find(rows.session, "mine"), overviews.of_jobs(rows.session, ["mine"])["mine"]):
            assert found is not None
            assert (found.checkpoint and found.checkpoint.id, found.savepoint and found.savepoint.id) == (4, 2)

    def test_the_metrics_of_an_ended_job_are_its_last_drivers_and_no_reserved_attempts(self, rows: Rows) -> None:
        rows.job("earlier")  # before `mine` in the table and in its index: a query of all jobs finds it first
        for job_id, number in (("earlier", 1), ("earlier", 2), ("other", 1), ("other", 2)):
            rows.attempt(number, job_id=job_id, metrics={"batches": 9})
        rows.attempt(1, metrics={"batches": 5})

        def shown() -> list[tuple[int, dict[str, Any]]]:
            found = (overviews.find(rows.session, "mine-name"), overviews.of_jobs(rows.session, ["mine"])["mine"])
            return [(each.attempt["number"], each.attempt["metrics"]) for each in found if each and each.attempt]

        assert shown() == [(1, {"batches": 5})] * 2
        rows.attempt(2, run=1, driver_state="FINISHED", metrics={"batches": 7})
        rows.attempt(3, run=1)
        assert shown() == [(2, {"batches": 7})] * 2
        [scraped] = [each for each in scrapes.of_scope(rows.session, EVERYTHING, limit=9) if each.id == "mine"]
        assert scraped.metrics == {"batches": 7}

    def test_the_facts_of_a_scraped_job_are_of_its_own_newest_rows(self, rows: Rows) -> None:
        for job_id, first in (("other", 4), ("mine", 0)):
            owner = {"job_id": job_id}
            rows.attempt(1, metrics={"batches": first + 1}, **owner)
            rows.attempt(2, ACTIVE, metrics={"batches": first + 2}, **owner)
            rows.attempt(3, STANDBY, metrics={"batches": first + 3}, **owner)
            rows.checkpoint(first + 1, **owner)
            rows.checkpoint(first + 2, **owner)
            rows.checkpoint(first + 3, is_savepoint=True, **owner)
            rows.checkpoint(first + 4, FAILED, **owner)
            for at_ms, (stopped_at_ms, resumed_at_ms) in enumerate(((10, 20), (30, 50), (60, None), (None, 70))):
                times = {"stopped_at_ms": stopped_at_ms, "resumed_at_ms": resumed_at_ms}
                rows.change(f"{job_id}-{at_ms}", at_ms=first + at_ms, **times, **owner)
            for target in (first + 1, first + 2):
                rows.decision(target=target, **owner)
        rows.change("elsewhere", at_ms=9, job_id="other", stopped_at_ms=1, resumed_at_ms=2)
        rows.decision(target=9, job_id="other")
        rows.revision(2, autoscaler={"mode": AutoscalerMode.ACTIVE})
        rows.set_job(revision=2, created_at_ms=2)
        newest, unscaled = scrapes.of_scope(rows.session, EVERYTHING, limit=2)
        assert (newest.id, newest.metrics, newest.downtime_ms, newest.scaling_target) == ("mine", {"batches": 2}, 20, 2)
        assert (newest.completed and newest.completed.id, newest.failed and newest.failed.id) == (3, 4)
        assert (unscaled.id, unscaled.scaling_target) == ("other", None)
        assert [each.id for each in scrapes.of_scope(rows.session, EVERYTHING, limit=1)] == ["mine"]

    def test_the_deleted_job_that_is_due_for_the_longest_time_is_first(self, rows: Rows) -> None:
        for job_id, due_at_ms in (("c", 20), ("b", 20), ("a", 30)):
            rows.session.add(
                DeletedJob(job_id=job_id, name=job_id, store_url="file:///x", deleted_at_ms=1, due_at_ms=due_at_ms)
            )
        rows.session.flush()
        assert deleted_jobs.first_due(rows.session, 19) is None
        for now_ms in (20, 40):
            assert (found := deleted_jobs.first_due(rows.session, now_ms)) is not None
            assert found.job_id == "b"

    def test_the_revisions_in_use_are_the_present_one_and_those_of_attempts_that_may_run(self, rows: Rows) -> None:
        for number in (2, 3, 4, 5):
            rows.revision(number)
        rows.attempt(1, revision=1)
        rows.attempt(2, revision=2)
        rows.attempt(3, ACTIVE, revision=3)
        rows.attempt(4, STANDBY, revision=4)
        for number in (2, 9):
            rows.revision(number, job_id="other")
        rows.attempt(2, ACTIVE, job_id="other", revision=1)
        job = rows.set_job(revision=5)
        found = revisions.in_use(rows.session, job, 2)
        assert sorted(revision.number for revision in found) == [2, 3, 4, 5]
        assert revisions.next_number(rows.session, "mine") == 6
        assert [each.number for each in revisions.list_page(rows.session, "other", PageRequest()).rows] == [9, 2, 1]

    def test_a_job_is_found_by_its_id_or_name_within_a_scope(self, rows: Rows) -> None:
        rows.job("newer", created_at_ms=2)
        rows.job("newest", created_at_ms=2)
        for reference in ("mine", "mine-name"):
            assert (found := jobs.find(rows.session, reference)) is not None
            assert found.id == jobs.find_id(rows.session, reference) == "mine"
            scope = JobScope(frozenset({reference}))
            assert jobs.find(rows.session, "mine", scope=scope) is found
            assert jobs.find(rows.session, "other", scope=scope) is None
        assert (locked := jobs.lock(rows.session, "other")) is not None
        assert locked.id == "other"
        assert jobs.known(rows.session, ["mine", "none"]) == {"mine"}
        assert jobs.ids(rows.session) == ["mine", "newer", "newest", "other"]
        assert jobs.list_page(rows.session, PageRequest()).rows == ["newest", "newer", "other", "mine"]

    def test_an_overview_has_each_column_under_its_name(self, rows: Rows) -> None:
        rows.session.add(distinct_row(Artifact, id="second", name="of the job", version=5, kind=ArtifactKind.ZIP))
        rows.revision(2, artifact_id="second", libraries=["lib"])
        rows.revision(2, job_id="other")
        job = rows.set_job(revision=2, labels={"team": "a"}, failure={"code": "X"}, restarts=77, rewound_to="there")
        beat = {"heartbeat_at_ms": 61, "last_commit_batch_id": 62, "last_commit_at_ms": 63, "metrics": {"batches": 64}}
        given = {"pid": 65, "host": "h", "slots": 66, "totals_before": {"a": 67}, "restored_at_ms": 68}
        attempt = rows.attempt(3, ACTIVE, revision=2, **given)
        for name, value in beat.items():
            setattr(attempt, name, value)
        rows.change("now", status=OperationStatus.IN_PROGRESS, phases=[{"phase": "SAVEPOINT"}])
        names = ("latest_ack_timestamp", "end_to_end_duration", "checkpointed_size", "state_size")
        for number, first in ((7, 70), (8, 80)):
            measured = dict(zip(names, range(first + 1, first + 5), strict=True))
            rows.checkpoint(number, is_savepoint=number == 8, **measured)
        revision = revisions.find(rows.session, "mine", 2)
        assert (found := overviews.find(rows.session, "mine")) is not None
        assert dict(found.job) == fields_of(job)
        assert dict(found.revision) == fields_of(revision)
        assert found.attempt == {**fields_of(attempt), **beat}
        assert (found.artifact_name, found.artifact_version) == ("of the job", 5)
        assert (found.operation_id, found.operation_kind) == ("now", OperationKind.RESCALE)
        assert found.operation_phases == [{"phase": "SAVEPOINT"}]
        assert found.checkpoint == overviews.LatestSnapshot(7, 71, 72, 73, 74)
        assert found.savepoint == overviews.LatestSnapshot(8, 81, 82, 83, 84)

    def test_a_scraped_job_has_each_fact_under_its_name(self, rows: Rows) -> None:
        rows.revision(2, autoscaler={"mode": AutoscalerMode.MONITORING}, checkpoints={"interval_ms": 5})
        rows.set_job(
            revision=2,
            status=JobStatus.RESTARTING,
            desired=DesiredState.RUNNING,
            restarts=21,
            failure={"code": "X"},
            created_at_ms=9,
        )
        times = {"created_at_ms": 31, "running_at_ms": 32, "heartbeat_at_ms": 33}
        attempt = rows.attempt(4, ACTIVE, cause="rescale", driver_state="WARM", totals_before={"a": 34}, **times)
        attempt.last_commit_at_ms, attempt.metrics = 35, {"batches": 36, "failures": {"times_ms": [1]}, "other": 1}
        names = ("latest_ack_timestamp", "end_to_end_duration", "checkpointed_size", "state_size")
        for number, status in ((4, COMPLETED), (5, FAILED)):
            rows.checkpoint(number, status, **dict(zip(names, range(10 * number + 1, 10 * number + 5), strict=True)))
        rows.change("done", stopped_at_ms=100, resumed_at_ms=160)
        rows.decision(verdict=ScalingVerdict.SINK_SLOW, parallelism=2, target=6)
        by_id, by_name = (JobScope(frozenset({reference})) for reference in ("mine", "mine-name"))
        [found] = scrapes.of_scope(rows.session, by_id, limit=9)
        assert found == scrapes.ObservedJob(
            id="mine",
            name="mine-name",
            status=JobStatus.RESTARTING,
            desired=DesiredState.RUNNING,
            restarts=21,
            checkpoints={"interval_ms": 5},
            stage=ACTIVE,
            driver_state="WARM",
            running_at_ms=32,
            totals_before={"a": 34},
            heartbeat_at_ms=33,
            metrics={"batches": 36, "failures": {"times_ms": [1]}, "other": 1},
            completed=scrapes.Snapshot(4, 41, 42, 43, 44),
            failed=scrapes.Snapshot(5, 51, 52, 53, 54),
            downtime_ms=60,
            failure={"code": "X"},
            last_commit_at_ms=35,
            scaling_verdict=ScalingVerdict.SINK_SLOW,
            scaling_target=6,
            cause="rescale",
            created_at_ms=31,
        )
        [part] = scrapes.of_scope(rows.session, by_name, limit=9, report=("batches", "sink_outage"))
        assert part == found._replace(metrics={"batches": 36, "sink_outage": None})

    @pytest.mark.parametrize(
        "scope",
        [
            EVERYTHING,
            JobScope(frozenset({"mine", "other-name"})),
            JobScope(labels={"team": "a"}),
            JobScope(labels={"team": "a", "env": "test"}),
            JobScope(any_labels=frozenset({("team", "b"), ("env", "test")})),
            JobScope(frozenset({"plain"}), {"team": "b"}, frozenset({("env", "live")})),
            JobScope(labels={"team": "c"}),
        ],
    )
    def test_a_scopes_condition_finds_the_jobs_that_it_covers(self, rows: Rows, scope: JobScope) -> None:
        labelled = {"mine": {"team": "a", "env": "test"}, "other": {"team": "a"}, "third": {"team": "b"}, "plain": {}}
        labelled["live"] = {"team": "x", "env": "live"}
        for number, (job_id, labels) in enumerate(labelled.items(), 10):
            if job_id not in {"mine", "other"}:
                rows.job(job_id)
            rows.set_job(job_id, labels=labels, created_at_ms=number)
        covered = [
            job_id
            for job_id, labels in labelled.items()
            if scope.covers(job_id=job_id, name=f"{job_id}-name", labels=labels)
        ]
        assert jobs.list_page(rows.session, PageRequest(), scope).rows == covered[::-1]

    def test_a_store_of_several_jobs_is_in_use_once(self, rows: Rows) -> None:
        for job_id in ("mine", "other"):
            rows.set_job(job_id, desired=DesiredState.RUNNING, store_url="s3://shared")
        rows.job("cancelled", desired=DesiredState.CANCELLED)
        assert jobs.stores_in_use(rows.session) == ["s3://shared"]

    def test_revisions_of_one_author_are_listed_and_each_is_found_by_its_user(self, rows: Rows) -> None:
        for number, author in ((2, "ann"), (3, "bob"), (4, "ann")):
            rows.revision(number)
            rows.session.get_one(Revision, ("mine", number)).created_by = author
        for number in (2, 3, 4):
            rows.revision(number, job_id="other")
            rows.session.get_one(Revision, ("other", number)).created_by = "ann"
        of_ann = revisions.list_page(rows.session, "mine", PageRequest(), created_by="ann").rows
        assert [each.number for each in of_ann] == [4, 2]
        job, attempt = rows.set_job(revision=4), rows.attempt(7, revision=3)
        found = (revisions.current(rows.session, job), revisions.of_attempt(rows.session, attempt))
        assert [(each.job_id, each.number) for each in found] == [("mine", 4), ("mine", 3)]


class TestDiagnostics:
    def test_the_diagnostics_of_a_job_are_listed_with_the_newest_first(self, rows: Rows) -> None:
        for name, at_ms in (("z", 10), ("x", 20), ("y", 20)):
            rows.diagnostic(name, at_ms=at_ms)
        rows.diagnostic("elsewhere", job_id="other", at_ms=15)
        assert [each.id for each in diagnostics.list_of(rows.session, "mine")] == ["y", "x", "z"]

    def test_a_driver_gets_the_diagnostics_that_still_wait_for_it_with_the_oldest_first(self, rows: Rows) -> None:
        rows.diagnostic("b", at_ms=20)
        rows.diagnostic("a", at_ms=20)
        rows.diagnostic("z", at_ms=10)
        rows.diagnostic("of another attempt", attempt=2)
        rows.diagnostic("answered", ended_at_ms=5)
        rows.diagnostic("over", until_ms=50)
        rows.diagnostic("elsewhere", job_id="other")
        assert [each.id for each in diagnostics.pending(rows.session, "mine", 1, 50)] == ["z", "a", "b"]
        assert len(diagnostics.pending(rows.session, "mine", 1, 49)) == 4

    def test_an_answer_is_stored_once_for_its_own_diagnostic(self, rows: Rows) -> None:
        mine = rows.diagnostic("look", at_ms=30)
        beside = [rows.diagnostic("look", job_id="other"), rows.diagnostic("another")]

        def settle(attempt: int, name: str, at_ms: int) -> None:
            answer = {"parts": [{"name": name}], "failure": {"code": name}, "at_ms": at_ms}
            diagnostics.settle(rows.session, "look", job_id="mine", attempt=attempt, **answer)
            rows.session.expire_all()

        settle(2, "of another attempt", 40)
        assert mine.ended_at_ms is None
        settle(1, "first", 40)
        settle(1, "second", 50)
        assert (mine.parts, mine.failure, mine.ended_at_ms) == ([{"name": "first"}], {"code": "first"}, 40)
        assert [each.ended_at_ms for each in beside] == [None, None]
        late = rows.diagnostic("late", at_ms=90)
        diagnostics.settle(rows.session, "late", job_id="mine", attempt=1, parts=[], failure=None, at_ms=80)
        rows.session.expire_all()
        assert (late.ended_at_ms, late.failure) == (90, None), "by another clock it would end before its request"

    def test_diagnostics_from_before_a_time_go_a_few_at_once_with_the_oldest_first(self, rows: Rows) -> None:
        for at_ms in (30, 10, 20, 40):
            rows.diagnostic(str(at_ms), at_ms=at_ms, job_id="mine" if at_ms < 30 else "other")
        assert diagnostics.remove_old(rows.session, before_ms=40, some=1) == 1
        assert sorted(rows.session.scalars(select(Diagnostic.id))) == ["20", "30", "40"]
        assert [diagnostics.remove_old(rows.session, before_ms=40, some=9) for _ in range(2)] == [2, 0]
        assert list(rows.session.scalars(select(Diagnostic.id))) == ["40"]


class TestDeliveries:
    def add(self, rows: Rows, name: str, *times_ms: int, channel: Channel = Channel.WEBHOOK) -> None:
        """Adds a subscription with a delivery that is due at each time."""
        given = {"kinds": [], "job_names": [], "job_labels": {}, "created_by": "ann", "created_at_ms": 1}
        owner = {"owner_id": "ann", "owner_job_names": [], "owner_job_labels": {}, "owner_any_labels": []}
        rows.session.add(Subscription(id=name, channel=channel, target="t", **given, **owner))
        event = Event(at_ms=1, kind="JOB_FAILED", actor="system", message="m", details={})
        rows.session.add(event)
        rows.session.flush()
        for number, at_ms in enumerate(times_ms):
            made = Delivery(
                id=f"{name}{number}",
                subscription_id=name,
                event_id=event.id,
                status=DeliveryStatus.PENDING,
                created_at_ms=number,
                next_at_ms=at_ms,
            )
            rows.session.add(made)
        rows.session.flush()

    def claim(self, rows: Rows, now_ms: int) -> set[str]:
        """Claims what is due in two channels, at most two deliveries of a subscription, for ten milliseconds."""
        channels = (Channel.WEBHOOK, Channel.SLACK)
        found = subscriptions.claim_due(rows.session, now_ms, channels=channels, lease_ms=10, each_max=2)
        return {each.delivery.id for each in found}

    def settle(
        self, rows: Rows, delivery_id: str, attempts: int, status: DeliveryStatus, next_at_ms: int | None
    ) -> bool:
        result = {"status": status, "now_ms": 70, "next_at_ms": next_at_ms, "problem": f"attempt {attempts}"}
        return subscriptions.settle(rows.session, delivery_id, attempts, **result)

    def test_the_deliveries_that_are_due_for_longest_are_claimed_a_few_of_each_subscription(self, rows: Rows) -> None:
        self.add(rows, "a", 5, 3, 4, 9)
        self.add(rows, "b", 5)
        self.add(rows, "mail", 1, channel=Channel.MAIL)
        assert self.claim(rows, 5) == {"a1", "a2", "b0"}
        assert self.claim(rows, 5) == {"a0"}
        assert self.claim(rows, 8) == set(), "each sender has its lease"
        assert self.claim(rows, 9) == {"a3"}
        assert self.claim(rows, 14) == set(), "a lease begins with the claim"
        assert "b0" in self.claim(rows, 15), "its sender has died"
        rows.session.execute(update(Delivery).values(status=DeliveryStatus.DELIVERED))
        assert self.claim(rows, 99) == set()

    def test_what_another_control_plane_claims_or_delivers_meanwhile_is_not_claimed_again(self, rows: Rows) -> None:
        for name in ("claimed", "delivered", "due"):
            self.add(rows, name, 5)
        of_another: dict[str, dict[str, Any]] = {
            "claimed0": {"next_at_ms": 15},
            "delivered0": {"status": DeliveryStatus.DELIVERED},
        }

        def change_first(claim: ORMExecuteState) -> None:
            while claim.is_update and of_another:
                delivery_id, columns = of_another.popitem()
                rows.session.execute(update(Delivery).where(Delivery.id == delivery_id).values(**columns))

        event.listen(rows.session, "do_orm_execute", change_first)
        assert self.claim(rows, 5) == {"due0"}

    def test_the_result_of_an_attempt_is_stored_unless_a_later_attempt_has_begun(self, rows: Rows) -> None:
        self.add(rows, "a", 5, 5)
        self.claim(rows, 5)
        self.claim(rows, 15)
        assert not self.settle(rows, "a0", 1, DeliveryStatus.DELIVERED, None)
        stored = rows.session.get_one(Delivery, "a0", populate_existing=True)
        assert (stored.status, stored.attempts, stored.problem) == (DeliveryStatus.PENDING, 2, None)
        assert self.settle(rows, "a0", 2, DeliveryStatus.PENDING, 99)
        stored = rows.session.get_one(Delivery, "a0", populate_existing=True)
        assert (stored.next_at_ms, stored.ended_at_ms, stored.problem) == (99, None, "attempt 2")
        assert self.settle(rows, "a0", 2, DeliveryStatus.FAILED, None)
        stored = rows.session.get_one(Delivery, "a0", populate_existing=True)
        assert (stored.status, stored.next_at_ms, stored.ended_at_ms) == (DeliveryStatus.FAILED, None, 70)
        assert not self.settle(rows, "a0", 2, DeliveryStatus.DELIVERED, None), "its result is final"
        assert subscriptions.counts(rows.session) == {"a": (1, 1)}

    def test_an_event_goes_to_the_subscriptions_of_its_kind_that_cover_its_job(self, rows: Rows) -> None:
        rows.set_job(labels={"team": "a", "env": "test"})
        rows.set_job("other", labels={"team": "b"})
        covering = {
            "all": {},
            "name": {"job_names": ["mine-name"]},
            "id": {"job_names": ["mine", "other"]},
            "labels": {"job_labels": {"team": "a", "env": "test"}},
            "foreign label": {"job_labels": {"team": "b"}},
            "owner of other": {"owner_job_names": ["other"]},
            "owner of team": {"job_names": ["mine"], "owner_job_labels": {"team": "a"}},
            "owner of one": {"owner_any_labels": [["team", "c"], ["env", "test"]]},
            "owner of none": {"job_names": ["mine"], "owner_any_labels": [["team", "c"]]},
        }
        for name, columns in covering.items():
            self.add(rows, name)
            for column, value in {"kinds": ["JOB_FAILED", "OPERATION_FAILED"], **columns}.items():
                setattr(rows.session.get_one(Subscription, name), column, value)
        self.add(rows, "other kind")
        rows.session.get_one(Subscription, "other kind").kinds = ["STORE_AWAY"]
        rows.session.flush()

        def told(kind: str, job_id: str | None, at_ms: int = 40) -> set[str]:
            event = Event(at_ms=at_ms, kind=kind, actor="system", message="m", details={}, job_id=job_id)
            rows.session.add(event)
            subscriptions.notify(rows.session, event)
            rows.session.flush()
            found = rows.session.scalars(select(Delivery).where(Delivery.event_id == event.id)).all()
            assert all((each.created_at_ms, each.next_at_ms) == (at_ms, at_ms) for each in found)
            assert {each.status for each in found} <= {DeliveryStatus.PENDING}
            assert all(each.id.startswith("msg_") for each in found)
            return {each.subscription_id for each in found}

        mine = {"all", "name", "id", "labels", "owner of team", "owner of one"}
        assert told("JOB_FAILED", "mine") == mine
        assert told("RESCALE_FAILED", "mine") == mine, "its kind is OPERATION_FAILED"
        assert told("JOB_FAILED", "other") == {"all", "id", "foreign label", "owner of other"}
        assert told("JOB_FAILED", None) == {"all"}, "of the platform: no choice of jobs and no scope covers it"
        assert told("JOB_FAILED", "deleted") == set()
        assert told("STORE_AWAY", None) == {"other kind"}
        assert told("STORE_AWAY_ENDED", "mine") == {"other kind"}
        assert told("JOB_CREATED", "mine") == set(), "no notification is about it"

    def test_subscriptions_of_a_channel_are_listed_and_an_owners_are_removed(self, rows: Rows) -> None:
        for name, channel in (("a", Channel.WEBHOOK), ("b", Channel.MAIL), ("c", Channel.SLACK)):
            self.add(rows, name, 5, channel=channel)
        rows.session.get_one(Subscription, "b").owner_id = "bob"
        rows.session.flush()
        listed = subscriptions.list_all(rows.session, None, (Channel.MAIL, Channel.SLACK))
        assert [each.id for each in listed] == ["b", "c"]
        assert [each.id for each in subscriptions.list_all(rows.session, "ann", (Channel.MAIL,))] == []
        assert subscriptions.count(rows.session) == 3
        assert sorted(subscriptions.remove_of(rows.session, "ann")) == ["a", "c"]
        assert [each.id for each in subscriptions.list_all(rows.session, None)] == ["b"]
        assert list(rows.session.scalars(select(Delivery.id))) == ["b0"]

    def test_subscriptions_and_their_deliveries_are_listed_with_the_newest_first(self, rows: Rows) -> None:
        for name in ("b", "a"):
            self.add(rows, name, 5, 3, 4)
        self.add(rows, "c")
        rows.session.get_one(Subscription, "a").owner_id = "bob"
        rows.session.get_one(Subscription, "c").created_at_ms = 2
        rows.session.execute(update(Delivery).where(Delivery.id == "a0").values(created_at_ms=1))
        assert [each.id for each in subscriptions.list_all(rows.session, None)] == ["c", "a", "b"]
        assert [each.id for each in subscriptions.list_all(rows.session, "ann")] == ["c", "b"]
        assert [
            each and each.id
            for each in (subscriptions.find(rows.session, "a", owner) for owner in ("ann", "bob", None))
        ] == [None, "a", "a"]
        listed = subscriptions.list_deliveries(rows.session, "a", PageRequest()).rows
        assert [each.id for each in listed] == ["a2", "a1", "a0"]
        assert subscriptions.event_kinds(rows.session, listed) == {listed[0].event_id: "JOB_FAILED"}
        assert subscriptions.remove_deliveries(rows.session, keep=1) == 4
        kept = rows.session.scalars(select(Delivery.id).order_by(Delivery.id)).all()
        assert kept == ["a2", "b2"]

    def test_a_claimed_delivery_has_what_its_message_needs_and_counts_as_attempted(self, rows: Rows) -> None:
        for name in ("late", "early"):
            self.add(rows, name, 5)
        first, second = rows.session.scalars(select(Event).order_by(Event.id)).all()
        first.job_id = "other"
        rows.session.flush()
        chosen = {"channels": (Channel.WEBHOOK,), "lease_ms": 30, "each_max": 9}
        found = subscriptions.claim_due(rows.session, 7, **chosen)
        assert [(due.delivery.id, due.subscription.id, due.event.id, due.job and due.job.id) for due in found] == [
            ("late0", "late", first.id, "other"),
            ("early0", "early", second.id, None),
        ]
        rows.session.expire_all()
        for due in found:
            kept = due.delivery
            assert (kept.attempts, kept.last_attempt_at_ms, kept.next_at_ms) == (1, 7, 37)

    def test_the_deliveries_of_each_subscription_are_counted_for_it(self, rows: Rows) -> None:
        for name, statuses in (
            ("a", (DeliveryStatus.PENDING, DeliveryStatus.PENDING, DeliveryStatus.FAILED, DeliveryStatus.DELIVERED)),
            ("b", (DeliveryStatus.DELIVERED,)),
            ("c", (DeliveryStatus.FAILED,)),
        ):
            self.add(rows, name, *range(len(statuses)))
            for number, status in enumerate(statuses):
                rows.session.get_one(Delivery, f"{name}{number}").status = status
        rows.session.flush()
        assert subscriptions.counts(rows.session) == {"a": (2, 1), "b": (0, 0), "c": (0, 1)}
        assert subscriptions.settle(
            rows.session, "a0", 0, status=DeliveryStatus.DELIVERED, now_ms=8, next_at_ms=None, problem=None
        )
        settled = rows.session.execute(select(Delivery.id).where(Delivery.ended_at_ms.is_not(None)))
        assert [each.id for each in settled] == ["a0"]


class TestScaling:
    def test_the_recent_decisions_are_with_the_latest_and_with_moves_that_are_not_measured(self, rows: Rows) -> None:
        rows.change("rescale", ended_at_ms=7)
        move = {"operation_id": "rescale", "outcome": ScalingOutcome.PENDING, "present": {"work_ms": 4.0}}
        pending = rows.decision(10, **move).id
        rows.decision(20, outcome=ScalingOutcome.DELIVERED)
        first, second = rows.decision(40, facts={"batch_limit": 9}).id, rows.decision(50).id
        elsewhere = rows.decision(30, job_id="other", operation_id="rescale").id
        assert scaling.recent(rows.session, ["other"], 40).keys() == {"other"}
        found = scaling.recent(rows.session, ["mine", "other"], 40)
        assert {job_id: [each.id for each in past] for job_id, past in found.items()} == {
            "mine": [second, first, pending],
            "other": [elsewhere],
        }
        assert (found["mine"][1].batch_limit, found["mine"][2].work_ms_before) == (9, 4.0)
        assert (found["mine"][2].operation_ended_at_ms, found["other"][0].operation_ended_at_ms) == (7, None)

    def test_core_hours_are_of_the_time_in_which_attempts_ran_since_a_time(self, rows: Rows) -> None:
        rows.attempt(1, running_at_ms=10, ended_at_ms=99)
        rows.attempt(2, running_at_ms=80, ended_at_ms=110)
        rows.attempt(3, running_at_ms=120, ended_at_ms=150, parallelism=4)
        rows.attempt(4)
        rows.attempt(5, ACTIVE, running_at_ms=160, parallelism=3)
        rows.attempt(1, ACTIVE, running_at_ms=190, job_id="other")
        rows.job("ended")
        rows.attempt(1, running_at_ms=80, ended_at_ms=99, job_id="ended")
        used = scaling.core_ms(rows.session, ["mine", "other", "ended"], 100, 200)
        assert used == {"mine": 2 * 10 + 4 * 30 + 3 * 40, "other": 2 * 10}
        assert scaling.core_ms(rows.session, ["other"], 100, 200) == {"other": 2 * 10}

    def test_loads_are_the_finest_points_in_the_order_of_time(self, rows: Rows) -> None:
        for at_ms, records in ((120_000, 2), (130_000, 3), (110_000, 1)):
            series.store(rows.session, "mine", at_ms, {"input_records": records, "lag_records": 10 * records})
        series.store(rows.session, "mine", 140_000, {"restarts": 1})
        found = scaling.loads(rows.session, ["mine", "other"], 115_000)
        assert found == {"mine": [(120_000, 2, 20), (130_000, 3, 30)]}
        assert scaling.loads(rows.session, ["other"], 115_000) == {}

    def test_a_decision_is_confirmed_and_settled_alone_and_the_newest_of_each_job_are_kept(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scaling, "KEPT", 2)
        elsewhere = [rows.decision(at_ms, job_id="other") for at_ms in (1, 2, 3)]
        first, second = rows.decision(1), rows.decision(2, operation_id="move")
        scaling.confirm(rows.session, second.id, 8, target=4)
        scaling.settle(rows.session, second.id, ScalingOutcome.DELIVERED, {"work_ms": 2.0})
        rows.session.expire_all()
        assert (second.confirmed_at_ms, second.target, second.outcome) == (8, 4, ScalingOutcome.DELIVERED)
        assert second.measured == {"work_ms": 2.0}
        assert (first.confirmed_at_ms, first.target, first.outcome) == (1, 2, None)
        third = ScalingDecision(
            job_id="mine",
            at_ms=9,
            confirmed_at_ms=9,
            verdict=ScalingVerdict.STEADY,
            parallelism=2,
            target=2,
            message="m",
            facts={},
        )
        scaling.record(rows.session, third)
        listed = scaling.list_page(rows.session, "mine", PageRequest()).rows
        assert [each.id for each in listed] == [third.id, second.id]
        assert scaling.list_page(rows.session, "mine", PageRequest(), moves_only=True).rows == [second]
        assert len(scaling.list_page(rows.session, "other", PageRequest()).rows) == len(elsewhere)

    @pytest.mark.parametrize(
        ("job", "mode", "is_scaled"),
        [
            ({"status": JobStatus.RUNNING}, AutoscalerMode.ACTIVE, True),
            ({"status": JobStatus.RESTARTING}, AutoscalerMode.MONITORING, True),
            ({"status": JobStatus.RUNNING}, AutoscalerMode.DISABLED, False),
            ({"status": JobStatus.RESCALING}, AutoscalerMode.ACTIVE, False),
        ],
    )
    def test_jobs_that_run_with_an_autoscaler_are_scaled(
        self, rows: Rows, job: dict[str, Any], mode: AutoscalerMode, is_scaled: bool
    ) -> None:
        for number, job_id in ((2, "mine"), (2, "other"), (3, "mine")):
            rows.revision(number, job_id=job_id, autoscaler={"mode": mode})
        rows.set_job(revision=2, **job)
        rows.attempt(1, metrics={"batches": 1})
        rows.attempt(2, ACTIVE, parallelism=3, metrics={"batches": 2})
        rows.attempt(2, ACTIVE, job_id="other", parallelism=9, metrics={"batches": 9})
        found = scaling.scaled_jobs(rows.session)
        expected = [("mine", 2, 3, {"batches": 2})] if is_scaled else []
        assert [(each.id, each.revision, each.parallelism, each.metrics) for each in found] == expected

    def test_a_scaled_job_has_each_fact_under_its_name(self, rows: Rows) -> None:
        rows.job("scaled")
        rows.revision(2, job_id="scaled", autoscaler={"mode": AutoscalerMode.DISABLED})
        rows.set_job("scaled", revision=2, status=JobStatus.RUNNING, max_parallelism=16, failure={"code": "X"})
        attempt = rows.attempt(
            4, ACTIVE, job_id="scaled", parallelism=3, slots=5, driver_state="WARM", restored_at_ms=6
        )
        rows.attempt(5, STANDBY, job_id="scaled", parallelism=9, metrics={"batches": 1})
        rows.attempt(4, job_id="other", metrics={"batches": 2})
        attempt.heartbeat_at_ms, attempt.last_commit_at_ms, attempt.metrics = 7, 8, {"batches": 9}
        rows.session.flush()
        assert scaling.find_job(rows.session, "scaled") == scaling.ScaledJob(
            id="scaled",
            name="scaled-name",
            status=JobStatus.RUNNING,
            revision=2,
            max_parallelism=16,
            spec={"artifact_id": "program", "libraries": [], "autoscaler": {"mode": "DISABLED"}},
            failure={"code": "X"},
            stage=ACTIVE,
            parallelism=3,
            slots=5,
            driver_state="WARM",
            heartbeat_at_ms=7,
            last_commit_at_ms=8,
            metrics={"batches": 9},
            restored_at_ms=6,
        )
        stopped = scaling.find_job(rows.session, "mine")
        assert (stopped.stage, stopped.parallelism, stopped.metrics) == (None, None, None)

    def test_a_past_decision_has_each_value_under_its_name(self, rows: Rows) -> None:
        rows.change("move", status=OperationStatus.ROLLED_BACK, ended_at_ms=91)
        rows.change("elsewhere", job_id="other", ended_at_ms=92)
        made = rows.decision(
            11,
            verdict=ScalingVerdict.UNDO,
            parallelism=3,
            target=5,
            facts={"batch_limit": 13},
            present={"work_ms": 14.5},
            expected={"work_ms": 15.5},
            outcome=ScalingOutcome.FAILED,
            operation_id="move",
        )
        made.confirmed_at_ms = 12
        of_another_job = rows.decision(1, operation_id="elsewhere")
        foreign, found = scaling.recent(rows.session, ["mine"], 0)["mine"]
        assert found == scaling.PastDecision(
            id=made.id,
            verdict=ScalingVerdict.UNDO,
            parallelism=3,
            target=5,
            confirmed_at_ms=12,
            batch_limit=13,
            work_ms_before=14.5,
            work_ms_expected=15.5,
            outcome=ScalingOutcome.FAILED,
            operation_id="move",
            operation_status=OperationStatus.ROLLED_BACK,
            operation_ended_at_ms=91,
        )
        assert (foreign.id, foreign.operation_status) == (of_another_job.id, None), "an operation of another job"

    def test_runs_since_a_time_are_in_the_order_of_time_with_their_parallelism(self, rows: Rows) -> None:
        for number, begin_ms, end_ms in ((1, 10, 99), (2, 60, 150), (3, 20, 100), (4, None, 150), (5, 160, None)):
            rows.attempt(number, running_at_ms=begin_ms, ended_at_ms=end_ms, parallelism=number)
        rows.attempt(6, job_id="other", running_at_ms=120)
        assert scaling.runs(rows.session, "mine", 100) == [
            scaling.Run(20, 100, 3),
            scaling.Run(60, 150, 2),
            scaling.Run(160, None, 5),
        ]

    def test_coarser_loads_are_of_the_points_with_that_step_since_a_time(self, rows: Rows) -> None:
        minute_ms = series.RETENTIONS[1].step_ms
        for at_ms, records in ((60_000, 1), (120_000, 2), (170_000, 3)):
            series.store(rows.session, "mine", at_ms, {"input_records": records})
            series.store(rows.session, "other", at_ms, {"input_records": 9})
        found = scaling.loads(rows.session, ["mine"], 120_000, minute_ms)
        assert found == {"mine": [(120_000, 3, None)]}

    def test_a_sleeping_driver_has_held_cores_until_it_fell_asleep(self, rows: Rows) -> None:
        rows.attempt(1, running_at_ms=90, fell_asleep_at_ms=130, ended_at_ms=180, parallelism=3)
        rows.attempt(2, running_at_ms=150, fell_asleep_at_ms=90, parallelism=5)
        rows.attempt(1, running_at_ms=50, fell_asleep_at_ms=60, job_id="other")
        assert scaling.core_ms(rows.session, ["mine", "other"], 100, 200) == {"mine": 3 * 30, "other": 0}


class TestArtifacts:
    def add(self, rows: Rows, artifact_id: str, version: int, sha256: str, name: str = "lib") -> Artifact:
        made = Artifact(
            id=artifact_id,
            name=name,
            version=version,
            filename="lib.py",
            kind=ArtifactKind.PYTHON,
            sha256=sha256,
            size_bytes=1,
            created_at_ms=version,
        )
        rows.session.add(made)
        rows.session.flush()
        return made

    def test_the_same_bytes_are_the_same_version_only_while_it_is_the_newest(self, rows: Rows) -> None:
        self.add(rows, "one", 1, "x")
        assert (same := artifacts.find_version(rows.session, "lib", "x")) is not None
        assert same.id == "one"
        self.add(rows, "two", 2, "y")
        self.add(rows, "another", 7, "x", name="another")
        assert artifacts.find_version(rows.session, "lib", "x") is None
        assert artifacts.next_version(rows.session, "lib") == 3
        assert artifacts.has_version(rows.session, "lib", 2)
        assert not artifacts.has_version(rows.session, "lib", 3)
        assert not artifacts.has_version(rows.session, "program", 2)

    def test_bytes_go_with_the_last_version_that_has_them(self, rows: Rows) -> None:
        first, second = self.add(rows, "one", 1, "x"), self.add(rows, "two", 2, "x")
        artifacts.add_bytes(rows.session, "z", [b"z"])
        assert not artifacts.has_bytes(rows.session, "x")
        artifacts.add_bytes(rows.session, "x", [b"a", b"b", b"c"])
        artifacts.remove(rows.session, first)
        assert b"".join(artifacts.read_bytes(rows.session, "x")) == b"abc"
        artifacts.remove(rows.session, second)
        assert not artifacts.has_bytes(rows.session, "x")
        assert artifacts.has_bytes(rows.session, "z")

    def test_a_program_and_a_library_are_used_by_their_jobs_newest_revision_that_has_them(self, rows: Rows) -> None:
        self.add(rows, "one", 1, "x")
        rows.revision(2, libraries=["one"])
        rows.revision(3, libraries=["one"])
        rows.revision(4)
        assert artifacts.first_use(rows.session, "one") == ("mine-name", 3)
        assert artifacts.first_use(rows.session, "program") == ("mine-name", 4)
        used = artifacts.jobs_using(rows.session, ["one", "program", "none"])
        assert used == {"one": ["mine-name"], "program": ["mine-name", "other-name"], "none": []}
        assert artifacts.jobs_using(rows.session, ["one"]) == {"one": ["mine-name"]}
        for reference in ("other", "other-name"):
            scope = JobScope(frozenset({reference}))
            assert artifacts.first_use(rows.session, "program", scope) == ("other-name", 1)
            assert artifacts.jobs_using(rows.session, ["program"], scope) == {"program": ["other-name"]}

    @pytest.mark.parametrize("reference", ["mine", "mine-name"])
    def test_a_user_sees_own_uploads_and_what_the_jobs_of_the_scope_use(self, rows: Rows, reference: str) -> None:
        used, own = self.add(rows, "used", 1, "x"), self.add(rows, "own", 2, "y")
        for version, name in ((3, "foreign library"), (4, "foreign")):
            self.add(rows, name, version, "z")
        own.uploaded_by = "ann"
        rows.revision(2, libraries=["used"])
        rows.revision(2, job_id="other", artifact_id="foreign", libraries=["foreign library"])
        scope = JobScope(frozenset({reference}))
        listed = artifacts.list_page(rows.session, PageRequest(), scope=scope, user_id="ann").rows
        assert [each.id for each in listed] == ["own", "used", "program"]
        assert [each.id for each in artifacts.list_page(rows.session, PageRequest(limit=1)).rows] == ["foreign"]
        seen = {
            each: artifacts.is_visible(rows.session, each, scope=scope, user_id="ann")
            for each in ("own", "used", "foreign", "none")
        }
        assert seen == {"own": True, "used": True, "foreign": False, "none": False}
        assert artifacts.find_all(rows.session, ["used", "own", "none"]) == {"used": used, "own": own}

    def test_bytes_that_are_stored_again_stay_as_they_are(self, rows: Rows) -> None:
        artifacts.add_bytes(rows.session, "x", [b"a", b"b"])
        artifacts.add_bytes(rows.session, "x", [b"a", b"b"])
        assert list(artifacts.read_bytes(rows.session, "x")) == [b"a", b"b"]

    def test_artifacts_of_a_kind_or_of_a_name_are_listed(self, rows: Rows) -> None:
        jar, renamed = self.add(rows, "jar", 1, "x"), self.add(rows, "renamed", 2, "y", name="program-2")
        jar.kind, renamed.kind = ArtifactKind.JAR, ArtifactKind.WHEEL
        rows.session.flush()

        def listed(**chosen: Any) -> list[str]:
            return [each.id for each in artifacts.list_page(rows.session, PageRequest(), **chosen).rows]

        assert listed(kinds={ArtifactKind.PYTHON, ArtifactKind.JAR}) == ["program", "jar"]
        assert (listed(name="program"), listed(name="lib", kinds={ArtifactKind.PYTHON})) == (["program"], [])
        for artifact_id, is_there in (("jar", True), ("none", False)):
            scope = {"scope": EVERYTHING, "user_id": "ann"}
            assert artifacts.is_visible(rows.session, artifact_id, **scope) is is_there


class TestAccess:
    def test_a_token_is_valid_until_the_moment_at_which_it_expires(self, rows: Rows) -> None:
        rows.token("for-ever")
        rows.token("expires", expires_at_ms=50)
        rows.token("revoked", revoked_at_ms=10)
        names = ["for-ever", "expires", "revoked"]
        assert tokens.valid(rows.session, names, at_ms=49) == {"for-ever", "expires"}
        assert tokens.valid(rows.session, names, at_ms=50) == {"for-ever"}
        assert tokens.valid(rows.session, ["expires"], at_ms=49) == {"expires"}
        assert tokens.is_name_taken(rows.session, "for-ever", at_ms=50)
        taken = [tokens.is_name_taken(rows.session, "expires", at_ms=at_ms) for at_ms in (49, 50)]
        assert taken == [True, False]
        assert not tokens.is_name_taken(rows.session, "revoked", at_ms=5)

    def test_a_session_ends_with_its_time_and_with_its_token(self, rows: Rows) -> None:
        rows.token("token", expires_at_ms=50)
        rows.token("revoked", revoked_at_ms=10)
        rows.browser_session("of-token", token_sha256="token", expires_at_ms=100)  # noqa: S106 - a test's own
        rows.browser_session("of-revoked", token_sha256="revoked", expires_at_ms=100)  # noqa: S106 - a test's own
        rows.browser_session("of-provider", token_sha256=None, expires_at_ms=70)
        names = ["of-token", "of-revoked", "of-provider"]

        def found(at_ms: int) -> set[str]:
            return browser_sessions.valid(rows.session, names, at_ms=at_ms)

        assert (found(49), found(50), found(70)) == ({"of-token", "of-provider"}, {"of-provider"}, set())
        assert browser_sessions.valid(rows.session, ["of-provider"], at_ms=49) == {"of-provider"}
        browser_sessions.remove_expired(rows.session, at_ms=70)
        assert browser_sessions.find(rows.session, "of-provider") is None
        assert (found_with_token := browser_sessions.find(rows.session, "of-token")) is not None
        assert (found_with_token[0].sha256, found_with_token[1] and found_with_token[1].id) == ("of-token", "token")
        browser_sessions.remove(rows.session, "of-token")
        assert browser_sessions.find(rows.session, "of-token") is None
        assert browser_sessions.find(rows.session, "of-revoked") is not None

    def test_a_token_is_found_by_its_hash_and_by_its_id_and_the_newest_come_first(self, rows: Rows) -> None:
        for name, created_at_ms in (("b", 1), ("a", 1), ("c", 2)):
            rows.token(name, created_at_ms=created_at_ms)
        for find in (tokens.find, tokens.find_by_id):
            assert (found := find(rows.session, "b")) is not None
            assert found.name == "b"
            assert find(rows.session, "none") is None
        assert [token.id for token in tokens.list_all(rows.session)] == ["c", "a", "b"]

    def test_the_labels_of_a_secret_are_replaced_as_a_whole_and_alone(self, rows: Rows) -> None:
        for name in ("one", "two"):
            secret_labels.replace(rows.session, name, {"team": name, "old": "yes"})
        secret_labels.replace(rows.session, "one", {"team": "new"})
        assert secret_labels.find(rows.session, ["one", "none"]) == {"one": {"team": "new"}}
        secret_labels.replace(rows.session, "one", {})
        assert secret_labels.list_all(rows.session) == {"two": {"team": "two", "old": "yes"}}

    def test_an_added_token_has_each_value_and_tokens_of_some_roles_are_listed(self, rows: Rows) -> None:
        scope = JobScope(frozenset({"b", "a"}), {"team": "x"})
        times = {"at_ms": 21, "expires_at_ms": 22}
        of_token = {"token_id": "id", "sha256": "hash", "name": "deploy", "role": Role.OPERATOR, "created_by": "ann"}
        tokens.add(rows.session, scope=scope, **of_token, **times)
        rows.session.flush()
        stored = tokens.find(rows.session, "hash")
        assert stored is not None
        assert fields_of(stored) == {
            "sha256": "hash",
            "id": "id",
            "name": "deploy",
            "role": Role.OPERATOR,
            "job_names": ["a", "b"],
            "job_labels": {"team": "x"},
            "created_by": "ann",
            "created_at_ms": 21,
            "expires_at_ms": 22,
            "revoked_at_ms": None,
        }
        rows.token("viewer")
        rows.token("admin", role=Role.ADMIN)
        some = tokens.list_all(rows.session, (Role.VIEWER, Role.OPERATOR))
        assert [each.id for each in some] == ["id", "viewer"]


class TestHistory:
    def record(self, rows: Rows, at_ms: int, kind: str = "A", job_id: str = "mine", actor: str = "ann") -> None:
        events.record(rows.session, job_id=job_id, at_ms=at_ms, kind=kind, message=str(at_ms), actor=actor)
        rows.session.flush()

    def test_events_of_an_interval_have_both_ends_and_the_newest_come_first(self, rows: Rows) -> None:
        for at_ms in (10, 20, 30, 40):
            self.record(rows, at_ms)
        self.record(rows, 25, kind="B")
        self.record(rows, 25, job_id="other")
        self.record(rows, 30, actor="bob")

        def found(limit: int) -> list[tuple[int, str]]:
            read = events.between(rows.session, "mine", 20, 30, kinds={"A"}, limit=limit)
            return [(event.at_ms, event.actor) for event in read]

        assert found(9) == [(30, "bob"), (30, "ann"), (20, "ann")]
        assert found(1) == [(30, "bob")]

    def test_a_filter_of_events_has_both_ends_and_one_actor(self, rows: Rows) -> None:
        for at_ms in (10, 20, 30, 40):
            self.record(rows, at_ms)
        self.record(rows, 25, actor="bob")
        self.record(rows, 25, job_id="other")
        chosen = EventFilter(actor="ann", from_ms=20, to_ms=30)
        listed = events.list_page(rows.session, "mine", PageRequest(), chosen=chosen).rows
        assert [event.at_ms for event in listed] == [30, 20]
        first = events.list_page(rows.session, "mine", PageRequest(limit=3))
        rest = events.list_page(rows.session, "mine", PageRequest(after=first.next))
        assert [[event.at_ms for event in page.rows] for page in (first, rest)] == [[25, 40, 30], [20, 10]]

    def test_an_uploader_and_a_request_are_known_by_their_events(self, rows: Rows) -> None:
        def record(at_ms: int, job_id: str | None, kind: str, **details: str) -> None:
            events.record(
                rows.session, job_id=job_id, at_ms=at_ms, kind=kind, message="m", actor=f"u{at_ms}", **details
            )
            rows.session.flush()

        record(1, None, "ARTIFACT_UPLOADED", artifact_id="a")
        record(2, None, "ARTIFACT_UPLOADED", artifact_id="b")
        record(3, None, "ARTIFACT_DELETED", artifact_id="a")
        record(4, "mine", "ARTIFACT_UPLOADED", artifact_id="a")
        assert events.uploaders(rows.session, [1, 3, 4]) == {"a": "u1"}
        for at_ms, job_id, operation_id in ((5, "other", "x"), (6, "mine", "y"), (7, "mine", "x"), (8, "mine", "x")):
            record(at_ms, job_id, "A", operation_id=operation_id)
        assert (first := events.first_of_operation(rows.session, "mine", "x")) is not None
        assert first.at_ms == 7

    def test_the_newest_exceptions_of_each_job_are_kept_until_the_job_is_deleted(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exceptions, "KEPT", 2)
        for at_ms in (1, 2, 3):
            for job_id in ("mine", "other"):
                exceptions.record(rows.session, job_id, 1, at_ms, {"code": "X", "message": "m"})

        def listed(job_id: str) -> list[int]:
            return [each.at_ms for each in exceptions.list_page(rows.session, job_id, PageRequest()).rows]

        assert (listed("mine"), listed("other")) == ([3, 2], [3, 2])
        exceptions.remove(rows.session, "mine")
        assert (listed("mine"), listed("other")) == ([], [3, 2])

    def test_a_long_exception_keeps_the_begin_of_its_message_and_the_end_of_its_traceback(self, rows: Rows) -> None:
        most = exceptions.TEXT_MAX
        failure = {"code": "X", "message": "a" + "b" * most, "traceback": "c" * most + "d", "subtask": 0}
        exceptions.record(rows.session, "mine", 3, 9, failure)
        [kept] = exceptions.list_page(rows.session, "mine", PageRequest()).rows
        assert isinstance(kept, JobException)
        assert (kept.attempt, kept.at_ms, kept.subtask) == (3, 9, 0)
        assert kept.message == "a" + "b" * (most - 1)
        assert kept.traceback == "c" * (most - 1) + "d"

    def test_points_of_an_interval_have_both_ends_in_the_order_of_time(self, rows: Rows) -> None:
        retention = series.RETENTIONS[0]
        for at_ms in (40_000, 10_000, 30_000, 20_000):
            series.store(rows.session, "mine", at_ms + 1, {"restarts": 1})
        series.store(rows.session, "other", 20_000, {"restarts": 1})
        found = series.read(rows.session, "mine", retention, 20_000, 30_000)
        assert [point.at_ms for point in found] == [20_000, 30_000]
        series.remove(rows.session, "mine")
        assert len(series.read(rows.session, "mine", retention, 0, 90_000)) == 0
        assert len(series.read(rows.session, "other", retention, 0, 90_000)) == 1

    def test_values_of_one_step_are_merged_each_in_its_way(self, rows: Rows) -> None:
        first = {
            "watermark_ms": 9,
            "input_records": 7,
            "lag_ms": 5,
            "checkpoint_duration_min_ms": 4,
            "restarts": 1,
            "processed_rate": 10.0,
            "busy_ratio": 0.5,
        }
        series.store(rows.session, "mine", 10_001, first)
        series.store(rows.session, "mine", 10_002, {"processed_rate": 40.0})
        second = {"watermark_ms": 8, "input_records": 6, "lag_ms": 6, "checkpoint_duration_min_ms": 5, "restarts": 2}
        series.store(rows.session, "mine", 10_003, {**second, "processed_rate": 40.0, "busy_ratio": 1.0})
        rows.session.expire_all()
        [point] = series.read(rows.session, "mine", series.RETENTIONS[0], 10_000, 10_000)
        assert (point.watermark_ms, point.input_records, point.lag_ms) == (8, 7, 6)
        assert (point.checkpoint_duration_min_ms, point.restarts) == (4, 3)
        assert (point.processed_rate, point.busy_ratio) == (30.0, 0.75)

    def test_a_later_round_replaces_a_point_and_an_earlier_value_does_not(self, rows: Rows) -> None:
        retention = series.RETENTIONS[0]
        series.store(rows.session, "mine", 10_000, {"restarts": 5})
        series.store(rows.session, "mine", 10_000 + retention.span_ms, {"restarts": 1})
        series.store(rows.session, "mine", 10_000, {"restarts": 7})
        rows.session.expire_all()
        [point] = series.read(rows.session, "mine", retention, 0, 2 * retention.span_ms)
        assert (point.at_ms, point.restarts) == (10_000 + retention.span_ms, 1)

    def test_pages_of_a_scopes_events_have_each_event_of_its_jobs_once(self, rows: Rows) -> None:
        for at_ms in range(10, 80, 10):
            self.record(rows, at_ms, job_id="mine" if at_ms % 20 else "other")
        scope, seen = JobScope(frozenset({"mine"})), list[int]()
        page: PageRequest | None = PageRequest(limit=2)
        while page is not None:
            found = events.list_page(rows.session, None, page, scope=scope)
            seen += [event.at_ms for event in found.rows]
            page = None if found.next is None else PageRequest(limit=2, after=found.next)
        assert seen == [70, 50, 30, 10]

    @pytest.mark.parametrize("suffix", ["", "-name"])
    @pytest.mark.parametrize("limit", [1, 2])
    def test_pages_of_the_events_of_several_jobs_are_in_one_order(self, rows: Rows, limit: int, suffix: str) -> None:
        rows.job("third")
        rows.job("beyond")
        owners = ["third", "mine", "beyond", "other", "mine", "mine", "beyond"]
        for at_ms, job_id in enumerate(owners):
            self.record(rows, at_ms, job_id=job_id)
        scope = JobScope(frozenset(f"{name}{suffix}" for name in ("mine", "other", "third")))
        seen: list[int] = []
        page: PageRequest | None = PageRequest(limit=limit)
        while page is not None:
            found = events.list_page(rows.session, None, page, scope=scope)
            seen += [event.at_ms for event in found.rows]
            page = None if found.next is None else PageRequest(limit=limit, after=found.next)
        assert seen == [5, 4, 3, 1, 0]

    def test_only_ended_attempts_without_processes_beyond_the_kept_ones_are_removed(self, rows: Rows) -> None:
        for number, columns in enumerate(({"reaped": True}, {"reaped": False}, {"reaped": True}, {"reaped": True}), 1):
            rows.attempt(number, **columns)
        rows.attempt(5, ACTIVE)
        assert history.remove_attempts(rows.session, "mine", keep=2, some=10) == 2
        assert attempts.numbers_of(rows.session, ["mine"]) == {"mine": {2, 4, 5}}
        assert history.remove_attempts(rows.session, "mine", keep=0, some=10) == 1
        assert attempts.numbers_of(rows.session, ["mine"]) == {"mine": {2, 5}}

    def test_only_ended_operations_beyond_the_kept_ones_and_without_attempts_are_removed(self, rows: Rows) -> None:
        rows.attempt(2)
        for at_ms, (name, columns) in enumerate(
            (
                ("of a removed attempt", {"old_attempt": 1}),
                ("of a kept attempt", {"old_attempt": 2}),
                ("made a kept attempt", {"old_attempt": 1, "new_attempt": 2}),
                ("snapshot", {"old_attempt": 2, "kind": OperationKind.SAVEPOINT}),
                ("running", {"old_attempt": 1, "status": OperationStatus.IN_PROGRESS}),
                ("waiting", {"old_attempt": None, "status": OperationStatus.PENDING_APPROVAL}),
                ("newest but one", {"old_attempt": 1}),
                ("newest", {"old_attempt": 1}),
            )
        ):
            rows.change(name, at_ms=at_ms, **columns)
        rows.change("elsewhere", job_id="other", at_ms=0)
        assert history.remove_operations(rows.session, "mine", keep=2, some=1) == 1
        assert history.remove_operations(rows.session, "mine", keep=2, some=10) == 1
        kept = [one.id for one in operations.list_page(rows.session, "mine", PageRequest()).rows]
        assert kept == ["newest", "newest but one", "waiting", "running", "made a kept attempt", "of a kept attempt"]
        assert len(operations.list_page(rows.session, "other", PageRequest()).rows) == 1

    def test_removed_checkpoints_are_summed_up_by_day_and_complete_or_needed_ones_stay(self, rows: Rows) -> None:
        day_ms = 86_400_000
        for number, status, columns in (
            (1, SUBSUMED, {}),
            (2, FAILED, {}),
            (3, COMPLETED, {}),
            (4, SUBSUMED, {"external_path": "origin"}),
            (5, CheckpointStatus.DISCARDED, {"discard_requested_at_ms": 1}),
            (6, SUBSUMED, {"trigger_timestamp": day_ms}),
            (7, SUBSUMED, {}),
        ):
            rows.checkpoint(number, status, **columns)
        rows.attempt(1, restore_from="origin")
        assert history.remove_checkpoints(rows.session, "mine", keep=1, some=10) == 3
        kept = checkpoints.list_page(rows.session, "mine", PageRequest()).rows
        assert [one.checkpoint_id for one in kept] == [7, 5, 4, 3]
        first, second = rows.session.scalars(select(CheckpointDay).order_by(CheckpointDay.day)).all()
        assert (first.day, first.completed, first.failed, first.state_size_max) == (0, 1, 1, 2)
        assert (second.day, second.completed, second.failed, second.checkpointed_size) == (1, 1, 0, 6)

    def test_checkpoints_that_are_removed_later_are_added_to_their_days_and_a_few_go_at_once(self, rows: Rows) -> None:
        for number, size in ((1, 5), (2, 9), (3, 7)):
            sizes = {"state_size": size, "checkpointed_size": size, "end_to_end_duration": size}
            rows.checkpoint(number, FAILED if number == 2 else SUBSUMED, processed_records=size, **sizes)
        rows.checkpoint(4)
        rows.checkpoint(1, SUBSUMED, job_id="other")
        assert [history.remove_checkpoints(rows.session, "mine", keep=1, some=2) for _ in range(3)] == [2, 1, 0]
        [day] = rows.session.scalars(select(CheckpointDay)).all()
        assert (day.job_id, day.day, day.completed, day.failed) == ("mine", 0, 2, 1)
        assert (day.checkpointed_size, day.processed_records, day.state_size_max) == (21, 21, 9)
        assert (day.end_to_end_duration, day.end_to_end_duration_max) == (21, 9)

    def test_the_subtasks_of_old_snapshots_without_objects_are_removed(self, rows: Rows) -> None:
        statuses = (COMPLETED, SUBSUMED, FAILED, CheckpointStatus.DISCARDED, SUBSUMED)
        for number, status in enumerate(statuses, 1):
            checkpoints.store_subtasks(rows.session, rows.checkpoint(number, status), parts(number, [0, 1]))
        foreign = rows.checkpoint(2, SUBSUMED, job_id="other")
        checkpoints.store_subtasks(rows.session, foreign, parts(2, [0]))
        assert [history.remove_subtasks(rows.session, "mine", keep=1, some=4) for _ in range(3)] == [4, 2, 0]
        kept = rows.session.execute(select(CheckpointSubtask.job_id, CheckpointSubtask.checkpoint_id).distinct())
        assert set(map(tuple, kept)) == {("mine", 1), ("mine", 5), ("other", 2)}

    def test_refused_requests_and_other_events_each_have_a_number_that_is_kept(self, rows: Rows) -> None:
        for number in range(1, 9):
            self.record(rows, number, kind="ACCESS_DENIED" if number % 2 else "A")
        assert [history.remove_most_events(rows.session, keep=2, some=1) for _ in range(3)] == [1, 1, 0]
        assert [history.remove_refusals(rows.session, keep=1, some=2) for _ in range(3)] == [2, 1, 0]
        assert set(rows.session.scalars(select(Event.at_ms))) == {6, 8, 7}

    def test_old_events_go_from_the_moment_on_that_is_kept(self, rows: Rows) -> None:
        for at_ms in (10, 20, 30):
            self.record(rows, at_ms)
        assert history.remove_events(rows.session, before_ms=20, some=10) == 1
        listed = events.list_page(rows.session, "mine", PageRequest()).rows
        assert [event.at_ms for event in listed] == [30, 20]

    def test_an_event_has_the_origin_of_the_request_that_is_answered(self, rows: Rows) -> None:
        origin = events.EventOrigin("request-1", "10.0.0.7", actor="of the request", actor_id="user-1")
        token = events.ORIGIN.set(origin)
        try:
            self.record(rows, 10, kind="WITHIN")
        finally:
            events.ORIGIN.reset(token)
        self.record(rows, 20, kind="BESIDE", job_id="other")
        beside, within = rows.session.scalars(select(Event).order_by(Event.kind)).all()
        assert (within.actor, within.actor_id, within.address, within.request_id) == (
            "ann",
            "user-1",
            "10.0.0.7",
            "request-1",
        )
        assert (beside.actor_id, beside.address, beside.request_id) == (None, None, None)
        assert (beside.job_id, beside.at_ms, beside.message, beside.details) == ("other", 20, "20", {})

    def test_requested_changes_of_state_are_known_until_their_savepoint_is_listed(self, rows: Rows) -> None:
        def request(at_ms: int, job_id: str, savepoint_id: str, kind: str = events.STATE_CHANGE_REQUESTED) -> None:
            details = {"savepoint_id": savepoint_id}
            events.record(rows.session, job_id=job_id, at_ms=at_ms, kind=kind, message="m", **details)
            rows.session.flush()

        request(9, "mine", "early")
        request(10, "mine", "s")
        request(11, "mine", "listed")
        request(12, "other", "t")
        request(13, "mine", "done", kind="STATE_CHANGED")
        request(14, "deleted", "u")
        rows.checkpoint(1, savepoint_id="listed")
        rows.checkpoint(1, savepoint_id="s", job_id="other")
        found = events.changes_without_savepoint(rows.session, 10)
        assert [(event.at_ms, store) for event, store in found] == [(12, "file:///other"), (10, "file:///mine")]
        assert [event.at_ms for event in events.requested_state_changes(rows.session, "mine")] == [11, 10, 9]

    def test_an_exception_has_each_value_of_its_failure(self, rows: Rows) -> None:
        failure = {"code": "X", "message": "m", "traceback": "t", "operator_uid": "count", "subtask": 5}
        exceptions.record(rows.session, "mine", 3, 9, failure)
        exceptions.record(rows.session, "other", 4, 10, {"code": "Y", "message": "n"})
        [kept] = exceptions.list_page(rows.session, "mine", PageRequest()).rows
        of_row = {"id": kept.id, "job_id": "mine", "attempt": 3, "at_ms": 9}
        assert fields_of(kept) == {**of_row, **failure}
        [bare] = exceptions.list_page(rows.session, "other", PageRequest()).rows
        assert (bare.code, bare.traceback, bare.operator_uid, bare.subtask) == ("Y", None, None, None)

    def test_old_history_goes_a_few_rows_at_once_with_the_oldest_first(self, rows: Rows) -> None:
        for number in (3, 1, 2, 4):
            rows.attempt(number, reaped=True)
            rows.attempt(number, reaped=True, job_id="other")
            self.record(rows, 10 * number)
        assert history.remove_attempts(rows.session, "mine", keep=1, some=2) == 2
        assert attempts.numbers_of(rows.session, ["mine", "other"]) == {"mine": {3, 4}, "other": {1, 2, 3, 4}}
        assert history.remove_events(rows.session, before_ms=99, some=3) == 3
        assert list(rows.session.scalars(select(Event.at_ms))) == [40]

    def test_a_discarded_checkpoint_goes_once_its_objects_are_deleted(self, rows: Rows) -> None:
        discarded = {"discard_requested_at_ms": 1}
        rows.checkpoint(1, CheckpointStatus.DISCARDED, objects_deleted_at_ms=2, **discarded)
        rows.checkpoint(2, CheckpointStatus.DISCARDED, **discarded)
        rows.checkpoint(3, SUBSUMED, external_path="origin")
        rows.checkpoint(4)
        rows.attempt(1, restore_from="origin", job_id="other")
        assert history.remove_checkpoints(rows.session, "mine", keep=1, some=10) == 2
        kept = checkpoints.list_page(rows.session, "mine", PageRequest()).rows
        assert [one.checkpoint_id for one in kept] == [4, 2]

    def test_a_value_is_kept_in_the_steps_of_every_retention(self, rows: Rows) -> None:
        at_ms = 3 * series.DAYS.step_ms + 70_000
        for later_ms, restarts in ((0, 1), (10_000, 2), (60_000, 4)):
            series.store(rows.session, "mine", at_ms + later_ms, {"restarts": restarts, "busy_ratio": 0.5})
        found = []
        for retention in series.RETENTIONS:
            points = series.read(rows.session, "mine", retention, at_ms - at_ms % retention.step_ms, 10 * at_ms)
            found.append([(point.at_ms - at_ms, point.restarts, point.busy_samples) for point in points])
        tens, minutes, quarters, days = found
        assert tens == [(0, 1, 1), (10_000, 2, 1), (60_000, 4, 1)]
        assert minutes == [(-10_000, 3, 2), (50_000, 4, 1)]
        assert quarters == days == [(-70_000, 7, 3)]

    def test_a_step_keeps_the_values_that_are_not_given_again_and_a_new_step_does_not(self, rows: Rows) -> None:
        tens, minutes = series.RETENTIONS[:2]
        series.store(rows.session, "mine", 60_000, {"lag_ms": 5, "user_metrics": {"a": [1.0]}})
        series.store(rows.session, "mine", 60_001, {"restarts": 1, "user_metrics": {"b": [2.0]}})
        series.store(rows.session, "mine", 60_000 + tens.span_ms, {"restarts": 2})
        rows.session.expire_all()
        [point] = series.read(rows.session, "mine", tens, 0, 2 * tens.span_ms)
        assert (point.lag_ms, point.restarts, point.user_metrics) == (None, 2, None), "the slot of an earlier round"
        first, _ = series.read(rows.session, "mine", minutes, 0, 2 * tens.span_ms)
        assert (first.lag_ms, first.restarts, first.user_metrics) == (5, 1, {"b": [2.0]})


class TestReplicas:
    def test_the_replicas_that_are_alive_are_known_by_their_addresses_the_last_seen_first(self, rows: Rows) -> None:
        ages = {"first": 20_000, "second": 1000, "silent": replicas.SEEN_WITHIN_MS + 60_000}
        for name, age_ms in ages.items():
            replicas.announce(rows.session, name, f"http://{name}")
            rows.session.execute(
                update(Replica).where(Replica.id == name).values(seen_at_ms=Replica.seen_at_ms - age_ms)
            )
        assert list(replicas.urls(rows.session)) == ["http://second", "http://first"]
        found = {replica.url: replica.is_alive for replica in replicas.list_all(rows.session)}
        assert found == {"http://first": True, "http://second": True, "http://silent": False}
        addresses = [replicas.url_of(rows.session, name) for name in ("first", "silent", "none")]
        assert addresses == ["http://first", None, None]
        replicas.announce(rows.session, "silent", "http://moved")
        assert replicas.url_of(rows.session, "silent") == "http://moved"
        replicas.withdraw(rows.session, "first")
        assert replicas.url_of(rows.session, "first") is None

    def test_a_replica_that_is_gone_for_long_is_forgotten(self, rows: Rows) -> None:
        ages_ms = {"gone": 101 * replicas.SEEN_WITHIN_MS, "silent": 99 * replicas.SEEN_WITHIN_MS, "here": 1}
        for name, age_ms in ages_ms.items():
            replicas.announce(rows.session, name, f"http://{name}")
            rows.session.execute(
                update(Replica).where(Replica.id == name).values(seen_at_ms=Replica.seen_at_ms - age_ms)
            )
        replicas.announce(rows.session, "again", "http://here")
        first, second, _ = replicas.list_all(rows.session)
        assert first.seen_at_ms > second.seen_at_ms, "of one address by their ids"
        replicas.withdraw(rows.session, "again")
        assert [replica.url for replica in replicas.list_all(rows.session)] == ["http://here", "http://silent"]

    def test_an_epoch_lives_until_the_next_one(self, rows: Rows) -> None:
        first = leaders.begin_epoch(rows.session, "http://first")
        assert leaders.beat(rows.session, first)
        assert leaders.share_epoch(rows.session, first)
        assert leaders.begin_epoch(rows.session, "http://second") == first + 1
        assert not leaders.beat(rows.session, first)
        assert not leaders.share_epoch(rows.session, first)

    def test_the_leader_is_shown_with_its_own_times_and_address(self, rows: Rows) -> None:
        assert leaders.read(rows.session) is None, "there has been no leader"
        epoch = leaders.begin_epoch(rows.session, "http://first")
        rows.session.execute(update(Leader).values(elected_at_ms=70, beat_at_ms=Leader.beat_at_ms - 60_000))
        assert (silent := leaders.read(rows.session)) is not None
        assert (silent.epoch, silent.url, silent.elected_at_ms, silent.is_there) == (epoch, "http://first", 70, False)
        assert 60_000 <= silent.silent_ms < 90_000
        leaders.beat(rows.session, epoch)
        assert (beaten := leaders.read(rows.session)) is not None
        assert (beaten.elected_at_ms, beaten.silent_ms < 9000, beaten.is_there) == (70, True, True)
        leaders.begin_epoch(rows.session, "http://second")
        assert (second := leaders.read(rows.session)) is not None
        assert (second.url, second.elected_at_ms > 70, second.is_there) == ("http://second", True, True)

    def test_an_alarm_has_the_time_of_its_begin(self, rows: Rows) -> None:
        alarms.begin(rows.session, "mine", "LAG", 77)
        rows.session.flush()
        assert fields_of(rows.session.scalars(select(Alarm)).one()) == {"job_id": "mine", "kind": "LAG", "since_ms": 77}

    def test_an_alarm_of_a_job_ends_alone(self, rows: Rows) -> None:
        for job_id, kind in (("mine", "LAG"), ("mine", "FAILED"), ("other", "LAG")):
            alarms.begin(rows.session, job_id, kind, 1)
        rows.session.flush()
        alarms.end(rows.session, "mine", "LAG")
        assert alarms.of_all_jobs(rows.session) == {("mine", "FAILED"), ("other", "LAG")}


class TestLocks:
    """What a statement locks in PostgreSQL, as SQLite has no locks of rows."""

    @pytest.fixture
    def sent(self, rows: Rows) -> list[tuple[str, Any]]:
        """The statements that a query sends, in PostgreSQL's words, with their parameters."""
        kept: list[tuple[str, Any]] = []

        def note(state: ORMExecuteState) -> None:
            text = str(state.statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
            kept.append((" ".join(text.split()), state.parameters))

        event.listen(rows.session, "do_orm_execute", note)
        return kept

    def test_only_the_queries_that_say_so_lock_what_they_find(self, rows: Rows, sent: list[tuple[str, Any]]) -> None:
        rows.attempt(1)
        rows.attempt(3, STANDBY)
        rows.attempt(2, ACTIVE)
        rows.attempt(4, ACTIVE, job_id="other")
        rows.change("move")
        rows.token("token")
        rows.session.add(distinct_row(Artifact))
        rows.session.flush()
        rows.session.expunge_all()
        epoch = leaders.begin_epoch(rows.session, "http://here")
        queries: list[tuple[str, Callable[[], Any]]] = [
            ("", lambda: attempts.find(rows.session, "mine", 1)),
            (" FOR UPDATE", lambda: attempts.find(rows.session, "mine", 2, lock=True)),
            (" FOR UPDATE", lambda: attempts.lock_unended(rows.session, "mine")),
            ("", lambda: jobs.find(rows.session, "mine")),
            (" FOR UPDATE", lambda: jobs.find(rows.session, "mine", lock=True)),
            (" FOR UPDATE", lambda: jobs.lock(rows.session, "mine")),
            ("", lambda: operations.find(rows.session, "move")),
            (" FOR UPDATE", lambda: operations.find(rows.session, "move", lock=True)),
            (" FOR UPDATE", lambda: operations.find_commanded(rows.session, "rescale:move")),
            ("", lambda: tokens.find(rows.session, "token")),
            (" FOR UPDATE", lambda: tokens.find_by_id(rows.session, "token")),
            (" FOR KEY SHARE", lambda: artifacts.keep(rows.session, ["program"])),
            (" FOR KEY SHARE", lambda: leaders.share_epoch(rows.session, epoch)),
        ]
        for number, (lock, query) in enumerate(queries):
            sent.clear()
            query()
            [(text, _)] = sent
            assert text.partition(" FOR ")[1:] == (lock and " FOR ", lock.removeprefix(" FOR ")), number

    def test_an_attempt_that_is_locked_comes_without_its_heartbeat(
        self, rows: Rows, sent: list[tuple[str, Any]]
    ) -> None:
        rows.attempt(1, heartbeat_at_ms=5)
        rows.session.expunge_all()
        found = attempts.find(rows.session, "mine", 1, lock=True)
        assert [" JOIN " in text for text, _ in sent] == [False]
        assert found is not None
        assert found.heartbeat_at_ms == 5
        assert len(sent) == 2

    def test_the_writers_of_artifacts_and_of_names_wait_for_their_own_kind_alone(
        self, rows: Rows, sent: list[tuple[str, Any]]
    ) -> None:
        artifacts.lock_writers(rows.session)
        tokens.lock_names(rows.session)
        operations.reserve_id(rows.session, "the-operation")
        (first, writers), (second, names), (third, reserved) = sent
        assert {first, second} == {"SELECT pg_advisory_xact_lock(%(key)s)"}
        assert third == "SELECT pg_advisory_xact_lock(hashtextextended(%(id)s, 0))"
        assert (writers["key"] != names["key"], reserved) == (True, {"id": "the-operation"})


def _to_reconcile(rows: Rows) -> list[str]:
    return [sign.id for sign in job_signs.to_reconcile(rows.session)]


def test_a_condition_that_no_row_needs_is_named(rows: Rows) -> None:
    watch = ConditionWatch("keyscale.db.repositories")
    with watch.watching(rows.session.get_bind()):
        rows.attempt(4)
        attempts.count_since(rows.session, "mine", 1)
        assert {part.text for part in watch.undecided} == {
            "attempts.job_id = :job_id",
            "attempts.created_at_ms >= :created_at_ms",
        }
        rows.attempt(5, job_id="other")
        attempts.count_since(rows.session, "mine", 1)
    [part] = watch.undecided
    assert part == ("attempts.count_since", "condition", "attempts.created_at_ms >= :created_at_ms")


@pytest.mark.real
@pytest.mark.exhaustive
def test_each_condition_and_order_of_a_query_decides_in_a_test_above(engine: Engine, watch: ConditionWatch) -> None:
    assert event.contains(engine, "before_execute", watch._before_execute), "the watch is off"
    undecided = [part for part in sorted(watch.undecided) if part.text not in UNDECIDING]
    assert not undecided, "\n".join(map(str, undecided))

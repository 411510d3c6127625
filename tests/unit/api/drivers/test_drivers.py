"""A report changes the rows of its own attempt, once, and only while the attempt may still change them."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Self

import pytest

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.access.tokens import reserved_token
from keyscale.api.drivers import drivers as service
from keyscale.api.drivers.drivers import (
    artifact_bytes,
    attach,
    heartbeat,
    report_checkpoint,
    report_diagnostic,
    store_credentials,
)
from keyscale.api.drivers.report_validity import ReportedAttempt
from keyscale.api.errors import AttemptOverError, ReportInvalidError, StoreRoleMissingError, StoreUnavailableError
from keyscale.api.lifecycle.decision import DEFAULT_TIMEOUTS
from keyscale.db.models import Artifact, Attempt, Checkpoint, Job, Operation, Revision
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    CheckpointReport,
    Command,
    CommandResult,
    Commit,
    DiagnosticReport,
    DriverMetrics,
    Failure,
    FailureHistory,
    Heartbeat,
    StoreCredentials,
)
from keyscale.jobs.protocol.specification import CheckpointSettings, JobSpec, NoRestart
from keyscale.state.objects.s3_grant import GrantedCredentials
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CheckpointStatus,
    ClaimMode,
    CommandKind,
    CommandStatus,
    DriverState,
    OperationKind,
    OperationStatus,
    RescaleMode,
    RestoreMode,
    SnapshotOwner,
)

NOW_MS, SHARED_MS = 50_000, 70_000
SPEC = JobSpec(artifact_id="program", checkpoints=CheckpointSettings(interval_ms=900), restart=NoRestart())
SECRET = "hunter2hunter2"  # noqa: S105 - a test's own
DRIVER = DriverIdentity("job", 4, over=False)
CREDENTIALS = GrantedCredentials("access", "secret", "token", 99)
FAILURE = Failure(code="X", message=f"it broke with {SECRET}")
COMPLETED, FAILED, IN_PROGRESS = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED, CheckpointStatus.IN_PROGRESS


class Rows:
    """One job and the driver of its attempt 4, in place of a control plane and its database."""

    def __init__(self) -> None:
        self.job = Job(id="job", name="flights", store_url="file:///store", max_parallelism=8)
        self.attempt = Attempt(
            job_id="job", number=4, stage=AttemptStage.ACTIVE, revision=2, parallelism=2, driver_state="RUNNING"
        )
        self.revision = Revision(number=2, spec=SPEC.given())
        self.checkpoint: Checkpoint | None = None
        self.change: Operation | None = None
        self.artifact = Artifact(id="program", filename="job.py", sha256="a" * 64)
        self.operations: dict[str, Operation] = {}
        self.noted: list[tuple[Any, ...]] = []
        self.rung = 0
        self.confirms = False
        self.asked: list[Any] = []
        self.context: Any = SimpleNamespace(
            sessions=SimpleNamespace(begin=lambda: self),
            reads=lambda: self,
            wakeup=SimpleNamespace(ring=self._ring),
            announcer=SimpleNamespace(urls=["https://here"]),
            launcher=SimpleNamespace(secrets_of=self._secrets_of),
            store=SimpleNamespace(confirms_checkpoint=self._confirm),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the transaction."""

    def add(self, row: Any) -> None:
        assert isinstance(row, Checkpoint)
        self.checkpoint = row

    def flush(self) -> None:
        """Sends nothing."""

    def _secrets_of(self, job_id: str, number: int, _: Any) -> dict[str, str]:
        return {"KEYSCALE_JOB_SECRET_ORDERS": SECRET} if (job_id, number) == ("job", 4) else {}

    def _ring(self) -> None:
        self.rung += 1

    def _confirm(self, *asked: Any, **more: Any) -> bool:
        self.asked.append((*asked, more))
        return self.confirms

    def note(self, name: str) -> Any:
        def take(*values: Any, **more: Any) -> None:
            self.noted.append((name, *values[1:], *more.values()))

        return take

    def names(self) -> list[str]:
        return [name for name, *_ in self.noted]

    def command(self, operation_id: str, *, job_id: str = "job", attempt: int = 4, **columns: Any) -> Operation:
        given = {"command_status": CommandStatus.IN_PROGRESS, "kind": OperationKind.SAVEPOINT, **columns}
        made = Operation(
            id=operation_id, job_id=job_id, old_attempt=attempt, status=OperationStatus.IN_PROGRESS, **given
        )
        self.operations[operation_id] = made
        return made


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()

    def of_job(row: Any) -> Any:
        return lambda _, job_id, *__, **___: row() if job_id == "job" else None

    def find_attempt(_: Any, job_id: str, number: int, **__: Any) -> Attempt | None:
        return rows.attempt if (job_id, number) == ("job", 4) else None

    def pending(_: Any, job_id: str, number: int) -> list[Operation]:
        own = [each for each in rows.operations.values() if (each.job_id, each.old_attempt) == (job_id, number)]
        return [each for each in own if each.command_status is CommandStatus.IN_PROGRESS]

    replaced = {
        service.jobs: {"find": of_job(lambda: rows.job), "lock": of_job(lambda: rows.job)},
        service.attempts: {"find": find_attempt, "repeat_heartbeat": lambda *_, **__: None},
        service.checkpoints: {
            "find": of_job(lambda: rows.checkpoint),
            "next_id": of_job(lambda: 8),
            "store_subtasks": rows.note("subtasks"),
            "mark_subsumed": rows.note("subsumed"),
        },
        service.operations: {
            "find": lambda _, operation_id, **__: rows.operations.get(operation_id),
            "pending": pending,
            "note_progress": rows.note("progress"),
            "running": of_job(lambda: rows.change),
        },
        service.diagnostics: {"pending": lambda *_: []},
        service.revisions: {"in_use": lambda *_: [], "of_attempt": lambda *_: rows.revision},
        service.events: {"record": rows.note("event")},
        service.exceptions: {"record": rows.note("exception")},
        service.artifacts: {"find": lambda _, name: {"program": rows.artifact}.get(name)},
        service.series: {
            "begin_counting": lambda *_: rows.noted.append(("begin counting", rows.attempt.metrics)),
            "sample": rows.note("sample"),
            "note_checkpoint": rows.note("completed"),
            "note_failed_checkpoint": rows.note("failed"),
            "take_back_failed_checkpoint": rows.note("taken back"),
            "note_restart": rows.note("restart"),
        },
        service: {
            "now_ms": lambda: NOW_MS,
            "shared_now_ms": lambda: SHARED_MS,
            "libraries_of": lambda _, names: SimpleNamespace(
                files=[{"filename": names[0], "sha256": "b" * 64, "kind": "PYTHON"}]
            ),
            "totals_before": lambda _, *key: {("job", 4): {"input_records": 6}}[key],
        },
    }
    for module, functions in replaced.items():
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)
    return rows


def report(status: CheckpointStatus = COMPLETED, number: int = 7, **fields: Any) -> CheckpointReport:
    path = ReportedAttempt("job", "file:///store", 4, AttemptStage.ACTIVE, 2, 8).location(number, None)
    given = {"external_path": path if status is COMPLETED else None, "trigger_timestamp": 100, **fields}
    return CheckpointReport.model_validate({"checkpoint_id": number, "status": str(status), **given})


def known(status: CheckpointStatus, attempt: int = 4, **columns: Any) -> Checkpoint:
    return Checkpoint(job_id="job", checkpoint_id=7, attempt=attempt, status=status, **columns)


def send(rows: Rows, given: CheckpointReport, *, over: bool = False) -> None:
    report_checkpoint(rows.context, DriverIdentity("job", 4, over=over), given)


class TestCheckpoint:
    def test_it_is_stored_with_its_subtasks_and_counted(self, rows: Rows) -> None:
        send(rows, report(state_size=30, subsumed_checkpoint_ids=[5]))
        assert rows.checkpoint is not None
        assert (rows.checkpoint.job_id, rows.checkpoint.checkpoint_id, rows.checkpoint.attempt) == ("job", 7, 4)
        assert (rows.checkpoint.status, rows.checkpoint.state_size) == (COMPLETED, 30)
        assert rows.noted == [
            ("subtasks", rows.checkpoint, []),
            ("subsumed", "job", [5]),
            ("completed", rows.checkpoint, NOW_MS),
        ]

    @pytest.mark.parametrize(
        ("before", "is_stored"),
        [
            (known(IN_PROGRESS), True),
            (known(FAILED, failure_timestamp=30), True),
            (known(IN_PROGRESS, attempt=3), True),
            (known(IN_PROGRESS, attempt=5), False),
            (known(COMPLETED), False),
            (known(CheckpointStatus.SUBSUMED), False),
            (known(CheckpointStatus.DISCARDED), False),
        ],
    )
    def test_a_final_one_and_one_of_a_newer_attempt_stay(self, rows: Rows, before: Checkpoint, is_stored: bool) -> None:
        rows.checkpoint = before
        send(rows, report(IN_PROGRESS))
        assert bool(rows.noted) is is_stored
        assert (before.trigger_timestamp == 100) is is_stored

    @pytest.mark.parametrize(
        ("failed_at_ms", "status", "counted"),
        [
            (None, FAILED, ["failed"]),
            (30, FAILED, []),
            (30, IN_PROGRESS, ["taken back"]),
            (30, COMPLETED, ["completed", "taken back"]),
            (None, IN_PROGRESS, []),
            (None, COMPLETED, ["completed"]),
        ],
    )
    def test_a_failure_is_counted_once_and_taken_back_when_it_is_none(
        self, rows: Rows, failed_at_ms: int | None, status: CheckpointStatus, counted: list[str]
    ) -> None:
        rows.checkpoint = known(IN_PROGRESS if failed_at_ms is None else FAILED, failure_timestamp=failed_at_ms)
        send(rows, report(status))
        assert rows.names() == ["subtasks", "subsumed", *counted]
        for name, *values in rows.noted:
            assert name != "taken back" or values == ["job", 30]

    @pytest.mark.parametrize(
        ("status", "confirms", "is_stored"), [(COMPLETED, True, True), (COMPLETED, False, False), (FAILED, True, False)]
    )
    def test_one_of_an_attempt_that_is_over_counts_if_the_store_has_it(
        self, rows: Rows, status: CheckpointStatus, confirms: bool, is_stored: bool
    ) -> None:
        rows.attempt.stage, rows.confirms = AttemptStage.ENDED, confirms
        send(rows, report(status), over=True)
        assert (rows.checkpoint is not None) is is_stored
        of_driver = {"attempt": 4, "checkpoint_id": 7, "savepoint_id": None}
        assert rows.asked == ([("file:///store", "job", of_driver)] if status is COMPLETED else [])

    def test_one_of_an_attempt_that_ends_at_this_moment_is_sent_again(self, rows: Rows) -> None:
        rows.attempt.stage = AttemptStage.ENDED
        with pytest.raises(AttemptOverError):
            send(rows, report())
        assert rows.checkpoint is None

    def test_one_that_cannot_be_true_is_refused(self, rows: Rows) -> None:
        with pytest.raises(ReportInvalidError):
            send(rows, report(external_path="file:///elsewhere"))
        assert (rows.checkpoint, rows.noted) == (None, [])

    @pytest.mark.parametrize(("attempt", "owner"), [(4, SnapshotOwner.USER), (3, SnapshotOwner.PLATFORM)])
    def test_its_owner_stays_but_a_newer_attempt_takes_another_one_under_its_number(
        self, rows: Rows, attempt: int, owner: SnapshotOwner
    ) -> None:
        rows.checkpoint = known(IN_PROGRESS, attempt=attempt, owner=SnapshotOwner.USER)
        send(rows, report())
        assert (rows.checkpoint.owner, rows.checkpoint.attempt) == (owner, 4)

    @pytest.mark.parametrize(
        ("columns", "owner"),
        [
            ({"kind": OperationKind.SAVEPOINT}, SnapshotOwner.USER),
            ({"kind": OperationKind.UPGRADE}, SnapshotOwner.PLATFORM),
            ({"kind": OperationKind.UPGRADE, "job_id": "other"}, SnapshotOwner.USER),
            (None, SnapshotOwner.USER),
        ],
    )
    def test_a_savepoint_is_of_who_has_asked_for_it(
        self, rows: Rows, columns: dict[str, Any] | None, owner: SnapshotOwner
    ) -> None:
        if columns is not None:
            rows.command("mine", **columns)
        path = ReportedAttempt("job", "file:///store", 4, AttemptStage.ACTIVE, 2, 8).location(7, "mine")
        send(rows, report(is_savepoint=True, savepoint_id="mine", external_path=path))
        assert rows.checkpoint is not None
        assert (rows.checkpoint.owner, rows.checkpoint.savepoint_id) == (owner, "mine")

    def test_its_failure_has_no_secret(self, rows: Rows) -> None:
        send(rows, report(FAILED, failure_message=f"no {SECRET}"))
        assert rows.checkpoint is not None
        assert rows.checkpoint.failure_message is not None
        assert SECRET not in rows.checkpoint.failure_message


def beat(rows: Rows, state: DriverState = DriverState.RUNNING, **fields: Any) -> Any:
    return heartbeat(rows.context, DRIVER, Heartbeat(state=state, revision=2, **fields))


class TestHeartbeat:
    @pytest.mark.parametrize(
        "driver", [DRIVER, DriverIdentity("other", 4, over=False), DriverIdentity("job", 5, over=False)]
    )
    def test_only_an_attempt_that_goes_on_is_heard(self, rows: Rows, driver: DriverIdentity) -> None:
        rows.attempt.stage = AttemptStage.ENDED if driver is DRIVER else AttemptStage.ACTIVE
        with pytest.raises(AttemptOverError):
            heartbeat(rows.context, driver, Heartbeat(state=DriverState.RUNNING))
        assert rows.noted == []

    def test_it_is_stored_with_the_time_that_all_replicas_share(self, rows: Rows) -> None:
        answer = beat(rows, metrics=DriverMetrics(input_records=3))
        assert (rows.attempt.heartbeat_at_ms, rows.attempt.running_at_ms) == (SHARED_MS, NOW_MS)
        assert rows.attempt.metrics["input_records"] == 3
        assert answer.control_urls == ["https://here"]
        assert rows.noted == [
            ("begin counting", None),
            ("sample", "job", DriverMetrics(input_records=3), None, True, NOW_MS),
        ], "it begins to count before the first metrics are stored"

    @pytest.mark.parametrize(
        ("state", "kind", "sleeps"),
        [
            (DriverState.SLEEPING, None, True),
            (DriverState.SLEEPING, OperationKind.STOP, True),
            (DriverState.SLEEPING, OperationKind.RESCALE, True),
            (DriverState.SLEEPING, OperationKind.DRAIN, False),
            (DriverState.SLEEPING, OperationKind.SAVEPOINT, False),
            (DriverState.SLEEPING, OperationKind.CHECKPOINT, False),
            (DriverState.RUNNING, OperationKind.STOP, False),
            (DriverState.RUNNING, None, True),
        ],
    )
    def test_a_sleeping_driver_wakes_only_for_an_operation_that_it_must_carry_out(
        self, rows: Rows, state: DriverState, kind: OperationKind | None, sleeps: bool
    ) -> None:
        rows.attempt.sleep_requested_at_ms = 1
        if kind is not None:
            rows.command("own", kind=kind)
        assert beat(rows, state).sleeps is sleeps

    @pytest.mark.parametrize(("state", "names"), [(DriverState.RUNNING, ["own"]), (DriverState.RESTORING, [])])
    def test_a_running_driver_gets_its_commands_that_have_no_result(
        self, rows: Rows, state: DriverState, names: list[str]
    ) -> None:
        rows.command("own", kind=OperationKind.DRAIN)
        rows.command("done", command_status=CommandStatus.COMPLETED)
        rows.command("of another", attempt=3)
        commands = beat(rows, state).commands
        assert [command.id for command in commands] == names
        assert all((command.savepoint_id, command.drain) == ("own", True) for command in commands)

    @pytest.mark.parametrize(
        ("columns", "is_stored"),
        [
            ({}, True),
            ({"attempt": 3}, False),
            ({"job_id": "other"}, False),
            ({"command_status": CommandStatus.COMPLETED}, False),
        ],
    )
    def test_the_result_of_a_command_of_its_own_is_stored_once_and_wakes_the_reconciler(
        self, rows: Rows, columns: dict[str, Any], is_stored: bool
    ) -> None:
        command = rows.command("c", kind=OperationKind.CHECKPOINT, **columns)
        answer = beat(rows, results=[CommandResult(command_id="c", status="FAILED", failure=FAILURE)])
        assert (command.command_status is CommandStatus.FAILED) is is_stored
        assert (rows.rung == 1) is is_stored
        assert answer.commands == []
        if is_stored:
            assert command.failure is not None
            assert SECRET not in command.failure["message"]

    def test_one_of_news_and_results_wakes_the_reconciler_whatever_follows(self, rows: Rows) -> None:
        rows.command("c", kind=OperationKind.CHECKPOINT)
        failed = [CommandResult(command_id=name, status="FAILED", failure=FAILURE) for name in ("c", "unknown")]
        beat(rows, results=failed)
        assert rows.rung == 1
        beat(rows, DriverState.RESTORING, results=failed)
        assert rows.rung == 2

    @pytest.mark.parametrize(
        ("stage", "state", "is_current"),
        [
            (AttemptStage.ACTIVE, DriverState.RUNNING, True),
            (AttemptStage.ACTIVE, DriverState.SLEEPING, True),
            (AttemptStage.ACTIVE, DriverState.RESTORING, False),
            (AttemptStage.RESERVED, DriverState.RUNNING, False),
        ],
    )
    def test_only_the_driver_that_runs_the_job_gives_its_present_figures(
        self, rows: Rows, stage: AttemptStage, state: DriverState, is_current: bool
    ) -> None:
        rows.attempt.stage = stage
        beat(rows, state, attempt=4)
        assert [note[4] for note in rows.noted if note[0] == "sample"] == [is_current]

    def test_a_result_that_cannot_be_true_is_refused(self, rows: Rows) -> None:
        rows.command("c")
        with pytest.raises(ReportInvalidError):
            beat(rows, results=[CommandResult(command_id="c", status="COMPLETED", location="file:///elsewhere")])

    @pytest.mark.parametrize(
        ("asked_at_ms", "waits", "sleeps"), [(None, False, False), (1, False, True), (1, True, False)]
    )
    def test_a_driver_sleeps_when_it_is_asked_to_and_no_command_waits(
        self, rows: Rows, asked_at_ms: int | None, *, waits: bool, sleeps: bool
    ) -> None:
        rows.attempt.sleep_requested_at_ms = asked_at_ms
        if waits:
            rows.command("c", kind=OperationKind.SAVEPOINT)
        assert beat(rows).sleeps is sleeps

    @pytest.mark.parametrize(("last_ms", "is_sampled"), [(SHARED_MS, False), (SHARED_MS - 10_000, True)])
    def test_a_repeated_heartbeat_is_sampled_with_the_counters_before_its_attempt(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch, last_ms: int, *, is_sampled: bool
    ) -> None:
        before, metrics = {"input_records": 6}, DriverMetrics(waits_for_input=True)
        repeated = SimpleNamespace(heartbeat_at_ms=last_ms, totals_before=before)
        monkeypatch.setattr(service.attempts, "repeat_heartbeat", lambda *_, **__: repeated)
        assert beat(rows, metrics=metrics).control_urls == ["https://here"]
        assert rows.noted == ([("sample", "job", metrics, before, True, NOW_MS)] if is_sampled else [])

    @pytest.mark.parametrize(
        ("state", "fields", "is_asked"),
        [
            (DriverState.RUNNING, {}, True),
            (DriverState.RUNNING, {"metrics": DriverMetrics()}, False),
            (DriverState.SLEEPING, {}, False),
            (DriverState.RUNNING, {"failure": FAILURE}, False),
            (
                DriverState.RUNNING,
                {"results": [CommandResult(command_id="c", status="FAILED", failure=FAILURE)]},
                False,
            ),
        ],
        ids=["idle", "with input", "asleep", "failed", "with a result"],
    )
    def test_only_an_idle_driver_without_news_may_repeat_its_last_heartbeat(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch, state: DriverState, fields: dict[str, Any], *, is_asked: bool
    ) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(service.attempts, "repeat_heartbeat", lambda _, *of, **what: asked.append((*of, what)))
        metrics = DriverMetrics(waits_for_input=True, input_records=3)
        commit = Commit(batch_id=6, at_ms=60)
        beat(rows, state, **{"metrics": metrics, "last_commit": commit, "restored_at_ms": 5, **fields})
        repeated = {
            "metrics_json": metrics.model_dump_json(),
            "last_batch_id": 6,
            "revision": 2,
            "restored_at_ms": 5,
            "at_ms": SHARED_MS,
        }
        assert asked == ([("job", 4, repeated)] if is_asked else [])

    @pytest.mark.parametrize(
        ("stage", "state", "is_current"),
        [
            (AttemptStage.ACTIVE, DriverState.RUNNING, True),
            (AttemptStage.ACTIVE, DriverState.SLEEPING, True),
            (AttemptStage.ACTIVE, DriverState.RESTORING, False),
            (AttemptStage.ACTIVE, DriverState.STOPPED, False),
            (AttemptStage.RESERVED, DriverState.RUNNING, False),
            (AttemptStage.STANDBY, DriverState.STANDBY, False),
        ],
    )
    def test_a_sample_is_of_the_jobs_present_only_while_its_attempt_runs_the_job(
        self, rows: Rows, stage: AttemptStage, state: DriverState, *, is_current: bool
    ) -> None:
        rows.attempt.stage, rows.attempt.totals_before = stage, {"input_records": 6}
        beat(rows, state, attempt=4)
        [sample] = [note for note in rows.noted if note[0] == "sample"]
        assert sample == ("sample", "job", DriverMetrics(), {"input_records": 6}, is_current, NOW_MS)

    def test_a_driver_gets_the_diagnostics_that_wait_for_its_attempt(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = {"id": "d", "kind": "PROFILE", "duration_ms": 7}
        waiting = {("job", 4, SHARED_MS): [SimpleNamespace(request=request)]}
        monkeypatch.setattr(service.diagnostics, "pending", lambda _, *of: waiting[of])
        [command] = beat(rows).diagnostics
        assert (command.id, command.kind, command.duration_ms) == ("d", "PROFILE", 7)

    def test_the_secrets_of_a_report_are_those_of_its_run_and_of_all_revisions_in_use(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows.attempt.run = 2
        monkeypatch.setattr(service.revisions, "in_use", lambda _, job, number: (job.id, number))
        known = {("job", 2, ("job", 4)): {"KEYSCALE_JOB_SECRET_ORDERS": SECRET}}
        rows.context.launcher = SimpleNamespace(secrets_of=lambda *of: known[of])
        beat(rows, DriverState.FAILED, failure=FAILURE)
        send(rows, report(FAILED, failure_message=f"no {SECRET}"))
        assert rows.checkpoint is not None
        assert SECRET not in f"{rows.attempt.failure} {rows.checkpoint.failure_message}"

    def test_a_new_state_wakes_the_reconciler_and_the_same_one_does_not(self, rows: Rows) -> None:
        beat(rows)
        assert rows.rung == 0
        beat(rows, DriverState.RESTORING)
        assert rows.rung == 1

    @pytest.mark.parametrize(
        ("known_count", "count", "last", "final", "names"),
        [
            (None, 1, FAILURE, None, []),
            (1, 1, FAILURE, None, []),
            (1, 2, None, None, []),
            (1, 2, FAILURE, None, ["event", "restart", "exception"]),
            (1, 2, FAILURE, FAILURE, ["event", "exception"]),
        ],
    )
    def test_a_failure_that_the_driver_restarts_after_is_counted_once(  # noqa: PLR0917 - a table
        self, rows: Rows, known_count: int | None, count: int, last: Failure | None, final: Failure | None, names: Any
    ) -> None:
        if known_count is not None:
            history = FailureHistory(count=known_count, times_ms=[])
            rows.attempt.metrics = DriverMetrics(failures=history).model_dump()
        metrics = DriverMetrics(failures=FailureHistory(count=count, times_ms=[]), last_failure=last)
        beat(rows, metrics=metrics, failure=final)
        assert [name for name in rows.names() if name not in {"begin counting", "sample"}] == names
        assert SECRET not in str([note for note in rows.noted if note[0] != "begin counting"])

    def test_a_fatal_failure_is_recorded_when_it_is_new_and_without_secrets(self, rows: Rows) -> None:
        for _ in range(2):
            beat(rows, DriverState.FAILED, failure=FAILURE)
        recorded = [note for note in rows.noted if note[0] == "exception"]
        assert [note[1:4] for note in recorded] == [("job", 4, NOW_MS)]
        assert SECRET not in str(recorded)
        assert SECRET not in str(rows.attempt.failure)

    def test_a_driver_of_another_revision_gets_the_settings_of_its_own(self, rows: Rows) -> None:
        assert beat(rows).settings is None
        assert heartbeat(rows.context, DRIVER, Heartbeat(state=DriverState.RUNNING)).settings is None
        settings = heartbeat(rows.context, DRIVER, Heartbeat(state=DriverState.RUNNING, revision=1)).settings
        assert settings is not None
        assert (settings.revision, settings.spec) == (2, SPEC)

    def test_a_change_learns_that_its_driver_has_caught_up_and_settled(self, rows: Rows) -> None:
        rows.attempt.restored_at_ms = 1
        beat(rows, restored_at_ms=1, metrics=DriverMetrics(batches=1, waits_for_input=True, pending_records=0))
        assert rows.noted[-1] == ("progress", "job", 4, NOW_MS, None)
        rows.attempt.caught_up_at_ms = NOW_MS - 60_000
        beat(rows, restored_at_ms=1, metrics=DriverMetrics(batches=1, waits_for_input=True, pending_records=6))
        name, *values, figures = rows.noted[-1]
        assert (name, values) == ("progress", ["job", 4, NOW_MS - 60_000])
        assert figures["lag_records"] == 6


class TestAttach:
    def ask(self, rows: Rows, driver: DriverIdentity = DRIVER) -> Any:
        return attach(rows.context, driver, AttachRequest(pid=7, host="here", spark_ui_url="http://here:4040"))

    def test_an_active_attempt_gets_its_assignment_and_keeps_its_first_times(self, rows: Rows) -> None:
        rows.job.hash_id, rows.job.skip_lost_records, rows.job.time_reset_after = "spark", True, 3
        rows.attempt.restore_mode, rows.attempt.claim_mode = RestoreMode.REWIND, ClaimMode.CLAIM
        rows.attempt.restore_from, rows.attempt.restore_id = "file:///s", "w"
        rows.attempt.allow_non_restored_state = True
        changes = {"parallelism": 2, "parameters": {"in": "/in"}, "batch_interval_ms": 40}
        rows.revision.spec = {**rows.revision.spec, **changes}
        rows.revision.artifact_id, rows.revision.libraries = "program", ["helpers.py"]
        given = self.ask(rows).assignment
        assert (given.job_id, given.job_name, given.attempt, given.revision) == ("job", "flights", 4, 2)
        assert (given.spec.given(), given.store_url) == (rows.revision.spec, "file:///store")
        assert (given.artifact_filename, given.artifact_sha256) == ("job.py", "a" * 64)
        assert [library.filename for library in given.libraries] == ["helpers.py"]
        assert (given.restore_mode, given.restore_from, given.restore_id) == ("rewind", "file:///s", "w")
        assert (given.claim_mode, given.allow_non_restored_state) == ("claim", True)
        assert given.next_checkpoint_id == 8
        assert (given.skip_lost_records, given.time_reset_after, given.counters.input_records) == (True, 3, 6)
        assert (rows.attempt.attached_at_ms, rows.attempt.assigned_at_ms) == (NOW_MS, NOW_MS)
        assert (rows.attempt.heartbeat_at_ms, rows.rung) == (SHARED_MS, 1)
        assert (rows.attempt.pid, rows.attempt.host, rows.attempt.spark_ui_url) == (7, "here", "http://here:4040")
        rows.attempt.attached_at_ms = rows.attempt.assigned_at_ms = 1
        self.ask(rows)
        assert (rows.attempt.attached_at_ms, rows.attempt.assigned_at_ms, rows.rung) == (1, 1, 1)

    @pytest.mark.parametrize(
        ("phase", "is_near"), [(None, False), (ChangePhase.REQUESTED, False), (ChangePhase.SAVEPOINT, True)]
    )
    def test_a_standby_waits_and_asks_more_often_once_the_job_stands_still(
        self, rows: Rows, phase: ChangePhase | None, is_near: bool
    ) -> None:
        rows.attempt.stage = AttemptStage.STANDBY
        rows.change = None if phase is None else Operation(id="c", phase=phase)
        answer = self.ask(rows)
        assert (answer.decision, answer.assignment, rows.attempt.assigned_at_ms) == ("wait", None, None)
        assert (answer.retry_after_ms < 100) is is_near
        assert rows.attempt.heartbeat_at_ms == SHARED_MS

    @pytest.mark.parametrize("wants_preview", [True, False])
    def test_a_standby_that_wants_to_try_its_program_is_shown_its_assignment(
        self, rows: Rows, *, wants_preview: bool
    ) -> None:
        rows.attempt.stage, rows.job.skip_lost_records = AttemptStage.STANDBY, False
        rows.attempt.restore_mode, rows.attempt.claim_mode = RestoreMode.CONTINUE, ClaimMode.NO_CLAIM
        rows.attempt.allow_non_restored_state = False
        rows.revision.artifact_id, rows.revision.libraries = "program", ["helpers.py"]
        answer = attach(rows.context, DRIVER, AttachRequest(pid=7, host="here", wants_preview=wants_preview))
        assert (answer.decision, answer.assignment) == ("wait", None)
        assert (answer.preview is not None) is wants_preview
        if answer.preview is not None:
            assert (answer.preview.attempt, answer.preview.revision) == (4, 2)

    def test_a_reserved_attempt_is_opened_by_its_running_driver_alone(self, rows: Rows) -> None:
        rows.attempt.stage = AttemptStage.RESERVED
        assert self.ask(rows).decision == "exit"
        assert (rows.attempt.attached_at_ms, rows.attempt.pid, rows.rung) == (None, None, 0)

    @pytest.mark.parametrize("driver", [DRIVER, DriverIdentity("other", 4, over=False)])
    def test_an_attempt_that_is_over_or_unknown_is_sent_away(self, rows: Rows, driver: DriverIdentity) -> None:
        rows.attempt.stage = AttemptStage.ENDED if driver is DRIVER else AttemptStage.ACTIVE
        assert self.ask(rows, driver).decision == "exit"
        assert (rows.attempt.attached_at_ms, rows.rung) == (None, 0)


class TestRescale:
    def command(self, rows: Rows, **columns: Any) -> Any:
        rows.command("r", kind=OperationKind.RESCALE, rescale_mode=RescaleMode.LIVE, **columns)
        [command] = beat(rows).commands
        return command

    @pytest.fixture
    def reserved(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        rows.revision.artifact_id, rows.revision.libraries = "program", ["helpers.py"]
        modes = {
            "restore_mode": RestoreMode.CONTINUE,
            "claim_mode": ClaimMode.NO_CLAIM,
            "allow_non_restored_state": False,
        }
        rows.job.skip_lost_records = False
        both = [Attempt(job_id="job", number=number, revision=3, **modes) for number in (8, 9)]
        asked = {("job", AttemptStage.RESERVED): both}
        monkeypatch.setattr(service.attempts, "all_of_stage", lambda _, *of: asked[of])
        monkeypatch.setattr(service.replicas, "shared_key", lambda _: "the key")
        monkeypatch.setattr(service, "totals_before", lambda _, __, number: {"input_records": number})
        monkeypatch.setattr(
            Rows, "get_one", lambda self, kind, job_id: {(Job, "job"): self.job}[kind, job_id], raising=False
        )

    @pytest.mark.usefixtures("reserved")
    def test_a_driver_gets_both_attempts_that_it_may_open_with_tokens_of_their_own(self, rows: Rows) -> None:
        command = self.command(rows)
        assert (command.id, command.kind, command.is_withdrawn) == ("r", CommandKind.RESCALE, False)
        assert command.limit_ms == DEFAULT_TIMEOUTS.prepare_ms
        given = (command.next_attempt, command.return_attempt)
        assert [each.assignment.attempt for each in given] == [8, 9]
        assert [each.assignment.counters.input_records for each in given] == [8, 9]
        assert [each.token for each in given] == [reserved_token("the key", f"job:{number}", "r") for number in (8, 9)]

    @pytest.mark.usefixtures("reserved")
    def test_a_cancelled_rescale_is_withdrawn(self, rows: Rows) -> None:
        assert self.command(rows, cancel_requested_at_ms=1).is_withdrawn

    def test_another_command_has_no_attempts(self, rows: Rows) -> None:
        rows.command("s", kind=OperationKind.DRAIN)
        rows.command("u", kind=OperationKind.UPGRADE)
        kind = CommandKind.STOP_WITH_SAVEPOINT
        assert beat(rows).commands == [
            Command(id="s", kind=kind, savepoint_id="s", drain=True),
            Command(id="upgrade:u", kind=kind, savepoint_id="u"),
        ]


class TestDiagnostic:
    @pytest.fixture
    def settled(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        found: list[Any] = []

        def settle(session: Any, *what: Any, **result: Any) -> None:
            assert session is rows
            found.append((*what, result))

        monkeypatch.setattr(service.diagnostics, "find", lambda _, *of: "asked" if of == ("job", "d") else None)
        monkeypatch.setattr(service.diagnostics, "settle", settle)
        return found

    def report(self, rows: Rows, name: str = "d", **fields: Any) -> None:
        report_diagnostic(rows.context, DRIVER, DiagnosticReport(diagnostic_id=name, **fields))

    def test_what_a_driver_shows_is_kept_without_secrets(self, rows: Rows, settled: list[Any]) -> None:
        parts = [{"name": f"of {SECRET}", "text": f"x = {SECRET}"}, {"name": "stacks", "text": "none"}]
        self.report(rows, parts=parts)
        self.report(rows, failure=FAILURE)
        masked = [{"name": "of *****", "text": "x = *****"}, {"name": "stacks", "text": "none"}]
        of = {"job_id": "job", "attempt": 4, "at_ms": SHARED_MS}
        failure = {**FAILURE.model_dump(), "message": "it broke with *****"}
        assert settled == [
            ("d", {**of, "parts": masked, "failure": None}),
            ("d", {**of, "parts": [], "failure": failure}),
        ]

    def test_a_diagnostic_that_nobody_asked_for_is_not_kept(self, rows: Rows, settled: list[Any]) -> None:
        self.report(rows, "other")
        unknown = DriverIdentity("other", 4, over=False)
        report_diagnostic(rows.context, unknown, DiagnosticReport(diagnostic_id="d"))
        assert settled == []

    def test_a_diagnostic_has_a_largest_length(
        self, rows: Rows, settled: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "DIAGNOSTIC_CHARACTERS_MAX", 6)
        self.report(rows, parts=[{"name": "a", "text": "b"}, {"name": "c", "text": "def"}])
        with pytest.raises(ReportInvalidError, match="a diagnostic has at most 6 characters"):
            self.report(rows, parts=[{"name": "a", "text": "b"}, {"name": "c", "text": "defg"}])
        assert len(settled) == 1


class TestStoreCredentials:
    @pytest.fixture
    def assumed(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        found: list[Any] = []

        def assume(*what: Any, **more: Any) -> Any:
            found.append((*what, more))
            return CREDENTIALS

        rows.job.store_url = "s3://bucket/keyscale"
        rows.context.settings = SimpleNamespace(store_role="role", store_token_endpoint="https://sts")  # noqa: S106
        monkeypatch.setattr(service.attempts, "restored_from", lambda _, job_id: {"job": ["restored"]}[job_id])
        monkeypatch.setattr(service, "grant_of", lambda job, restored: ("granted", job.id, restored))
        monkeypatch.setattr(service, "assume", assume)
        return found

    def test_a_driver_gets_credentials_for_its_own_job_and_what_it_restores_from(
        self, rows: Rows, assumed: list[Any]
    ) -> None:
        given = store_credentials(rows.context, DRIVER)
        assert given == StoreCredentials.model_validate(asdict(CREDENTIALS))
        more = {"session": "keyscale-job-4", "endpoint_url": "https://sts"}
        assert assumed == [("role", ("granted", "job", ["restored"]), more)]

    @pytest.mark.parametrize(("role", "store"), [(None, "s3://bucket/keyscale"), ("role", "file:///store")])
    def test_without_a_role_a_driver_has_the_credentials_of_the_control_plane(
        self, rows: Rows, assumed: list[Any], role: str | None, store: str
    ) -> None:
        rows.context.settings.store_role, rows.job.store_url = role, store
        with pytest.raises(StoreRoleMissingError):
            store_credentials(rows.context, DRIVER)
        assert assumed == []

    @pytest.mark.parametrize("driver", [DriverIdentity("job", 4, over=True), DriverIdentity("other", 4, over=False)])
    def test_a_driver_whose_attempt_is_over_gets_none(
        self, rows: Rows, assumed: list[Any], driver: DriverIdentity
    ) -> None:
        with pytest.raises(AttemptOverError):
            store_credentials(rows.context, driver)
        assert assumed == []

    @pytest.mark.usefixtures("assumed")
    def test_a_token_service_that_refuses_is_a_store_that_is_away(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise StoreUnavailableError("the role may not be assumed")

        monkeypatch.setattr(service, "assume", refuse)
        with pytest.raises(StoreUnavailableError, match="STORE_UNAVAILABLE: the role may not be assumed"):
            store_credentials(rows.context, DRIVER)


def test_a_driver_gets_the_program_of_its_own_revision(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.revision.artifact_id = "program"
    monkeypatch.setattr(service, "stored_bytes", lambda context, sha256: (context is rows.context, sha256))
    assert artifact_bytes(rows.context, DRIVER) == (True, "a" * 64)
    for driver in (DriverIdentity("job", 4, over=True), DriverIdentity("other", 4, over=False)):
        with pytest.raises(AttemptOverError):
            artifact_bytes(rows.context, driver)
    rows.revision.artifact_id = "deleted"
    with pytest.raises(AttemptOverError, match="the job is gone"):
        artifact_bytes(rows.context, DRIVER)

"""A job's steps that reach outside of the database, with a launcher and a store of the test's own."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.errors import StoreUnavailableError
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.job_worker import JobWorker
from keyscale.api.lifecycle.operation_results import settle_command
from keyscale.api.store_check import PublishedSavepoint
from keyscale.db.repositories import attempts as stored_attempts
from keyscale.db.repositories import jobs, operations
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.layout import location_of
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import ChangePhase, CommandStatus, JobStatus
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership
    from keyscale.api.store_check import StoreCheck
    from keyscale.db.models import Attempt

pytestmark = pytest.mark.either_database

PUBLISHED = PublishedSavepoint(
    "file:///store/savepoints/end/manifest.json", CheckpointId(9), batch_id=4, state_size=70, created_at_ms=1000
)


class DeadDrivers:
    """In place of the launcher: every driver that was launched is dead, and a new one is never launched.

    Args:
        launched: How many were launched.
    """

    place = "here"

    def __init__(self, launched: int = 1) -> None:
        self._launched = launched

    def inspect(self, attempt: Attempt) -> Seen:
        return Seen(ProcessState.DEAD if attempt.number <= self._launched else ProcessState.STARTING)

    def clean_up(self, job_id: str, attempt: int) -> None:
        """There is nothing to delete."""


class UnlaunchableDrivers(DeadDrivers):
    """In place of the launcher: a launch fails, as without room for the run's directory."""

    def inspect(self, attempt: Attempt) -> Seen:
        return Seen(ProcessState.DEAD if attempt.reaped else ProcessState.UNLAUNCHED)

    def prepare(self, *_: Any) -> str:
        raise OSError(errno.ENOSPC, "no space")


class Store:
    """In place of the store: gives one answer after the other; the last one stays."""

    newest = 0
    counted: JobCounters | StoreUnavailableError = JobCounters()

    def __init__(self, *answers: PublishedSavepoint | StoreUnavailableError | None) -> None:
        self.answers = list(answers)

    def find_savepoint(self, *_: str) -> PublishedSavepoint | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StoreUnavailableError):
            raise answer
        return answer

    def newest_attempt(self, *_: str) -> int:
        return self.newest

    def counters(self, *_: str, limit_ms: int) -> JobCounters:
        if isinstance(self.counted, StoreUnavailableError):
            raise self.counted
        assert limit_ms > 0
        return self.counted


@pytest.fixture
def stopping(context: Context, job: dict[str, Any], client: httpx.Client) -> dict[str, Any]:
    """The job, whose driver was told to stop with the savepoint `end`, and has died."""
    client.post(f"/v1/jobs/{job['id']}/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        for step in (steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING)):
            apply(step, JobTransaction(session, found))
    assert client.post("/v1/jobs/flights/stop", json={"id": "end"}).status_code == 202
    return job


@pytest.fixture
def advance(leadership: Leadership, stopping: dict[str, Any]) -> Callable[[Store], None]:
    """Lets a reconciler with a store take the job's steps until it has to wait."""

    def take_steps(store: Store) -> None:
        worker = JobWorker(leadership=leadership, launcher=cast("Any", DeadDrivers()), store=cast("Any", store))
        worker.advance(stopping["id"])

    return take_steps


def attempts(client: httpx.Client) -> list[int]:
    return [one["number"] for one in client.get("/v1/jobs/flights/attempts").json()["attempts"]]


@pytest.mark.real
def test_while_the_store_is_away_a_savepoint_is_not_taken_for_missing(
    client: httpx.Client, advance: Callable[[Store], None]
) -> None:
    away = StoreUnavailableError("no answer")
    for _ in range(2):
        advance(Store(away))
        assert client.get("/v1/operations/end").json()["status"] == "IN_PROGRESS"
        assert attempts(client) == [1], "a new driver would commit batches after the savepoint"
    advance(Store(away, PUBLISHED))
    advance(Store(PUBLISHED))
    operation = client.get("/v1/operations/end").json()
    assert (operation["status"], operation["result"]["location"]) == ("COMPLETED", PUBLISHED.location)
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "STOPPED"
    assert attempts(client) == [1]
    [taken] = client.get("/v1/jobs/flights/checkpoints").json()["history"]
    assert (taken["status"], taken["savepoint_id"], taken["owner"]) == ("COMPLETED", "end", "USER")
    assert (taken["id"], taken["batch_id"], taken["state_size"]) == (9, 4, 70)


@pytest.mark.real
def test_a_stop_whose_store_stays_away_ends_and_the_job_can_be_started(
    client: httpx.Client, leadership: Leadership, stopping: dict[str, Any]
) -> None:
    store, drivers = cast("Any", Store(StoreUnavailableError("no answer"))), cast("Any", DeadDrivers())
    timeouts = Timeouts(store_ms=-1)  # the first refusal is one too many
    JobWorker(leadership=leadership, launcher=drivers, store=store, timeouts=timeouts).advance(stopping["id"])
    operation = client.get("/v1/operations/end").json()
    assert (operation["status"], operation["failure"]["code"]) == ("FAILED", "STOPPED_WITHOUT_SAVEPOINT")
    assert "did not say" in operation["failure"]["message"]
    stopped = client.get("/v1/jobs/flights").json()["status"]
    assert (stopped["state"], stopped["desired"], stopped["failure"]) == ("STOPPED", "STOPPED", None)
    assert attempts(client) == [1], "no driver has been started"
    assert client.post("/v1/jobs/flights/start").status_code == 202


@pytest.mark.real
@pytest.mark.usefixtures("stopping")
def test_a_job_whose_driver_cannot_be_launched_is_stopped_without_a_savepoint(
    client: httpx.Client, leadership: Leadership, job: dict[str, Any]
) -> None:
    launcher = cast("Any", UnlaunchableDrivers())
    worker = JobWorker(leadership=leadership, launcher=launcher, store=cast("Any", Store(None)))
    with pytest.raises(OSError, match="no space"):
        worker.advance(job["id"])
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "SAVEPOINTING"
    worker.advance(job["id"])
    operation = client.get("/v1/operations/end").json()
    assert (operation["status"], operation["failure"]["code"]) == ("FAILED", "STOPPED_WITHOUT_SAVEPOINT")
    stopped = client.get("/v1/jobs/flights").json()
    assert (stopped["status"]["state"], stopped["status"]["desired"], stopped["status"]["failure"]) == (
        "STOPPED",
        "STOPPED",
        None,
    )


@pytest.mark.real
def test_a_savepoint_that_is_missing_is_taken_by_the_next_driver(
    client: httpx.Client, advance: Callable[[Store], None]
) -> None:
    advance(Store(None))
    assert client.get("/v1/operations/end").json()["status"] == "IN_PROGRESS"
    assert attempts(client) == [2, 1]


@pytest.mark.real
def test_a_new_attempt_is_above_those_in_the_log_that_an_older_database_does_not_know(
    client: httpx.Client, advance: Callable[[Store], None]
) -> None:
    store = Store(None)
    store.newest = 7
    advance(store)
    assert attempts(client) == [8, 1]


COUNTED = JobCounters(input_records=110, output_records=55, late_records=3, dead_letters=2)
"""The counters after the last commit, of which the driver has reported less."""


def report_before_the_last_commit(context: Context, job_id: str) -> None:
    """Stores the last report of attempt 1, which a commit followed before the driver was gone."""
    with context.sessions.begin() as session:
        found = stored_attempts.find(session, job_id, 1)
        assert found is not None
        counters = {"input_records": 100, "output_records": 50, "late_records": 4, "dead_letters": 2}
        reported = {"batches": 10, "input_records": 100, "lost_records": 7, "pending_records": 415_941}
        found.metrics, found.heartbeat_at_ms = {**reported, "counters": counters}, 1_795_000_000_000


def totals(client: httpx.Client) -> tuple[int, ...]:
    figures = client.get("/v1/jobs/flights").json()["metrics"]
    names = ("input_records", "output_records", "late_records", "dead_letters", "lost_records")
    return tuple(figures[name] for name in names)


ALL_COUNTED = (110, 55, 4, 2, 7)


@pytest.mark.real
def test_the_totals_after_a_cancel_have_the_batch_that_the_killed_driver_could_not_report(
    context: Context, client: httpx.Client, stopping: dict[str, Any], advance: Callable[[Store], None]
) -> None:
    report_before_the_last_commit(context, stopping["id"])
    assert totals(client)[0] == 100
    assert client.post("/v1/jobs/flights/cancel").status_code == 202
    store = Store(None)
    store.counted = COUNTED
    advance(store)
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "STOPPED"
    assert totals(client) == ALL_COUNTED
    assert client.get("/v1/jobs/flights/days").json()["days"][0]["input_records"] == 110


def test_the_totals_of_the_next_attempt_begin_with_the_commit_that_its_dead_predecessor_could_not_report(
    context: Context, client: httpx.Client, stopping: dict[str, Any], advance: Callable[[Store], None]
) -> None:
    report_before_the_last_commit(context, stopping["id"])
    store = Store(None)
    store.counted = COUNTED
    advance(store)
    assert attempts(client) == [2, 1]
    assert totals(client) == ALL_COUNTED
    figures = client.get("/v1/jobs/flights").json()["metrics"]
    assert (figures["lag_records"], figures["lag_records_at_ms"]) == (415_941, 1_795_000_000_000)


@pytest.mark.real
def test_while_the_store_is_away_a_cancelled_job_stops_with_the_totals_that_were_reported(
    context: Context, client: httpx.Client, stopping: dict[str, Any], advance: Callable[[Store], None]
) -> None:
    report_before_the_last_commit(context, stopping["id"])
    assert client.post("/v1/jobs/flights/cancel").status_code == 202
    store = Store(None)
    store.counted = StoreUnavailableError("no answer")
    advance(store)
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "STOPPED"
    assert totals(client) == (100, 50, 4, 2, 7)


class Upgrade:
    """An upgrade of the job to revision 2, whose three drivers (2, 3, 4) have died since the old one (1) has ended.

    Args:
        context: The control plane's context.
        client: A client.
        leadership: The right to write.
        job: The job.
        local: A directory for local state.
    """

    def __init__(
        self, context: Context, client: httpx.Client, leadership: Leadership, job: dict[str, Any], local: Path
    ) -> None:
        self.context, self.job_id, self._leadership = context, job["id"], leadership
        self.state = StateJob(open_store(context.settings.store_url), local, JobId(job["id"]))
        self.state.start(2)
        self.state.run_batch({1: 1})
        manifest, _ = self.state.checkpoint("u")
        client.post("/v1/jobs/flights/start")
        self.take(steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING))
        body = {"spec": {"parameters": {"input": "/in"}}, "id": "u", "plan_first": False}
        assert client.patch("/v1/jobs/flights", json=body, headers={"If-Match": '"1"'}).status_code == 202
        self.take(steps.CreateAttempt(2, steps.Cause.UPGRADE, standby=True), steps.BeginSavepoint())
        with context.sessions.begin() as session:
            command = operations.find(session, "u")
            assert command is not None
            location = location_of(context.settings.store_url, manifest.path)
            settle_command(
                session,
                command,
                status=CommandStatus.COMPLETED,
                location=location,
                checkpoint_id=manifest.checkpoint_id,
            )
        self.take(
            steps.AdvanceChange(ChangePhase.STOP), steps.SwitchOver(), steps.RetryRestore(2), steps.RetryRestore(3)
        )
        self.savepoint = manifest.path

    def take(self, *wanted: steps.Step) -> None:
        for step in wanted:
            with self.context.sessions.begin() as session:
                found = jobs.lock(session, self.job_id)
                assert found is not None
                apply(step, JobTransaction(session, found))

    def advance(self, store: StoreCheck) -> None:
        drivers = cast("Any", DeadDrivers(4))
        JobWorker(leadership=self._leadership, launcher=drivers, store=store).advance(self.job_id)


@pytest.fixture
def upgrade(
    context: Context, client: httpx.Client, leadership: Leadership, job: dict[str, Any], tmp_path: Path
) -> Upgrade:
    return Upgrade(context, client, leadership, job, tmp_path / "local")


@pytest.mark.real
def test_an_upgrade_whose_drivers_die_is_rolled_back(context: Context, client: httpx.Client, upgrade: Upgrade) -> None:
    upgrade.state.start(2, upgrade.savepoint)
    upgrade.advance(context.store)
    assert client.get("/v1/operations/u").json()["phase"] == "ROLL_BACK"
    assert client.get("/v1/jobs/flights").json()["revision"] == 1


def test_an_upgrade_is_not_rolled_back_once_its_driver_has_committed_a_batch_that_it_could_not_report(
    context: Context, client: httpx.Client, upgrade: Upgrade
) -> None:
    upgrade.state.start(2, upgrade.savepoint)
    upgrade.state.run_batch({2: 1})
    upgrade.state.start(2, upgrade.savepoint)
    upgrade.advance(context.store)
    assert client.get("/v1/operations/u").json()["status"] == "COMPLETED"
    assert client.get("/v1/jobs/flights").json()["revision"] == 2


@pytest.mark.real
def test_while_the_store_is_away_no_upgrade_is_rolled_back(
    context: Context, client: httpx.Client, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: str, attempt: int) -> None:
        raise StoreUnavailableError(f"no answer about {attempt}")

    monkeypatch.setattr(context.store, "first_commit_after", away)
    upgrade.advance(context.store)
    assert client.get("/v1/operations/u").json()["phase"] == "RESTORE"

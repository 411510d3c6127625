"""The autoscaler rescales jobs that allow it, measures the effect, and tells why a job stays."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from bench.autoscaler import shares
from keyscale.api.autoscaling import autoscaler as autoscaler_module
from keyscale.api.autoscaling import decisions
from keyscale.api.autoscaling.autoscaler import Autoscaler
from keyscale.api.autoscaling.key_group_division import division_by_size
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Job, LastHeartbeat, Operation, Revision
from keyscale.db.repositories import scaling, series
from keyscale.vocabulary import AttemptStage, DriverState, JobStatus, OperationStatus
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    import httpx
    from sqlalchemy.orm import Session

    from keyscale.api.autoscaling.facts import DivisionFacts
    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.either_database

RECORDS = 40_000
BEGIN_MS = now_ms() // 86_400_000 * 86_400_000 + 43_200_000  # noon


def report(parallelism: int, work_us: float = 50.0, **changed: Any) -> dict[str, Any]:
    """A driver's report of batches with a second's input each."""
    spread = shares(0.0, parallelism)
    work_ms = RECORDS * work_us / 1000 * max(spread)
    batch = {
        **dict.fromkeys(("wait_ms", "plan_ms", "state_ms", "store_ms", "sink_ms", "append_ms", "publish_ms"), 1),
        "batch_id": 1,
        "at_ms": 2 * BEGIN_MS,  # after any disturbance
        "input_records": RECORDS,
        "spark_ms": 300,
        "function_ms": int(work_ms),
    }
    subtasks = [
        {"index": index, "read_records": int(RECORDS * share), "process_ms": work_ms}
        for index, share in enumerate(spread)
    ]
    return {
        "batches": 50,
        "recent_batches": [batch] * 8,
        "operators": [{"uid": "counts", "subtasks": subtasks, "key_groups": []}],
        "pending_records": 0,
        **changed,
    }


class ScaledJob:
    """A running job of 2 subtasks that needs 4, with a driver that only reports."""

    def __init__(self, context: Context, leadership: Leadership, job_id: str, patch: pytest.MonkeyPatch) -> None:
        self.context, self.leadership, self.job_id = context, leadership, job_id
        self.autoscaler = Autoscaler(context)
        self.at_ms = BEGIN_MS
        for module in (autoscaler_module, decisions):
            patch.setattr(module, "shared_now_ms", lambda: self.at_ms)
        with context.sessions.begin() as session:
            job = session.get_one(Job, job_id)
            job.status, self.parallelism = JobStatus.RUNNING, 2
            session.add(
                Attempt(
                    job_id=job_id, number=1, stage=AttemptStage.ACTIVE, cause="START", parallelism=2, created_at_ms=1,
                    running_at_ms=self.at_ms - 3_600_000, slots=8, driver_state=DriverState.RUNNING,
                    heartbeat=LastHeartbeat(at_ms=self.at_ms, metrics=report(2)),
                )
            )  # fmt: skip
            for at_ms in range(self.at_ms - 660_000, self.at_ms + 600_001, 10_000):
                values = {"input_records": at_ms // 1000 * RECORDS, "lag_records": 0}
                series.store(session, job_id, at_ms, values)

    def set(self, **settings: Any) -> None:
        with self.context.sessions.begin() as session:
            revision = session.query(Revision).filter_by(job_id=self.job_id).order_by(Revision.number.desc()).first()
            assert revision is not None
            revision.spec = {**revision.spec, "parallelism": 2, **settings}

    def reports(self, metrics: dict[str, Any], parallelism: int | None = None) -> None:
        with self.context.sessions.begin() as session:
            attempt = session.query(Attempt).filter_by(job_id=self.job_id).one()
            attempt.parallelism = parallelism or attempt.parallelism
            assert attempt.heartbeat is not None
            attempt.heartbeat.metrics, attempt.heartbeat.at_ms = metrics, self.at_ms

    def passes(self, seconds: int, metrics: dict[str, Any]) -> None:
        """Lets some time pass; the driver reports, and the autoscaler looks."""
        self.at_ms += 1000 * seconds
        self.reports(metrics)
        self.autoscaler.poll(self.leadership)

    def rescaled(self, status: OperationStatus = OperationStatus.COMPLETED) -> Operation:
        """Ends the rescale in progress, as the reconciler would."""
        with self.context.sessions.begin() as session:
            operation = session.query(Operation).filter_by(job_id=self.job_id, ended_at_ms=None).one()
            operation.status, operation.ended_at_ms = status, self.at_ms
            job = session.get_one(Job, self.job_id)
            job.status = JobStatus.RUNNING
            if status is OperationStatus.COMPLETED:
                job.revision = operation.to_revision or 0
                session.query(Attempt).filter_by(job_id=self.job_id).one().parallelism = operation.to_parallelism or 0
            return operation


@pytest.fixture
def scaled(context: Context, leadership: Leadership, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> ScaledJob:
    return ScaledJob(context, leadership, job["id"], monkeypatch)


def shown(client: httpx.Client, scaled: ScaledJob) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/v1/jobs/{scaled.job_id}/autoscaler").json()
    return answer


def listed(client: httpx.Client, scaled: ScaledJob, what: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v1/jobs/{scaled.job_id}/{what}", params=query).json()[
        what.rpartition("/")[2]
    ]
    return found


def test_an_active_autoscaler_rescales_a_job_and_measures_the_effect(client: httpx.Client, scaled: ScaledJob) -> None:
    scaled.autoscaler.poll(scaled.leadership)
    assert shown(client, scaled) == {"mode": "DISABLED", "decision": None, "last_move": None}
    scaled.set(autoscaler={"mode": "ACTIVE"})
    scaled.passes(15, report(2))
    scaled.passes(15, report(2))
    [rescale] = listed(client, scaled, "operations")
    assert (rescale["kind"], rescale["requested_by"], rescale["to_parallelism"]) == ("RESCALE", "autoscaler", 4)
    move = shown(client, scaled)["last_move"]
    assert (move["verdict"], move["target"], move["outcome"]) == ("SCALE_UP", 4, "PENDING")
    assert move["operation_id"] == rescale["id"]
    assert move["facts"]["input_records_per_second"] == RECORDS
    assert move["expected"]["work_ms"] == pytest.approx(move["present"]["work_ms"] / 2, rel=0.05)
    scaled.rescaled()
    scaled.passes(15, report(4))
    assert shown(client, scaled)["decision"]["verdict"] == "COOLING_DOWN"
    scaled.passes(60, report(4))
    answer = shown(client, scaled)
    assert (answer["decision"]["verdict"], answer["last_move"]["outcome"]) == ("STEADY", "DELIVERED")
    assert answer["last_move"]["measured"] == answer["decision"]["present"]
    events = {event["kind"]: event for event in reversed(listed(client, scaled, "events"))}
    assert events["SCALING_DECIDED"]["details"] == {"operation_id": rescale["id"]}
    assert events["SCALING_MEASURED"]["message"].startswith("the move from 2 to 4: delivered; the job can process")
    assert events["REVISION_CREATED"]["message"].startswith("revision 2: autoscaler: 2 to 4: the input takes")


def test_the_reconciler_is_woken_once_it_can_find_the_move(
    client: httpx.Client, scaled: ScaledJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(scaled.context.wakeup, "ring", lambda: found.append(len(listed(client, scaled, "operations"))))
    scaled.set(autoscaler={"mode": "ACTIVE"})
    scaled.passes(15, report(2))
    assert found == [1]


def test_a_move_that_does_not_deliver_is_undone_and_not_repeated(client: httpx.Client, scaled: ScaledJob) -> None:
    scaled.set(autoscaler={"mode": "ACTIVE"})
    scaled.passes(15, report(2))
    scaled.rescaled()
    scaled.passes(75, report(4, work_us=100))  # each record takes twice as long: four subtasks are as fast as two
    undone = scaled.rescaled()
    assert (undone.kind, undone.to_parallelism) == ("RESCALE", 2)
    for _ in range(8):
        scaled.passes(30, report(2))
    assert [each["verdict"] for each in listed(client, scaled, "autoscaler/decisions", limit=10)] == [
        *("NOT_DELIVERED", "UNDO", "SCALE_UP")
    ]
    assert [each["outcome"] for each in listed(client, scaled, "autoscaler/decisions", moves_only=True)] == [
        *("DELIVERED", "NOT_DELIVERED")
    ]


def test_a_rescale_that_fails_is_not_repeated(client: httpx.Client, scaled: ScaledJob) -> None:
    scaled.set(autoscaler={"mode": "ACTIVE", "parallelism_min": 3})
    scaled.passes(15, report(2))
    scaled.rescaled(OperationStatus.ROLLED_BACK)
    scaled.passes(15, report(2))
    assert len(listed(client, scaled, "operations")) == 1
    assert "2 to 3 has failed and is not repeated" in shown(client, scaled)["decision"]["message"]


def test_a_monitoring_autoscaler_only_advises(client: httpx.Client, scaled: ScaledJob) -> None:
    scaled.set(autoscaler={"mode": "MONITORING"})
    for _ in range(3):
        scaled.passes(15, report(2))
    scaled.passes(15, report(2, store_away_since_ms=1))
    assert listed(client, scaled, "operations") == []
    outage, advice = listed(client, scaled, "autoscaler/decisions")
    assert (advice["verdict"], advice["target"], advice["outcome"]) == ("SCALE_UP", 4, None)
    assert advice["confirmed_at_ms"] - advice["at_ms"] == 30_000, "the same decision is one row"
    assert (outage["verdict"], outage["present"]) == ("OUTAGE", None)
    assert [each["kind"] for each in listed(client, scaled, "events", kind="SCALING_DECIDED")] == [
        "SCALING_DECIDED"
    ] * 2


def test_a_rescale_that_needs_an_approval_waits_for_it(client: httpx.Client, scaled: ScaledJob) -> None:
    scaled.set(autoscaler={"mode": "ACTIVE"}, approval="REQUIRED")
    for _ in range(3):
        scaled.passes(15, report(2))
    [rescale] = listed(client, scaled, "operations")
    assert rescale["status"] == "PENDING_APPROVAL"
    assert len(listed(client, scaled, "autoscaler/decisions")) == 1


def test_a_budget_counts_the_hours_since_midnight(client: httpx.Client, scaled: ScaledJob) -> None:
    with scaled.context.sessions.begin() as session:
        attempt = session.query(Attempt).filter_by(job_id=scaled.job_id).one()
        attempt.running_at_ms = BEGIN_MS - 22 * 3_600_000  # ten hours of yesterday, and twelve of today
    scaled.set(autoscaler={"mode": "ACTIVE", "core_hours_per_day": 24 + 35})
    scaled.passes(15, report(2))
    assert shown(client, scaled)["decision"]["target"] == 2
    assert shown(client, scaled)["decision"]["verdict"] == "BUDGET"
    assert shown(client, scaled)["decision"]["facts"]["affordable_parallelism"] == 2
    scaled.set(autoscaler={"mode": "ACTIVE", "core_hours_per_day": 24 + 37})
    scaled.passes(15, report(2))
    assert [each["to_parallelism"] for each in listed(client, scaled, "operations")] == [3]


def test_a_report_that_makes_no_sense_keeps_only_its_own_job_from_scaling(
    client: httpx.Client, context: Context, scaled: ScaledJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact_id = client.get("/v1/jobs/flights").json()["spec"]["artifact_id"]
    body = {"name": "other", "spec": {"artifact_id": artifact_id, "parallelism": 2, "max_parallelism": 16}}
    other_id = client.post("/v1/jobs", json=body).json()["id"]
    other = ScaledJob(context, scaled.leadership, other_id, monkeypatch)
    for each in (scaled, other):
        each.set(autoscaler={"mode": "MONITORING"})
    operators = [{"uid": "counts", "subtasks": [{"read_records": 1, "process_ms": 1}] * 129, "key_groups": []}]
    for metrics in (report(2), {**report(2), "operators": operators}):
        scaled.at_ms = other.at_ms + 15_000
        scaled.reports(metrics)
        other.passes(15, report(2))
    assert shown(client, other)["decision"]["confirmed_at_ms"] == other.at_ms
    assert shown(client, scaled)["decision"]["confirmed_at_ms"] == other.at_ms - 15_000


def test_a_setting_that_is_changed_after_the_look_keeps_the_job_from_moving(
    client: httpx.Client, scaled: ScaledJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled.set(autoscaler={"mode": "ACTIVE"})
    core_ms = autoscaler_module.scaling.core_ms

    def then_changed(session: Session, *arguments: Any) -> Any:
        spec = session.get_one(Revision, (scaled.job_id, 1)).spec
        session.add(Revision(job_id=scaled.job_id, number=2, spec=spec, created_at_ms=2))
        session.get_one(Job, scaled.job_id).revision = 2
        return core_ms(session, *arguments)

    monkeypatch.setattr(autoscaler_module.scaling, "core_ms", then_changed)
    scaled.passes(15, report(2))
    assert listed(client, scaled, "operations") == []


def test_past_input_is_replayed_at_another_parallelism(client: httpx.Client, scaled: ScaledJob) -> None:
    path = f"/v1/jobs/{scaled.job_id}/autoscaler/replay"
    with scaled.context.sessions.begin() as session:  # for two minutes the job reads half of its input
        for step in range(12):
            at_ms = BEGIN_MS + 600_000 + 10_000 * step
            read, came = (RECORDS // 2, RECORDS) if step else (RECORDS, RECORDS)
            values = {"input_records": (BEGIN_MS + 600_000) // 1000 * RECORDS + 10 * step * read}
            series.store(session, scaled.job_id, at_ms, {**values, "lag_records": 10 * step * (came - read)})
    scaled.at_ms = BEGIN_MS + 720_000
    scaled.reports(report(2))
    found = client.get(path, params={"parallelism": 8, "hours": 0.1}).json()
    assert found["reason"] is None
    assert found["capacity"] > RECORDS
    assert found["peaks"]["measured_ms"] == pytest.approx(55_000, rel=0.1)
    assert found["peaks"]["replayed_ms"] == 0, "eight subtasks keep up"
    assert found["peaks"]["as_run_ms"] > 0
    assert 0 <= found["error"] < 1
    assert [each["lag_records"] for each in found["points"]][-2:] == [2_000_000, 2_200_000]
    assert found["points"][-1]["at_ms"] == BEGIN_MS + 710_000
    minutes = client.get(path, params={"parallelism": 8}).json()["points"]
    assert {later["at_ms"] - each["at_ms"] for each, later in pairwise(minutes)} == {60_000}, (
        "a day has steps of a minute"
    )
    assert client.get(path, params={"parallelism": 0}).status_code == 422
    assert client.get(path).status_code == 422
    scaled.reports({**report(2), "recent_batches": []})
    assert "start the job" in client.get(path, params={"parallelism": 2}).json()["reason"]


@pytest.mark.parametrize("mode", ["MONITORING", "ACTIVE"])
def test_only_an_active_autoscaler_lets_an_idle_job_sleep_until_it_has_input(
    context: Context, scaled: ScaledJob, mode: str
) -> None:
    idle = report(2, waits_for_input=True, can_sleep=True)
    idle["recent_batches"] = [batch | {"at_ms": scaled.at_ms} for batch in idle["recent_batches"]]

    def requested_at_ms() -> int | None:
        with context.sessions.begin() as session:
            attempt = session.query(Attempt).filter_by(job_id=scaled.job_id).one()
            attempt.restored_at_ms = attempt.running_at_ms
            return attempt.sleep_requested_at_ms

    assert requested_at_ms() is None
    scaled.set(autoscaler={"mode": mode, "sleep_after_ms": 60_000})
    scaled.passes(61, idle)
    assert requested_at_ms() == (scaled.at_ms if mode == "ACTIVE" else None)
    scaled.passes(15, idle | {"pending_records": 5})
    assert requested_at_ms() is None


def test_a_sleeping_driver_uses_none_of_the_days_core_hours(context: Context, scaled: ScaledJob) -> None:
    now_ms = scaled.at_ms
    with context.sessions.begin() as session:
        attempt = session.query(Attempt).filter_by(job_id=scaled.job_id).one()
        assert scaling.core_ms(session, [scaled.job_id], now_ms - 3_600_000, now_ms) == {scaled.job_id: 7_200_000}
        attempt.fell_asleep_at_ms = now_ms - 3_000_000
        assert scaling.core_ms(session, [scaled.job_id], now_ms - 3_600_000, now_ms) == {scaled.job_id: 1_200_000}


def test_only_a_job_by_size_is_predicted_with_the_ranges_of_its_newest_checkpoint(
    context: Context, scaled: ScaledJob
) -> None:
    made = Snapshots(context.sessions, scaled.job_id)
    made.take(1, {}, key_group_bytes=[1000, *[10] * (made.max_parallelism - 1)])

    def division() -> DivisionFacts | None:
        with context.sessions.begin() as session:
            return division_by_size(session, scaling.find_job(session, scaled.job_id))

    assert division() is None
    scaled.set(key_group_division="BY_SIZE")
    known = division()
    assert known is not None
    assert (known.weights[0] > 50 * known.weights[1], known.ranges.starts) == (True, (0,))

"""Series of a job's figures: kept in bounded space, and continued over restarts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select, text

from keyscale.api.access.tokens import token_sha256
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.change_phases import CANCELLED
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause, ReplaceAttempt
from keyscale.clock import now_ms
from keyscale.db.models import Checkpoint, Job, Operation, SeriesPoint
from keyscale.db.repositories import attempts, jobs, series
from keyscale.db.repositories.series import DAYS, RETENTIONS
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.layout import Layout, location_of
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CheckpointStatus,
    JobStatus,
    OperationKind,
    OperationStatus,
    UpgradeMode,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

METRICS = {
    "batches": 3,
    "input_records": 100,
    "output_records": 80,
    "batch_duration_ms": 50.0,
    "operators": [{"uid": "totals", "late_records": 4, "dead_letters": 2}],
    "sinks": [{"uid": "orders", "dead_letters": 3}],
}


@pytest.fixture
def attempt(context: Context, job: dict[str, Any], client: httpx.Client) -> Callable[[], int]:
    """Replaces the job's attempt by another one, whose driver's token is `driver-<number>`."""
    client.post(f"/v1/jobs/{job['id']}/start")

    def replace() -> int:
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            transaction = JobTransaction(session, found)
            session.execute(text("UPDATE attempts SET stage = 'ENDED', reaped = true"))
            made = transaction.create_attempt(found.revision, Cause.START)
            made.token_sha256 = token_sha256(f"driver-{made.number}")
            return made.number

    return replace


def beat(client: httpx.Client, number: int, **metrics: Any) -> None:
    answer = client.post(
        "/driver/heartbeat",
        json={"state": "RUNNING", "restored_at_ms": 1, "metrics": metrics},
        headers={"Authorization": f"Bearer driver-{number}"},
    )
    assert answer.status_code == 200, answer.text


def test_counters_and_series_go_on_after_a_restart(client: httpx.Client, attempt: Callable[[], int]) -> None:
    beat(client, attempt(), **METRICS)
    second = attempt()
    launching = client.get("/v1/jobs/flights").json()["metrics"]
    assert (launching["input_records"], launching["dead_letters"]) == (100, 5), "before its driver says anything"
    beat(client, second, batches=0)
    figures = client.get("/v1/jobs/flights").json()["metrics"]
    assert (figures["input_records"], figures["output_records"]) == (100, 80)
    assert (figures["late_records"], figures["dead_letters"]) == (4, 5)
    beat(client, second, batches=1, input_records=5)
    third = attempt()
    beat(client, third, **METRICS)
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["metrics"]["input_records"], shown["metrics"]["dead_letters"]) == (205, 10)
    [sink] = shown["status"]["attempt"]["metrics"]["sinks"]
    assert (sink["uid"], sink["dead_letters"]) == ("orders", 3)
    names = ["input_records", "late_records", "dead_letters"]
    answer = client.get("/v1/jobs/flights/series", params={"names": names}).json()
    assert answer["series"].keys() == set(names)
    newest = [[value for value in answer["series"][name] if value is not None][-1] for name in names]
    assert newest == [205, 8, 10]
    assert len(answer["at_ms"]) == len(answer["series"]["late_records"]) <= 362
    assert answer["step_ms"] == 10_000


def test_the_metrics_of_functions_go_on_after_a_restart(client: httpx.Client, attempt: Callable[[], int]) -> None:
    def counted(value: float, kind: str = "counter", name: str = "orders") -> dict[str, Any]:
        return {"operator": "shop", "name": name, "kind": kind, "labels": {"currency": "EUR"}, "values": [value]}

    def shown() -> list[Any]:
        found = client.get("/v1/jobs/flights/user-metrics").json()["user_metrics"]
        return [(each["name"], each["kind"], each["help"], each["value"]) for each in found]

    assert shown() == []
    counters = {"user": [counted(3)]}
    beat(
        client, attempt(), counters=counters, user_gauges=[counted(7, "gauge", "age")], user_help={"orders": "Orders."}
    )
    assert shown() == [("orders", "COUNTER", "Orders.", 3), ("age", "GAUGE", "", 7)]
    second = attempt()
    request = {"pid": 1, "host": "here"}
    answer = client.post("/driver/attach", json=request, headers={"Authorization": f"Bearer driver-{second}"})
    assert answer.json()["assignment"]["counters"]["user"][0]["values"] == [3]
    beat(client, second, batches=0)
    assert shown() == [("orders", "COUNTER", "", 3)], "before the driver has restored its counters"
    beat(client, second, counters={"user": [counted(5)]})
    assert shown() == [("orders", "COUNTER", "", 5)]
    [series] = client.get("/v1/jobs/flights/series").json()["user"][1:]
    assert (series["name"], series["labels"]) == ("orders", {"currency": "EUR"})


def test_a_driver_is_told_what_its_job_has_counted_and_its_commit_log_may_know_more(
    client: httpx.Client, attempt: Callable[[], int]
) -> None:
    beat(client, attempt(), **METRICS)
    second = attempt()
    request = {"pid": 1, "host": "here"}
    answer = client.post("/driver/attach", json=request, headers={"Authorization": f"Bearer driver-{second}"})
    counters = {"input_records": 100, "output_records": 80, "late_records": 4, "dead_letters": 5}
    assert answer.json()["assignment"]["counters"].items() >= counters.items()
    beat(client, second, batches=0, counters={**counters, "input_records": 150, "output_records": 120})
    figures = client.get("/v1/jobs/flights").json()["metrics"]
    assert (figures["input_records"], figures["output_records"], figures["dead_letters"]) == (150, 120, 5)
    beat(client, attempt(), batches=0)
    assert client.get("/v1/jobs/flights").json()["metrics"]["input_records"] == 150


def test_a_rate_is_the_growth_of_its_counter_and_a_gap_is_unknown(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    end_ms = now_ms() // 10_000 * 10_000
    with context.sessions.begin() as session:
        for steps_ago, total in ((5, 100), (4, 150), (2, 400), (1, 400)):
            series.store(session, job["id"], end_ms - steps_ago * 10_000, {"input_records": total})
    span = {"from_ms": end_ms - 50_000, "to_ms": end_ms - 10_000, "names": "input_rate"}
    answer = client.get("/v1/jobs/flights/series", params=span).json()
    assert answer["series"] == {"input_rate": [None, 5.0, None, None, 0.0]}
    later = client.get("/v1/jobs/flights/series", params={**span, "from_ms": end_ms - 40_000}).json()
    assert later["series"]["input_rate"][0] == 5.0, "the first rate needs the step before the span"


def test_a_job_never_has_more_points_than_its_rings_are_long(
    context: Context, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_ms, slots = 1_000_000_000_000, 21
    retention = replace(RETENTIONS[0], slots=slots)
    monkeypatch.setattr(series, "RETENTIONS", (retention, *RETENTIONS[1:]))
    with context.sessions.begin() as session:
        for step in range(0, 3 * slots, 2):
            series.store(session, job["id"], begin_ms + step * 10_000, {"lag_ms": step})
        series.store(session, job["id"], begin_ms, {"lag_ms": 9})  # far too late
        kept = series.read(session, job["id"], retention, 0, 2 * begin_ms)
        assert len(kept) == slots
        assert [point.lag_ms for point in kept[-2:]] == [3 * slots - 3, 3 * slots - 1]
        assert kept[0].at_ms > begin_ms + slots * 10_000


def test_late_records_and_dead_letters_are_kept_in_every_ring_and_in_coarser_steps_of_each(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    end_ms = now_ms()
    begin_ms = end_ms - 3_600_000
    with context.sessions.begin() as session:
        for step in range(61):
            values = {"late_records": step, "dead_letters": 2 * step}
            series.store(session, job["id"], begin_ms + step * 60_000, values)
        for retention in RETENTIONS:
            newest = series.read(session, job["id"], retention, 0, end_ms)[-1]
            assert (newest.late_records, newest.dead_letters) == (60, 120), retention
    for points in (400, 60, 4):
        span = {"from_ms": begin_ms, "to_ms": end_ms, "names": ["late_records", "dead_letters"], "points": points}
        answer = client.get("/v1/jobs/flights/series", params=span).json()["series"]
        late, dead = ([value for value in answer[name] if value is not None] for name in span["names"])
        assert dead == [2 * value for value in late] == sorted(dead)
        assert dead[-1] == 120


def test_values_of_one_step_become_one(context: Context, job: dict[str, Any]) -> None:
    at_ms = 1_000_000_000_000
    with context.sessions.begin() as session:
        store = lambda seconds, **values: series.store(  # noqa: E731 - to be read as a table
            session, job["id"], at_ms + seconds * 1000, values
        )
        store(1, lag_ms=5, busy_ratio=0.2, state_size=10)
        store(2, lag_ms=3, busy_ratio=0.4, processed_rate=10.0)
        store(3, state_size=7, checkpointed_size=2)
        store(4, busy_ratio=0.6)
        store(5, processed_rate=30.0)
        store(6, busy_ratio=None)
        store(7, processed_rate=50.0)
        [point] = series.read(session, job["id"], RETENTIONS[0], at_ms, at_ms)
        assert (point.lag_ms, point.state_size, point.checkpointed_size) == (5, 7, 2)
        assert point.busy_ratio == pytest.approx(0.4)
        assert point.processed_rate == pytest.approx(30.0)
        assert (point.samples, point.busy_samples) == (3, 3)


ENDS_OF_CHANGES = [
    (OperationKind.RESCALE, OperationStatus.COMPLETED, None),
    (OperationKind.RESCALE, OperationStatus.ROLLED_BACK, {"code": "DRIVER_LOST"}),
    (OperationKind.RESCALE, OperationStatus.ROLLED_BACK, {"code": CANCELLED}),
    (OperationKind.UPGRADE, OperationStatus.COMPLETED, None),
    (OperationKind.UPGRADE, OperationStatus.FAILED, {"code": "DRIVER_LOST"}),
    (OperationKind.UPGRADE, OperationStatus.ROLLED_BACK, {"code": CANCELLED}),
    (OperationKind.ROLLBACK, OperationStatus.COMPLETED, None),
]


def test_failures_and_changes_are_marked(client: httpx.Client, context: Context, job: dict[str, Any]) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        transaction = JobTransaction(session, found)
        start = transaction.running().id
        transaction.end(OperationStatus.COMPLETED)
        for kind, status, why in ENDS_OF_CHANGES:
            is_cancelled = why == {"code": CANCELLED}
            change = Operation(
                id=f"{kind}-{'cancelled' if is_cancelled else status}".lower(),
                job_id=job["id"],
                kind=kind,
                status=OperationStatus.IN_PROGRESS,
                phase=ChangePhase.VERIFY,
                phases=[],
                from_revision=1,
                to_revision=2,
                from_parallelism=1,
                to_parallelism=2,
                old_attempt=1,
                upgrade_mode=UpgradeMode.SAVEPOINT,
                allow_non_restored_state=False,
                requested_at_ms=now_ms(),
            )
            session.add(change)
            transaction.end(status, why)
        transaction.settle(JobStatus.FAILED, {"code": "USER_FUNCTION_FAILED"})
        session.execute(
            text(
                "INSERT INTO checkpoints (job_id, checkpoint_id, attempt, status, is_savepoint, trigger_timestamp,"
                " end_to_end_duration, checkpointed_size, state_size, processed_records, num_subtasks,"
                " num_acknowledged_subtasks) VALUES (:job, 3, 1, 'FAILED', false, :at, 0, 0, 0, 0, 0, 0)"
            ),
            {"job": job["id"], "at": now_ms()},
        )
    annotations = client.get("/v1/jobs/flights/series", params={"names": "lag_ms"}).json()["annotations"]
    assert sorted((annotation["kind"], annotation["id"]) for annotation in annotations) == [
        ("CHECKPOINT_FAILED", "3"),
        ("FAILURE", None),
        ("RESCALE", "rescale-cancelled"),
        ("RESCALE", "rescale-completed"),
        ("ROLLBACK", "rescale-rolled_back"),
        ("ROLLBACK", "rollback-completed"),
        ("ROLLBACK", "upgrade-failed"),
        ("START", start),
        ("UPGRADE", "upgrade-cancelled"),
        ("UPGRADE", "upgrade-completed"),
    ]
    texts = {annotation["id"]: annotation["text"] for annotation in annotations}
    assert texts["rescale-cancelled"] == "rescale from 1 to 2: cancelled"
    assert texts["rescale-rolled_back"] == "rescale from 1 to 2: rolled back: DRIVER_LOST"
    old = client.get("/v1/jobs/flights/series", params={"to_ms": now_ms() - 60_000}).json()
    assert old["annotations"] == []


def test_a_deleted_job_leaves_no_points(client: httpx.Client, context: Context, job: dict[str, Any]) -> None:
    with context.sessions.begin() as session:
        series.store(session, job["id"], now_ms(), {"lag_ms": 1})
    assert client.delete("/v1/jobs/flights").status_code == 204
    with context.sessions() as session:
        assert session.scalar(select(func.count()).select_from(SeriesPoint)) == 0


def test_a_span_that_ends_before_it_begins_is_refused(client: httpx.Client, job: dict[str, Any]) -> None:
    answer = client.get(f"/v1/jobs/{job['id']}/series", params={"from_ms": 10, "to_ms": 5})
    assert (answer.status_code, answer.json()["code"]) == (422, "REQUEST_INVALID")
    everything = client.get(f"/v1/jobs/{job['id']}/series", params={"from_ms": 0, "points": 1}).json()
    assert len(everything["at_ms"]) <= 2
    assert client.get(f"/v1/jobs/{job['id']}/series", params={"names": "speed"}).status_code == 422


def test_a_chart_without_a_begin_is_of_the_hour_before_its_end(client: httpx.Client, job: dict[str, Any]) -> None:
    now, hour_ms = now_ms(), 3_600_000
    for to_ms in (now - 5 * hour_ms, now - 10_000):
        shown = client.get(f"/v1/jobs/{job['id']}/series", params={"to_ms": to_ms}).json()
        assert (shown["from_ms"], shown["to_ms"]) == (to_ms - hour_ms, to_ms)
    future = client.get(f"/v1/jobs/{job['id']}/series", params={"to_ms": now + hour_ms}).json()
    assert now <= future["to_ms"] <= now_ms()


def test_a_day_shows_what_the_job_did_on_it(
    client: httpx.Client, context: Context, job: dict[str, Any], attempt: Callable[[], int]
) -> None:
    number = attempt()
    beat(client, number, **METRICS)
    at_ms = now_ms()
    headers = {"Authorization": f"Bearer driver-{number}"}
    layout = Layout(JobId(job["id"]))
    for checkpoint_id, status, duration in ((1, "COMPLETED", 100), (2, "FAILED", 5), (3, "COMPLETED", 300)):
        place = location_of(job["status"]["store_url"], layout.manifest(CheckpointId(checkpoint_id), None))
        report = {
            "checkpoint_id": checkpoint_id,
            "trigger_timestamp": at_ms,
            "status": status,
            "end_to_end_duration": duration,
            "checkpointed_size": 1000,
            "state_size": 70 + checkpoint_id,
            "latest_ack_timestamp": at_ms + duration,
            "external_path": place if status == "COMPLETED" else None,
        }
        for _ in range(2):  # a driver repeats what may have been lost
            answer = client.post("/driver/checkpoints", json=report, headers=headers)
            assert answer.status_code == 204, answer.text
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        apply(ReplaceAttempt(number, {"code": "DRIVER_LOST", "message": "gone"}, 1, 0), JobTransaction(session, found))
    [today] = client.get("/v1/jobs/flights/days").json()["days"]
    assert today == {
        "day": datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat(),
        "input_records": 100,
        "output_records": 80,
        "restarts": 1,
        "checkpoints_completed": 2,
        "checkpoints_failed": 1,
        "checkpointed_bytes": 2000,
        "checkpoint_duration_min_ms": 100,
        "checkpoint_duration_avg_ms": 200,
        "checkpoint_duration_max_ms": 300,
        "state_size": 73,
        "lag_ms_max": None,
    }


def test_a_checkpoint_that_fails_with_its_attempt_locks_the_days_after_the_attempts_as_heartbeats_do(
    context: Context, job: dict[str, Any], attempt: Callable[[], int]
) -> None:
    number = attempt()
    with context.sessions.begin() as session:
        found = session.get_one(Job, job["id"])
        transaction = JobTransaction(session, found)
        standby = transaction.create_attempt(found.revision, Cause.RESCALE, stage=AttemptStage.STANDBY).number
        session.add(
            Checkpoint(job_id=found.id, checkpoint_id=1, attempt=number, status=CheckpointStatus.IN_PROGRESS,
                       is_savepoint=False, trigger_timestamp=1, end_to_end_duration=0, checkpointed_size=0,
                       state_size=0, processed_records=0, num_subtasks=0, num_acknowledged_subtasks=0)
        )  # fmt: skip

    def settle() -> None:
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            JobTransaction(session, found).settle(JobStatus.FAILED, {"code": "X", "message": "no"})

    def waits() -> bool:
        with context.sessions() as session:
            return bool(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    with ThreadPoolExecutor(1) as other, context.sessions.begin() as heartbeat:
        assert attempts.find(heartbeat, job["id"], standby, lock=True) is not None
        settled = other.submit(settle)
        wait_until(waits, what="the end of the attempts to wait for the heartbeat")
        series.store(heartbeat, job["id"], now_ms(), {"input_records": 1})
        heartbeat.commit()
        settled.result(30)


def test_a_days_records_are_those_since_the_last_known_day(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    day_ms = DAYS.step_ms
    with context.sessions.begin() as session:
        session.execute(text("UPDATE jobs SET created_at_ms = :at"), {"at": now_ms() - 9 * day_ms})
        for days_ago, total in ((9, 5), (8, 30), (3, 100), (0, 100)):
            series.store(session, job["id"], now_ms() - days_ago * day_ms, {"input_records": total})
    shown = client.get("/v1/jobs/flights/days").json()["days"]
    assert [day["input_records"] for day in shown] == [0, 70, 25, 5]
    assert [day["input_records"] for day in client.get("/v1/jobs/flights/days?limit=2").json()["days"]] == [0, 70]
    with context.sessions.begin() as session:
        session.execute(text("UPDATE jobs SET created_at_ms = 1"))
    oldest = client.get("/v1/jobs/flights/days").json()["days"][-1]
    assert oldest["input_records"] is None, "the job had counted before the days were kept"

"""What Prometheus gets of jobs: in its own form and units, of known values only, and bounded."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from keyscale.api.control_plane.own_metrics import NO_ROUTE, OwnMetrics
from keyscale.api.health.facts import HealthFacts
from keyscale.api.lifecycle.job_totals import added_totals
from keyscale.api.metrics import scrape
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories.scrapes import ObservedJob, Snapshot
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.metrics import (
    CONTROL_PLANE,
    DRIVER,
    JOB_COUNTERS,
    JOB_METRICS,
    OBSERVED,
    OPERATOR,
    SINK,
    SOURCE,
    SPLIT,
    SUBTASK,
    of_scope,
)
from keyscale.vocabulary import AttemptStage, DesiredState, JobStatus, ScalingVerdict

NOW_MS = 1_000_000
REPORT: dict[str, Any] = DriverMetrics.model_validate(
    {
        "batches": 4,
        "input_batches": 3,
        "input_records": 100,
        "output_records": 90,
        "input_records_per_second": 12.5,
        "processed_records_per_second": 80.0,
        "batch_duration_ms": 250.0,
        "busy_ratio": 0.5,
        "pending_records": 7,
        "lag_growth": -1.5,
        "lag_age_ms": 0,
        "garbage_collection_ratio": 0.25,
        "lost_records": 2,
        "operators": [
            {
                "uid": 'to"tals\\',
                "read_records": 100,
                "read_records_per_second": 1.0,
                "write_records_per_second": 1.0,
                "late_records": 3,
                "dead_letters": 1,
                "watermark_ms": 900_000,
                "watermark_lag_ms": 100_000,
                "event_time_lag_ms": 1500,
                "subtasks": [
                    {"index": 0, "busy_ratio": 0.25, "state_bytes": 10},
                    {"index": 1, "busy_ratio": 0.75, "state_bytes": 30},
                ],
            },
            {"uid": "windows", "event_time_lag_ms": -5, "watermark_ms": 2**63 - 1},
        ],
        "sinks": [{"uid": "table", "dead_letters": 4}],
        "source_lags": [{"uid": "clicks", "lag_records": 7, "splits": {"0": 5, "1": 2}}],
        "jvm_heap_bytes": 1 << 20,
        "process_memory_bytes": 1 << 21,
        "process_ms": 1500,
        "host_load_ratio": 0.5,
        "source_retention_ms": 60_000,
    }
).model_dump()


def job(**facts: Any) -> ObservedJob:
    known = ObservedJob(
        id="1f",
        name="orders",
        status=JobStatus.RUNNING,
        desired=DesiredState.RUNNING,
        restarts=2,
        checkpoints={"interval_ms": 10_000},
        stage=AttemptStage.ACTIVE,
        driver_state="RUNNING",
        running_at_ms=NOW_MS - 60_000,
        totals_before={"input_records": 1000, "late_records": 5},
        heartbeat_at_ms=NOW_MS - 1000,
        metrics=REPORT,
        completed=Snapshot(7, NOW_MS - 20_000, 300, 1024, 4096),
        failed=None,
        downtime_ms=2500,
        failure=None,
        last_commit_at_ms=None,
        scaling_verdict=ScalingVerdict.SCALE_UP,
        scaling_target=4,
    )
    return known._replace(**facts)


def samples(*jobs: ObservedJob) -> dict[str, float]:
    """The samples of jobs, by name and the labels beside the job's own."""
    found = {}
    for family in text_string_to_metric_families(scrape.of_jobs(jobs, NOW_MS)):
        for sample in family.samples:
            more = [value for name, value in sample.labels.items() if name not in {"job_id", "job_name"}]
            found[" ".join([sample.name, *more])] = sample.value
    return found


def test_values_have_the_units_of_prometheus() -> None:
    found = samples(job())
    assert found["keyscale_job_batch_duration_seconds"] == 0.25
    assert found["keyscale_job_restorable_until_at_timestamp_seconds"] == (NOW_MS - 20_000 + 60_000) / 1000
    assert found["keyscale_job_lag_seconds"] == 1.5
    assert found["keyscale_job_lag_records"] == 7
    assert found["keyscale_job_watermark_timestamp_seconds"] == 900
    assert found["keyscale_job_last_checkpoint_age_seconds"] == 20
    assert found["keyscale_job_last_checkpoint_duration_seconds"] == 0.3
    assert found["keyscale_job_state_bytes"] == 4096
    assert found["keyscale_job_last_operation_downtime_seconds"] == 2.5
    assert found["keyscale_job_restarts_total"] == 2
    assert found["keyscale_job_status RUNNING"] == 1


def test_the_splits_of_a_source_with_the_most_records_are_shown() -> None:
    found = samples(job())
    assert found["keyscale_source_lag_records clicks"] == 7
    assert (found["keyscale_split_lag_records clicks 0"], found["keyscale_split_lag_records clicks 1"]) == (5, 2)
    lag = {"uid": "clicks", "lag_records": 5050, "splits": {str(number): number for number in range(1, 201)}}
    shown = [name for name in samples(job(metrics=REPORT | {"source_lags": [lag]})) if "split_lag" in name]
    assert shown == [f"keyscale_split_lag_records clicks {number}" for number in range(200, 100, -1)]


def test_every_declared_metric_of_a_job_is_there_and_said_what_it_is() -> None:
    text = scrape.of_jobs([job()], NOW_MS)
    expected = {
        metric.prometheus
        for metric in of_scope(OBSERVED, DRIVER, OPERATOR, SINK, SOURCE, SPLIT, SUBTASK)
        if metric.is_scraped
    }
    expected |= {metric.job_prometheus for metric in JOB_COUNTERS}
    expected |= {metric.prometheus for metric in JOB_METRICS if metric not in JOB_COUNTERS}
    for name in expected:
        assert f"\n# HELP {name} " in f"\n{text}"
        assert f"\n{name}{{" in text


@pytest.mark.parametrize("before", [None, {"input_records": 1000, "late_records": 5, "dead_letters": 9}])
@pytest.mark.parametrize("in_log", [None, {"input_records": 5000, "output_records": 1, "late_records": 2}])
def test_counters_are_those_of_the_api(before: dict[str, int] | None, in_log: dict[str, int] | None) -> None:
    report = DriverMetrics.model_validate({**REPORT, "counters": in_log})
    totals = added_totals(before, report)
    found = samples(job(metrics=report.model_dump(), totals_before=before))
    assert {metric.name: found[metric.job_prometheus] for metric in JOB_COUNTERS} == totals


@pytest.mark.parametrize(
    "facts", [{"stage": AttemptStage.ENDED}, {"driver_state": "RESTORING"}, {"heartbeat_at_ms": NOW_MS - 15_000}]
)
def test_a_job_that_does_not_run_has_totals_and_no_rate(facts: dict[str, Any]) -> None:
    found = samples(job(**facts))
    assert (found["keyscale_job_up"], found["keyscale_job_wanted"]) == (0, 1)
    assert found["keyscale_job_input_records_total"] == 1100
    assert "keyscale_job_input_records_per_second" not in found
    assert samples(job())["keyscale_job_up"] == 1


def test_a_job_that_sleeps_is_up() -> None:
    assert samples(job(driver_state="SLEEPING"))["keyscale_job_up"] == 1


FAILED = {"code": "JOB_FUNCTION_FAILED", "message": "no"}
FAILING = REPORT | {"last_failure": FAILED, "failures": {"count": 1, "times_ms": [NOW_MS - 5000]}}


@pytest.mark.parametrize(
    ("columns", "changed"),
    [
        ({}, {}),
        ({"metrics": None}, {"report": {}}),
        ({"completed": None}, {"checkpoint_ms": None, "snapshot_at_ms": None}),
        ({"checkpoints": None}, {"checkpoint_timeout_ms": None}),
        ({"metrics": FAILING}, {"report": FAILING, "failure": FAILED}),
        ({"metrics": FAILING, "last_commit_at_ms": NOW_MS - 4000}, {"report": FAILING}),
        ({"metrics": FAILING, "stage": AttemptStage.ENDED}, {"report": FAILING, "is_active": False}),
        ({"metrics": FAILING, "failure": {"code": "OWN"}}, {"report": FAILING, "failure": {"code": "OWN"}}),
        ({"status": JobStatus.FAILED}, {"is_settled": True}),
        ({"status": JobStatus.RESTARTING}, {}),
        ({"driver_state": "SLEEPING"}, {"idle_at_ms": NOW_MS - 1000}),
        ({"cause": "wake", "created_at_ms": NOW_MS - 3000}, {"idle_at_ms": NOW_MS - 3000}),
    ],
)
def test_the_health_of_a_job_is_of_the_report_of_its_driver_and_of_its_last_checkpoint(
    columns: dict[str, Any], changed: dict[str, Any]
) -> None:
    checkpoints = {"interval_ms": 10_000, "timeout_ms": 70_000}
    expected: dict[str, Any] = {
        "report": REPORT,
        "is_active": True,
        "is_current": False,
        "is_settled": False,
        "failure": None,
        "checkpoint_ms": 300,
        "checkpoint_timeout_ms": 70_000,
        "snapshot_at_ms": NOW_MS - 20_000,
        "idle_at_ms": None,
        "at_ms": NOW_MS,
    }
    found = scrape.health_facts(job(**{"checkpoints": checkpoints, **columns}), is_current=False, at_ms=NOW_MS)
    assert found == HealthFacts(**{**expected, **changed})


def test_the_records_that_wait_are_known_with_their_time_while_a_job_does_not_run() -> None:
    silent = samples(job(heartbeat_at_ms=NOW_MS - 90_000))
    assert silent["keyscale_job_lag_records"] == 7
    assert silent["keyscale_job_lag_records_at_timestamp_seconds"] == (NOW_MS - 90_000) / 1000
    unanswered = samples(job(metrics={**REPORT, "lag_age_ms": 60_000}))
    counted_at = unanswered["keyscale_job_lag_records_at_timestamp_seconds"]
    assert counted_at == samples(job())["keyscale_job_lag_records_at_timestamp_seconds"] - 60
    starting = samples(job(metrics=None, totals_before={"lag_records": 9, "lag_records_at_ms": 5000}))
    assert starting["keyscale_job_lag_records"] == 9
    assert starting["keyscale_job_lag_records_at_timestamp_seconds"] == 5
    assert "keyscale_job_lag_records" not in samples(job(metrics=None, totals_before=None))
    before = {"lag_records": 9, "lag_records_at_ms": 5000}
    caught_up = samples(job(metrics={**REPORT, "pending_records": 0}, totals_before=before))
    assert caught_up["keyscale_job_lag_records"] == 0
    assert caught_up["keyscale_job_lag_records_at_timestamp_seconds"] == (NOW_MS - 1000) / 1000


def test_the_last_checkpoint_of_a_job_without_one_is_as_old_as_its_driver_runs() -> None:
    assert samples(job(completed=None))["keyscale_job_last_checkpoint_age_seconds"] == 60
    assert "keyscale_job_last_checkpoint_age_seconds" not in samples(job(completed=None, running_at_ms=None))
    woken = job(completed=Snapshot(7, NOW_MS - 900_000, 300, 1024, 4096), cause="wake", created_at_ms=NOW_MS - 3000)
    assert samples(woken)["keyscale_job_last_checkpoint_age_seconds"] == 3, "the snapshot had all records"
    assert "keyscale_job_last_checkpoint_age_seconds" not in samples(job(driver_state="SLEEPING"))
    stopped = job(status=JobStatus.STOPPED, desired=DesiredState.STOPPED)
    assert "keyscale_job_last_checkpoint_age_seconds" not in samples(stopped)


@pytest.mark.parametrize(("failed_id", "has_failed"), [(None, 0), (6, 0), (8, 1)])
def test_a_checkpoint_that_failed_after_the_last_completed_one_is_told(failed_id: int | None, has_failed: int) -> None:
    failed = None if failed_id is None else Snapshot(failed_id, None, 0, 0, 0)
    assert samples(job(failed=failed))["keyscale_job_last_checkpoint_failed"] == has_failed


def test_a_job_that_does_not_set_the_interval_of_checkpoints_has_none_here() -> None:
    assert "keyscale_job_checkpoint_interval_seconds" not in samples(job(checkpoints=None))
    assert samples(job())["keyscale_job_checkpoint_interval_seconds"] == 10


def test_subtasks_are_told_by_their_extremes_and_text_of_jobs_is_escaped() -> None:
    found = samples(job())
    uid = 'to"tals\\'
    assert found[f"keyscale_subtask_busy_ratio {uid} min"] == 0.25
    assert found[f"keyscale_subtask_busy_ratio {uid} max"] == 0.75
    assert not any("keyscale_subtask_busy_ratio windows" in name for name in found)


def test_implausible_numbers_of_a_driver_are_left_out() -> None:
    found = samples(job())
    assert "keyscale_operator_event_time_lag_seconds windows" not in found
    assert "keyscale_operator_watermark_timestamp_seconds windows" not in found


def test_a_job_with_very_many_operators_does_not_fill_prometheus() -> None:
    many = {**REPORT, "operators": [{"uid": f"o{number}", "read_records": 1} for number in range(1000)]}
    found = [name for name in samples(job(metrics=many)) if name.startswith("keyscale_operator_read_records_total")]
    assert len(found) == scrape.PARTS_MAX


def counted(value: float, kind: str = "counter", name: str = "orders", **labels: str) -> dict[str, Any]:
    return {"operator": "shop", "name": name, "kind": kind, "labels": labels, "values": [value]}


def test_the_metrics_of_users_functions_have_their_labels_and_the_jobs() -> None:
    histogram = {**counted(12.5, "histogram", "amount"), "values": [12.5, 1, 0, 2], "bounds": [1.0, 10.0]}
    reported = {
        **REPORT,
        "counters": {"user": [counted(3, currency='E"U'), histogram]},
        "user_gauges": [counted(7, "gauge", "age")],
        "user_help": {"orders": "Orders\nby currency."},
    }
    text = scrape.of_jobs([job(metrics=reported)], NOW_MS)
    labels = 'job_id="1f",job_name="orders",operator="shop"'
    assert f'keyscale_user_orders_total{{{labels},currency="E\\"U"}} 3\n' in text
    assert (
        "# HELP keyscale_user_orders_total Orders\\nby currency.\n# TYPE keyscale_user_orders_total counter\n" in text
    )
    found = samples(job(metrics=reported))
    assert [found[f"keyscale_user_amount_bucket shop {bound}"] for bound in ("1.0", "10.0", "+Inf")] == [1, 1, 3]
    assert (found["keyscale_user_amount_sum shop"], found["keyscale_user_amount_count shop"]) == (12.5, 3)
    assert found["keyscale_user_age shop"] == 7


def test_a_silent_drivers_counters_stay_and_its_gauges_go() -> None:
    reported = {**REPORT, "counters": {"user": [counted(3)]}, "user_gauges": [counted(7, "gauge", "age")]}
    found = samples(job(metrics=reported, heartbeat_at_ms=NOW_MS - 60_000))
    assert found["keyscale_user_orders_total shop"] == 3
    assert "keyscale_user_age shop" not in found


def test_a_new_driver_continues_with_the_counters_before_it() -> None:
    before = {"user": [counted(3)]}
    assert samples(job(metrics=None, totals_before=before))["keyscale_user_orders_total shop"] == 3
    reported = {**REPORT, "counters": {"user": [counted(4)]}}
    assert samples(job(metrics=reported, totals_before=before))["keyscale_user_orders_total shop"] == 4


def test_a_name_that_jobs_give_to_two_kinds_of_metrics_has_no_type() -> None:
    reports = [{**REPORT, "user_gauges": [counted(1, "gauge", "age")]}]
    reports.append({**REPORT, "counters": {"user": [{**counted(1, "histogram", "age"), "values": [1, 1]}]}})
    text = scrape.of_jobs([job(id=str(number), metrics=each) for number, each in enumerate(reports)], NOW_MS)
    assert "# TYPE keyscale_user_age" not in text
    assert (text.count("keyscale_user_age{"), text.count("keyscale_user_age_count{")) == (1, 1)


def test_requests_are_counted_by_route_and_paths_that_no_route_has_together() -> None:
    metrics = OwnMetrics()
    shown = {"method": "GET", "path": "/v1/jobs/1f", "route": SimpleNamespace(path="/jobs/{job_id}")}
    unknown = {"method": "GET", "path": "/v1/any-1"}
    for scope, status, is_stream in (
        (shown, 200, False),
        (shown, 200, True),
        (unknown, 404, False),
        ({**shown, "method": "BREW"}, 405, False),
    ):
        metrics.note_request(cast("Any", scope), status, 0.02, is_stream=is_stream)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }
    assert found["keyscale_requests_total", "GET", "/v1/jobs/{job_id}", "200"] == 2
    assert found["keyscale_requests_total", NO_ROUTE, NO_ROUTE, "404"] == 1
    assert found["keyscale_requests_total", NO_ROUTE, "/v1/jobs/{job_id}", "405"] == 1
    assert found["keyscale_request_duration_seconds_count", "/v1/jobs/{job_id}"] == 2, "a stream has no duration"


def test_every_counter_of_the_control_plane_can_be_counted() -> None:
    metrics = OwnMetrics()
    for metric in of_scope(CONTROL_PLANE):
        if metric.kind == "counter":
            metrics.count(metric.name, *("x" for _ in metric.labels))
            assert f"{metric.prometheus}{{" in metrics.text() or f"{metric.prometheus} 1.0" in metrics.text()


@pytest.mark.real
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's package prometheus")
def test_promtool_accepts_what_prometheus_gets() -> None:
    histogram = {**counted(12.5, "histogram", "amount"), "values": [12.5, 1, 0, 2], "bounds": [1.0, 10.0]}
    reported = {**REPORT, "counters": {"user": [counted(3, currency="EUR"), histogram]}}
    metrics = OwnMetrics()
    metrics.count("errors", "JOB_NOT_FOUND")
    text = scrape.of_jobs([job(metrics=reported), job(id="2a", name="clicks")], NOW_MS) + metrics.text()
    for given, is_right in ((text, True), (text.replace('orders",operator', "orders,operator"), False)):
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=given, text=True, capture_output=True, check=False
        )
        assert (checked.returncode == 0) is is_right, checked.stderr


@pytest.mark.parametrize(("elected_at_ms", "age_s"), [(NOW_MS - 4000, 4), (NOW_MS + 1000, 0)])
def test_the_leader_and_the_drivers_that_are_silent_are_told(
    monkeypatch: pytest.MonkeyPatch, elected_at_ms: int, age_s: int
) -> None:
    leader = SimpleNamespace(elected_at_ms=elected_at_ms, silent_ms=1500)
    monkeypatch.setattr(scrape.leaders, "read", lambda _: leader)
    monkeypatch.setattr(scrape.attempts, "list_unlaunched", lambda _: ["a", "b"])
    silent = NOW_MS - scrape.SILENT_MS
    jobs = [
        job(),
        job(heartbeat_at_ms=silent),
        job(heartbeat_at_ms=None),
        job(heartbeat_at_ms=silent, status=JobStatus.STOPPED),
    ]
    found = scrape._gauges_of_database(cast("Any", None), jobs, NOW_MS)
    assert found == {"leader_age": age_s, "leader_silence": 1.5, "drivers_silent": 1, "starts_waiting": 2}


class Replica:
    """A replica, of which a scrape tells, and its database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: Exception | None = None
        self.found: list[ObservedJob] = []
        self.scopes: list[JobScope] = []
        self.pulse = SimpleNamespace(role="leader", quarantined=3)
        self.problem: str | None = None
        spares = SimpleNamespace(living=lambda: ["a", "b"])
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext(None),
            store=SimpleNamespace(problem=lambda: self.problem),
            change_feed=SimpleNamespace(streams=4),
            pulse=self.pulse,
            launcher=SimpleNamespace(spares=spares),
            metrics=SimpleNamespace(text=lambda: "own_counter 1.0\n"),
        )
        clock = count(10.0, 0.25)
        monkeypatch.setattr(scrape, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(scrape, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(scrape.scrapes, "of_scope", self._of_scope)
        monkeypatch.setattr(scrape, "_gauges_of_database", lambda *_: {"leader_age": 5, "starts_waiting": 6})

    def _of_scope(self, _: Any, scope: JobScope, *, limit: int) -> list[ObservedJob]:
        assert limit == scrape.JOBS_MAX
        self.scopes.append(scope)
        if self.failure is not None:
            raise self.failure
        return self.found

    def scraped(self, scope: JobScope = EVERYTHING) -> dict[str, float]:
        text = scrape.text_of(self.context, scope)
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    return Replica(monkeypatch)


OWN = {
    "keyscale_database_up": 1,
    "keyscale_store_up": 1,
    "keyscale_streams": 4,
    "keyscale_leader": 1,
    "keyscale_jobs_set_aside": 3,
    "keyscale_spare_drivers": 2,
    "keyscale_scrape_duration_seconds": 0.25,
    "keyscale_leader_age_seconds": 5,
    "keyscale_starts_waiting": 6,
    "own_counter": 1,
}


def test_a_replica_tells_of_itself_beside_the_jobs_and_a_follower_of_no_jobs_set_aside(replica: Replica) -> None:
    assert replica.scraped() == OWN
    replica.found = [job()]
    assert replica.scraped().items() >= {**OWN, "keyscale_job_up": 1}.items()
    replica.pulse.role, replica.problem, replica.found = "follower", "away", []
    follower = {name: value for name, value in OWN.items() if name != "keyscale_jobs_set_aside"}
    assert replica.scraped() == {**follower, "keyscale_leader": 0, "keyscale_store_up": 0}


def test_a_replica_without_its_database_tells_the_rest_and_a_token_of_some_jobs_gets_the_failure(
    replica: Replica,
) -> None:
    some = JobScope(frozenset({"orders"}))
    replica.found = [job()]
    assert {"keyscale_database_up", "own_counter"}.isdisjoint(replica.scraped(some))
    replica.failure = OperationalError("SELECT", {}, Exception("away"))
    away = {
        name: value
        for name, value in OWN.items()
        if name not in {"keyscale_leader_age_seconds", "keyscale_starts_waiting"}
    }
    assert replica.scraped() == {**away, "keyscale_database_up": 0}
    with pytest.raises(OperationalError):
        replica.scraped(some)
    assert replica.scopes == [some, EVERYTHING, some]


def test_of_several_operators_the_largest_lag_and_the_earliest_watermark_are_the_jobs() -> None:
    operators = [
        {"uid": "a", "event_time_lag_ms": 3000, "watermark_ms": 800_000},
        {"uid": "b", "event_time_lag_ms": 5000, "watermark_ms": -2000},
        {"uid": "c", "event_time_lag_ms": 4000, "watermark_ms": 900_000},
        {"uid": "d", "event_time_lag_ms": None, "watermark_ms": None},
    ]
    found = samples(job(metrics={**REPORT, "operators": operators}))
    assert (found["keyscale_job_lag_seconds"], found["keyscale_job_watermark_timestamp_seconds"]) == (5, -2)
    assert found["keyscale_operator_event_time_lag_seconds c"] == 4
    none = samples(job(metrics={**REPORT, "operators": operators[3:]}))
    assert {"keyscale_job_lag_seconds", "keyscale_job_watermark_timestamp_seconds"}.isdisjoint(none)


def test_before_its_first_batch_a_driver_has_the_gauges_that_it_knows_while_it_waits_for_input() -> None:
    names = {
        "keyscale_job_input_records_per_second",
        "keyscale_job_busy_ratio",
        "keyscale_job_processed_records_per_second",
        "keyscale_job_batch_duration_seconds",
    }

    def shown(**report: Any) -> set[str]:
        return samples(job(metrics={**REPORT, **report})).keys() & names

    assert shown() == shown(waits_for_input=True) == names
    idle = {"keyscale_job_input_records_per_second", "keyscale_job_busy_ratio"}
    assert shown(batches=0, waits_for_input=True) == idle
    assert shown(batches=0, waits_for_input=False) == set()
    assert samples(job(metrics={**REPORT, "batches": 0}))["keyscale_driver_process_memory_bytes"] == 1 << 21


@pytest.mark.parametrize("desired", DesiredState)
@pytest.mark.parametrize("status", JobStatus)
def test_a_job_is_wanted_while_its_user_wants_it_and_it_has_not_ended(desired: DesiredState, status: JobStatus) -> None:
    ended = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED}
    wanted = samples(job(desired=desired, status=status))["keyscale_job_wanted"]
    assert wanted == (desired is DesiredState.RUNNING and status not in ended)


def test_each_metric_of_a_job_is_shown_under_its_own_name() -> None:
    found = samples(job(failed=Snapshot(8, None, 0, 0, 0), heartbeat_at_ms=NOW_MS - 3000))
    of_job = {name.removeprefix("keyscale_job_"): value for name, value in found.items() if "keyscale_job_" in name}
    assert of_job == {
        "state_bytes": 4096,
        "last_checkpoint_duration_seconds": 0.3,
        "last_checkpoint_written_bytes": 1024,
        "restarts_total": 2,
        "status RUNNING": 1,
        "wanted": 1,
        "up": 1,
        "health_score": 100,
        "heartbeat_age_seconds": 3,
        "last_checkpoint_age_seconds": 20,
        "restorable_until_at_timestamp_seconds": 1040,
        "last_checkpoint_failed": 1,
        "lag_records_at_timestamp_seconds": 997,
        "checkpoint_interval_seconds": 10,
        "last_operation_downtime_seconds": 2.5,
        "autoscaler_verdict SCALE_UP": 1,
        "autoscaler_parallelism": 4,
        "input_records_total": 1100,
        "output_records_total": 90,
        "late_records_total": 8,
        "dead_letters_total": 5,
        "lost_records_total": 2,
        "input_records_per_second": 12.5,
        "processed_records_per_second": 80,
        "busy_ratio": 0.5,
        "batch_duration_seconds": 0.25,
        "lag_records": 7,
        "lag_seconds": 1.5,
        "watermark_timestamp_seconds": 900,
    }
    of_parts = {name: value for name, value in found.items() if "keyscale_job_" not in name and value != 0}
    assert {name.removeprefix("keyscale_").replace(' to"tals\\', ""): value for name, value in of_parts.items()} == {
        "driver_batches_total": 4,
        "driver_input_batches_total": 3,
        "driver_lag_growth_records_per_second": -1.5,
        "driver_garbage_collection_ratio": 0.25,
        "driver_jvm_heap_bytes": 1 << 20,
        "driver_process_memory_bytes": 1 << 21,
        "driver_process_seconds_total": 1.5,
        "driver_host_load_ratio": 0.5,
        "driver_source_retention_seconds": 60,
        "operator_read_records_total": 100,
        "operator_read_records_per_second": 1,
        "operator_write_records_per_second": 1,
        "operator_watermark_timestamp_seconds": 900,
        "operator_watermark_lag_seconds": 100,
        "operator_event_time_lag_seconds": 1.5,
        "operator_late_records_total": 3,
        "operator_dead_letters_total": 1,
        "sink_dead_letters_total table": 4,
        "source_lag_records clicks": 7,
        "split_lag_records clicks 0": 5,
        "split_lag_records clicks 1": 2,
        "subtask_busy_ratio min": 0.25,
        "subtask_busy_ratio max": 0.75,
        "subtask_state_bytes min": 10,
        "subtask_state_bytes max": 30,
    }


def test_of_very_many_sinks_and_sources_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "PARTS_MAX", 2)
    sinks = [{"uid": f"s{number}", "dead_letters": number} for number in range(3)]
    lags = [{"uid": f"i{number}", "lag_records": number, "splits": {"0": number}} for number in range(3)]
    found = samples(job(metrics={**REPORT, "sinks": sinks, "source_lags": lags}))
    shown = {
        kind: [name for name in found if name.startswith(f"keyscale_{kind}_") and not name.endswith("_info")]
        for kind in ("sink", "source", "split")
    }
    assert {name.split()[1] for name in shown["sink"]} == {"s0", "s1"}
    assert shown["source"] == ["keyscale_source_lag_records i0", "keyscale_source_lag_records i1"]
    assert shown["split"] == ["keyscale_split_lag_records i0 0", "keyscale_split_lag_records i1 0"]

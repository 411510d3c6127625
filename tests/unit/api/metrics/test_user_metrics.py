"""The metrics of users' functions are shown with the values that are known now."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api import database_clock
from keyscale.api.metrics import user_metrics
from keyscale.clock import now_ms
from keyscale.db.models import Attempt
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import AttemptStage

NOW_MS = 1_000_000


def series(name: str, kind: str, *values: float, **more: Any) -> dict[str, Any]:
    return {"operator": "shop", "name": name, "kind": kind, "labels": {}, "values": list(values), **more}


def shown(monkeypatch: pytest.MonkeyPatch, attempt: Attempt | None) -> dict[str, Any]:
    monkeypatch.setattr(user_metrics, "shared_now_ms", lambda: NOW_MS)
    monkeypatch.setattr(user_metrics, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(user_metrics.attempts, "newest_counted", lambda _, job_id: {"job": attempt}[job_id])
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = user_metrics.list_of(context, "flights").user_metrics
    return {each.name: each.histogram or (each.value, each.help) for each in found}


@pytest.mark.parametrize(
    ("columns", "is_current"),
    [({}, True), ({"heartbeat_at_ms": NOW_MS - 60_000}, False), ({"stage": AttemptStage.ENDED}, False)],
    ids=["reports", "is silent", "has ended"],
)
def test_counters_of_a_driver_stay_and_its_gauges_are_shown_while_it_reports(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any], is_current: bool
) -> None:
    metrics = {
        "counters": {"user": [series("orders", "counter", 7)]},
        "user_gauges": [series("age", "gauge", 3)],
        "user_help": {"orders": "Orders."},
    }
    given = {"stage": AttemptStage.ACTIVE, "driver_state": "RUNNING", "heartbeat_at_ms": NOW_MS, **columns}
    gauges = {"age": (3, "")} if is_current else {}
    assert shown(monkeypatch, Attempt(metrics=metrics, **given)) == {"orders": (7, "Orders."), **gauges}


def test_counters_of_earlier_drivers_are_shown_until_a_driver_has_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"user": [series("orders", "counter", 5)]}
    attempt = Attempt(stage=AttemptStage.ACTIVE, metrics={"counters": None}, totals_before=before)
    assert shown(monkeypatch, attempt) == {"orders": (5, "")}


def test_a_job_without_a_report_has_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, None) == {}


def test_a_histogram_has_a_count_per_bucket_and_the_last_bucket_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    amount = series("amount", "histogram", 12.5, 1, 2, 4, bounds=[1.0, 10.0])
    found = shown(monkeypatch, Attempt(stage=AttemptStage.ENDED, metrics={"counters": {"user": [amount]}}))["amount"]
    assert (found.sum, found.count) == (12.5, 7)
    assert [(bucket.up_to, bucket.count) for bucket in found.buckets] == [(1.0, 1), (10.0, 2), (None, 4)]


def test_a_metric_is_shown_with_its_operator_its_kind_and_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {"age": "Age of the last order.", "shop": "no metric's"}
    metrics = {
        "counters": {"user": [series("orders", "counter", 7, labels={"currency": "EUR"})]},
        "user_gauges": [series("age", "gauge", 3, operator="bills")],
        "user_help": described,
    }
    attempt = Attempt(stage=AttemptStage.ACTIVE, driver_state="RUNNING", heartbeat_at_ms=NOW_MS, metrics=metrics)
    monkeypatch.setattr(user_metrics, "shared_now_ms", lambda: NOW_MS)
    monkeypatch.setattr(user_metrics, "require_job_id", lambda *_: "job")
    monkeypatch.setattr(user_metrics.attempts, "newest_counted", lambda *_: attempt)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    orders = {"operator": "shop", "name": "orders", "kind": "COUNTER", "labels": {"currency": "EUR"}, "value": 7.0}
    age = {"operator": "bills", "name": "age", "kind": "GAUGE", "labels": {}, "value": 3.0}
    assert user_metrics.list_of(context, "flights").model_dump() == {
        "user_metrics": [
            {**orders, "help": "", "histogram": None},
            {**age, "help": "Age of the last order.", "histogram": None},
        ]
    }


def test_the_history_of_the_first_series_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_metrics, "SERIES_KEPT_MAX", 2)
    given = {
        "counters": {"user": [series("a", "counter", 1), series("b", "counter", 2)]},
        "user_gauges": [series("c", "gauge", 3)],
    }
    metrics = DriverMetrics.model_validate(given)
    keys = [user_metrics.key_of(series(name, "counter")) for name in ("a", "b")]
    assert user_metrics.sampled(metrics, is_current=True) == {keys[0]: [1.0], keys[1]: [2.0]}
    monkeypatch.setattr(user_metrics, "SERIES_KEPT_MAX", 3)
    assert len(user_metrics.sampled(metrics, is_current=True)) == 3
    assert len(user_metrics.sampled(metrics, is_current=False)) == 2


@pytest.mark.parametrize("ahead_ms", [-300_000, 300_000])
def test_a_report_is_as_old_as_the_clock_that_all_replicas_share_says(
    monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    monkeypatch.setattr(database_clock._CLOCK, "_ahead_ms", ahead_ms)
    monkeypatch.setattr(user_metrics, "require_job_id", lambda *_: "job")
    metrics = {"user_gauges": [series("age", "gauge", 3)]}
    attempt = Attempt(stage=AttemptStage.ACTIVE, driver_state="RUNNING", metrics=metrics)
    monkeypatch.setattr(user_metrics.attempts, "newest_counted", lambda *_: attempt)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    shown = []
    for silent_ms in (1000, 60_000):
        attempt.heartbeat_at_ms = now_ms() - ahead_ms - silent_ms
        shown.append(len(user_metrics.list_of(context, "flights").user_metrics))
    assert shown == [1, 0]

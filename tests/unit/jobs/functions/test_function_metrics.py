"""Tests of the metrics that a function declares and counts."""

import math

import numpy as np
import pyarrow as pa
import pytest

from keyscale.jobs.errors import MetricInvalidError
from keyscale.jobs.functions.function_metrics import HELP_CHARACTERS_MAX, FunctionMetrics
from keyscale.metrics import COUNTER, GAUGE, HISTOGRAM, SMALLEST
from keyscale.user_series import OTHER, USER_SERIES_MAX, UserSeries


def test_a_counter_counts_each_combination_of_its_labels() -> None:
    metrics = FunctionMetrics("shop")
    orders = metrics.counter("orders", "Orders by currency.", labels=["currency", "country"])
    orders.labels(currency="EUR", country="FR").inc()
    orders.labels(country="FR", currency="EUR").inc(2)
    orders.labels(currency="USD", country="US").inc(np.int64(4))
    assert metrics.series() == (
        UserSeries("shop", "orders", COUNTER, {"currency": "EUR", "country": "FR"}, (3,)),
        UserSeries("shop", "orders", COUNTER, {"currency": "USD", "country": "US"}, (4,)),
    )
    assert metrics.help == {"orders": "Orders by currency."}


def test_a_histogram_counts_bounds_in_their_own_bucket() -> None:
    metrics = FunctionMetrics("shop")
    amounts = metrics.histogram("amount", buckets=[1, 10])
    for value in (0.5, 1, 2, 11):
        amounts.observe(value)
    amounts.observe_many(pa.array([10.0, 100.0]))
    assert metrics.series() == (UserSeries("shop", "amount", HISTOGRAM, {}, (124.5, 2, 2, 2), (1.0, 10.0)),)


def test_a_gauge_has_its_last_value_and_its_fold() -> None:
    metrics = FunctionMetrics("shop")
    metrics.gauge("age", fold="smallest").set(3)
    metrics.gauge("age", fold="smallest").set(2)
    assert metrics.series() == (UserSeries("shop", "age", GAUGE, {}, (2,), (), SMALLEST),)


def test_each_series_with_labels_has_the_fold_and_the_buckets_of_its_metric() -> None:
    metrics = FunctionMetrics("op")
    metrics.gauge("level", fold="smallest", labels=["pipe"]).labels(pipe="a").set(3)
    metrics.histogram("size", labels=["pipe"], buckets=[1, 5]).labels(pipe="a").observe(5)
    level, size = metrics.series()
    assert (level.labels, level.values, level.fold, level.bounds) == ({"pipe": "a"}, (3,), SMALLEST, ())
    assert (size.labels, size.values, size.fold, size.bounds) == ({"pipe": "a"}, (5, 0, 1, 0), None, (1.0, 5.0))


def test_a_value_of_a_label_that_is_shown_in_another_way_has_one_series() -> None:
    metrics = FunctionMetrics("shop")
    orders = metrics.counter("orders", labels=["shop"])
    for _ in range(USER_SERIES_MAX + 1):
        orders.labels(shop="a\0b").inc()
    assert metrics.series() == (
        UserSeries("shop", "orders", COUNTER, {"shop": "a\N{REPLACEMENT CHARACTER}b"}, (USER_SERIES_MAX + 1,)),
    )


def test_metrics_that_the_function_does_not_use_have_no_series() -> None:
    metrics = FunctionMetrics("shop")
    metrics.counter("orders", labels=["currency"]).labels(currency="EUR")
    assert metrics.series() == ()


def test_undo_takes_back_what_was_counted_since_the_mark() -> None:
    metrics = FunctionMetrics("shop")
    orders, age, amounts = metrics.counter("orders"), metrics.gauge("age"), metrics.histogram("amount", buckets=[1])
    orders.inc()
    metrics.mark()
    orders.inc(5)
    orders.inc(5)
    age.set(7)
    amounts.observe(2)
    metrics.undo()
    assert metrics.series() == (UserSeries("shop", "orders", COUNTER, {}, (1,)),)


def test_values_of_labels_that_are_too_many_become_other() -> None:
    metrics = FunctionMetrics("shop")
    orders = metrics.counter("orders", labels=["customer"])
    for customer in range(USER_SERIES_MAX + 3):
        orders.labels(customer=customer).inc()
        orders.labels(customer=customer).inc()
    series = metrics.series()
    assert len(series) == USER_SERIES_MAX + 1
    assert series[-1] == UserSeries("shop", "orders", COUNTER, {"customer": OTHER}, (6,))


def test_values_of_labels_are_text_that_can_be_stored() -> None:
    metrics = FunctionMetrics("shop")
    orders = metrics.counter("orders", labels=["customer"])
    orders.labels(customer="\ud800 and \0").inc()
    orders.labels(customer="x" * 1000).inc()
    assert [series.labels["customer"] for series in metrics.series()] == ["? and �", "x" * 100]


def test_a_label_and_a_meaning_fit_into_a_report_and_have_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    metrics = FunctionMetrics("shop")
    metrics.counter("orders", "h" * 1000, labels=["key"]).labels(key="hunter2hunter2").inc()
    assert [series.labels["key"] for series in metrics.series()] == ["*****"]
    assert len(metrics.help["orders"]) == HELP_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda metrics: metrics.counter("1st"), "cannot be the name of a metric"),
        (lambda metrics: metrics.counter("orders-total"), "cannot be the name of a metric"),
        (lambda metrics: metrics.counter("orders_total"), "ends with _total, which Prometheus adds"),
        (lambda metrics: metrics.histogram("amount_bucket"), "ends with _bucket"),
        (lambda metrics: metrics.counter("orders", labels="currency"), "not a list"),
        (lambda metrics: metrics.counter("orders", labels=["a", "a"]), "not a list"),
        (lambda metrics: metrics.counter("orders", labels=list("abcdef")), "list of up to 5 names"),
        (lambda metrics: metrics.counter("orders", labels=["job_id"]), "has the label 'job_id'"),
        (lambda metrics: metrics.counter("orders", labels=["__name__"]), "has the label '__name__'"),
        (lambda metrics: metrics.histogram("amount", buckets=[2, 1]), "do not ascend"),
        (lambda metrics: metrics.histogram("amount", buckets=[]), "other than 1 to 30"),
        (lambda metrics: metrics.histogram("amount", buckets=[1, math.inf]), "finite"),
        (lambda metrics: metrics.gauge("age", fold="mean"), "it is sum, largest or smallest"),
    ],
)
def test_a_declaration_that_prometheus_cannot_take_is_refused(declare, reason) -> None:
    with pytest.raises(MetricInvalidError, match=reason):
        declare(FunctionMetrics("shop"))


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda metrics: metrics.counter("n").inc(-1), "cannot fall"),
        (lambda metrics: metrics.counter("n").inc(math.nan), "not a finite number"),
        (lambda metrics: metrics.counter("n").inc("one"), "was given a str, not a number"),
        (lambda metrics: metrics.counter("n").inc(2**60), "up to 2"),
        (lambda metrics: metrics.counter("n").labels(a=1), "given the labels a; it has: none"),
        (lambda metrics: metrics.counter("n", labels=["a"]).inc(), r"call .labels\(a=...\) first"),
        (lambda metrics: metrics.counter("n", labels=["a"]).labels(b=1), "given the labels b; it has: a"),
        (lambda metrics: metrics.counter("n", labels=["a"]).labels(a=1).labels(a=1), "given the labels a"),
        (lambda metrics: metrics.histogram("n").observe_many([1, math.inf]), "not a finite number"),
        (lambda metrics: (metrics.counter("n"), metrics.gauge("n")), "declared twice"),
        (lambda metrics: (metrics.counter("n"), metrics.counter("n", labels=["a"])), "declared twice"),
    ],
)
def test_a_wrong_use_of_a_metric_is_refused(use, reason) -> None:
    with pytest.raises(MetricInvalidError, match=reason):
        use(FunctionMetrics("shop"))

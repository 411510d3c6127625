"""The declarations of the metrics agree with each other, and everything that follows from them is there."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from keyscale.api.jobs.schemas.job_metrics import JobMetricsAnswer
from keyscale.api.metrics.schemas.series import SeriesName
from keyscale.db.models import SeriesPoint
from keyscale.db.repositories import series
from keyscale.jobs.protocol.messages import Counters, DriverMetrics, OperatorMetrics, SinkMetrics, SubtaskMetrics
from keyscale.metrics import (
    COUNTER,
    JOB_COUNTERS,
    JOB_METRICS,
    LARGEST,
    LOG_COUNTERS,
    METRICS,
    OPERATOR,
    REPORTED,
    SERIES,
    SHOWN_SERIES,
    SINK,
    SUBTASK,
    Metric,
    charts,
    of_scope,
)
from keyscale.state.documents.job_counters import JobCounters


def test_a_scope_has_one_metric_of_a_name() -> None:
    assert max(Counter((metric.scope, metric.name) for metric in METRICS).values()) == 1


def test_names_in_prometheus_are_valid_and_differ() -> None:
    names = [metric.prometheus for metric in METRICS if metric.is_scraped]
    names += [metric.job_prometheus for metric in JOB_COUNTERS if metric.of_job]
    assert [name for name in names if not re.fullmatch(r"keyscale_[a-z][a-z0-9_]*", name)] == []
    families = Counter(name.removesuffix("_total") for name in names)
    assert [name for name, count in families.items() if count > 1] == []


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: f"{metric.scope}-{metric.name}")
def test_a_name_in_prometheus_has_a_base_unit_and_only_counters_end_in_total(metric: Metric) -> None:
    assert metric.prometheus.endswith("_total") == (metric.kind is COUNTER)
    assert not re.search(r"_(ms|size|minutes|kib)(_|$)", metric.prometheus)
    assert metric.help.endswith(".")


def test_messages_answers_columns_and_the_log_have_what_is_declared() -> None:
    for model, metrics in (
        (SubtaskMetrics, of_scope(SUBTASK)),
        (OperatorMetrics, of_scope(OPERATOR)),
        (SinkMetrics, of_scope(SINK)),
        (DriverMetrics, REPORTED),
        (Counters, LOG_COUNTERS),
        (JobMetricsAnswer, JOB_METRICS),
    ):
        assert {metric.name if model is JobMetricsAnswer else metric.field for metric in metrics} <= set(
            model.model_fields
        )
    assert JobCounters.__struct_fields__ == (*(metric.name for metric in LOG_COUNTERS), "user")
    assert {metric.name for metric in SERIES} <= set(SeriesPoint.__table__.c.keys())
    assert set(series.COLUMNS) == {*(metric.name for metric in SERIES), "user_metrics"}
    assert [name.value for name in SeriesName] == [metric.name for metric in SHOWN_SERIES]


def test_each_line_of_a_chart_has_a_name_and_the_lines_of_a_chart_have_one_unit() -> None:
    for chart in charts():
        assert all(metric.label for metric in chart.lines)
        assert len({metric.unit for metric in chart.lines}) == 1


def test_totals_of_a_job_are_merged_to_the_largest_as_they_only_grow() -> None:
    assert {metric.time_fold for metric in JOB_COUNTERS} == {LARGEST}

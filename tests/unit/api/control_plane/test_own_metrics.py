"""A replica counts the failures and the time of its database and its object store."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from keyscale.api.control_plane.own_metrics import OwnMetrics


def values_of(metrics: OwnMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_statements_are_timed_and_failures_of_the_database_are_counted() -> None:
    metrics, engine = OwnMetrics(), create_engine("sqlite://")
    metrics.watch(engine)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1 FROM missing"))
    found = values_of(metrics)
    assert found["keyscale_database_duration_seconds_count"] == 1
    assert found["keyscale_database_errors_total"] == 1


def test_checks_of_the_object_store_are_timed_and_failures_are_counted() -> None:
    metrics = OwnMetrics()
    metrics.note_store_check(0.5, False)
    metrics.note_store_check(2.5, True)
    found = values_of(metrics)
    assert (found["keyscale_store_duration_seconds_count"], found["keyscale_store_duration_seconds_sum"]) == (2, 3)
    assert found["keyscale_store_errors_total"] == 1

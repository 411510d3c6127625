"""The recording that the pages show: its rows are those of today's tables, and those of a new journey."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyscale.db.models import Job
from tests.support.recordings import journey
from tests.support.recordings.recorded_rows import GIVEN_BY_DATABASE, SECRET, Rows

BYTES_MAX = 150_000
TABLES = Job.metadata.tables
HOW_LONG = (".figures_", ".caught_up_", ".lag_", ".settled_", ".metrics_after")
"""Columns that have a value only if the job has run for long enough."""


def recorded() -> Rows:
    rows: Rows = json.loads(journey.FILE.read_text(encoding="utf-8"))["rows"]
    return rows


def differences(rows: Rows) -> set[tuple[str, str]]:
    """Returns the columns of today's tables that a recording lacks, and those that it has alone."""
    today = {(table, column.name) for table in rows for column in TABLES[table].columns} - GIVEN_BY_DATABASE - SECRET
    return today ^ {(table, name) for table, of_table in rows.items() for row in of_table for name in row}


def shape(value: Any, place: str = "") -> set[str]:
    """Returns the place of each value in rows, of lists those of all members."""
    if isinstance(value, dict):
        return {place}.union(*(shape(each, f"{place}.{name}") for name, each in value.items()))
    if isinstance(value, list):
        return {place}.union(*(shape(each, f"{place}[]") for each in value))
    return set() if value is None else {place}


def test_a_recording_has_the_columns_of_todays_tables() -> None:
    assert differences(recorded()) == set(), "record again: python -m tests.support.recordings.journey"


def test_a_column_that_a_recording_lacks_or_has_alone_is_found() -> None:
    rows = recorded()
    for row in rows["jobs"]:
        row["colour"] = row.pop("status")
    assert differences(rows) == {("jobs", "colour"), ("jobs", "status")}


def test_a_recording_is_small_and_names_no_machine() -> None:
    content = journey.FILE.read_text(encoding="utf-8")
    assert len(content) < BYTES_MAX
    assert "/tmp/" not in content  # noqa: S108 - where the journey's directories were
    assert {row["host"] for row in json.loads(content)["rows"]["attempts"]} == {"host"}


@pytest.mark.exhaustive
def test_a_new_journey_leaves_rows_of_the_recorded_shape() -> None:
    new, old = shape(journey.record()["rows"]), shape(recorded())
    timing = {place for place in new ^ old if any(name in place for name in HOW_LONG)}
    assert (new ^ old) - timing == set(), "record again: python -m tests.support.recordings.journey"

from __future__ import annotations

from sqlalchemy.dialects.postgresql import insert

from keyscale.db.models import SeriesPoint
from keyscale.db.repositories import series


def test_the_statement_that_stores_values_is_compiled_once_for_all_heartbeats() -> None:
    assert series._upsert(series.COLUMNS)._generate_cache_key() is not None


def test_a_statement_with_the_values_of_several_rows_would_be_compiled_each_time() -> None:
    assert insert(SeriesPoint).values([{"step_ms": 1}, {"step_ms": 2}])._generate_cache_key() is None

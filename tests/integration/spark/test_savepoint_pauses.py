"""A savepoint that batches wait for is not searched for expired entries: no downtime grows with the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import keyscale.state.snapshot.snapshot
from tests.support.rehearsal.rehearsal import Rehearsal
from tests.support.rehearsal.spark_transforms import SparkTransforms
from tests.support.spark.batch_rig import declared, main_job, random_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

SCHEMA = pa.schema([("id", pa.string()), ("aircraft", pa.string()), ("delay", pa.int64())])


def searched_states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the states whose entries are searched in copies of stores, from now on."""
    searched: list[str] = []

    def clean(_directories: Sequence[Path], expired: Mapping[str, Any], _settings: object) -> None:
        searched.extend(expired)

    monkeypatch.setattr(keyscale.state.snapshot.snapshot, "clean_copies", clean)
    return searched


def test_only_a_savepoint_beside_the_batches_is_searched_for_expired_entries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [dict(zip(SCHEMA.names, report, strict=True)) for report in random_reports(1, 50)]
    job = Rehearsal(
        tmp_path,
        declared(spark, tmp_path, main_job),
        [pa.Table.from_pylist(rows, SCHEMA)],
        SparkTransforms(spark),
    )
    job.start(2)
    job.run_batches(1)
    searched = searched_states(monkeypatch)
    job.checkpoint("beside")
    assert set(searched) == {"seen"}
    searched.clear()
    job.checkpoint("waiting", batches_wait=True)
    assert searched == []

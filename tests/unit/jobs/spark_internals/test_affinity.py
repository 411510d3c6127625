"""The rows that hold subtasks in their places are one per subtask, cached once, and joined to every batch."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from keyscale.jobs.spark_internals import affinity
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN, PlacementDataset


class Text:
    """A column or a frame that knows only how it was made."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> Any:
        if name == "rdd":
            return f"{self.text}.rdd"
        return lambda *given, **named: Text(f"{self.text}.{name}({', '.join(map(shown, (*given, *named.items())))})")

    def __lt__(self, other: object) -> Text:
        return Text(f"{self.text} < {other}")


def shown(given: object) -> str:
    return given.text if isinstance(given, Text) else str(given)


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "F", Text("F"))


def rows(partitions: int) -> str:
    subtask = f"F.col(id).cast(int).alias({SUBTASK_COLUMN})"
    return f"spark.range({partitions}).select({subtask}).repartitionById({partitions}, {SUBTASK_COLUMN})"


@pytest.mark.parametrize(("parallelism", "partitions"), [(1, 2), (2, 2), (5, 5)])
def test_batches_are_joined_to_cached_rows_and_a_single_subtask_has_a_spare_partition(
    parallelism: int, partitions: int
) -> None:
    placed = PlacementDataset.create(cast("Any", Text("spark")), parallelism)
    cached = f"{rows(partitions)}.cache()"
    assert shown(placed.frame) == cached
    routed: Any = placed.route(cast("Any", Text("batch")))
    joined = f"{cached}.hint(shuffle_hash)"
    assert shown(routed) == f"batch.repartitionById({partitions}, {SUBTASK_COLUMN}).join({joined}, {SUBTASK_COLUMN})"
    subtasks: Any = placed.subtasks
    assert subtasks == f"{cached}.where(F.col({SUBTASK_COLUMN}) < {parallelism}).rdd"


def test_an_empty_frame_has_a_schema_and_the_partitions_of_the_rows() -> None:
    placed = PlacementDataset.create(cast("Any", Text("spark")), 3)
    schema = StructType([StructField("a", LongType()), StructField("b", StringType())])
    columns = [f"F.lit(None).cast({kind}).alias({name})" for name, kind in (("a", "LongType()"), ("b", "StringType()"))]
    found: Any = placed.empty(schema)
    assert shown(found) == f"{rows(3)}.cache().where(F.col({SUBTASK_COLUMN}) < 0).select({', '.join(columns)})"


def test_without_affinity_rows_are_neither_cached_nor_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_SPARK_WITHOUT", "affinity")
    placed = PlacementDataset.create(cast("Any", Text("spark")), 3)
    assert (shown(placed.frame), placed.joined) == (rows(3), None)
    routed: Any = placed.route(cast("Any", Text("batch")))
    assert shown(routed) == f"batch.repartitionById(3, {SUBTASK_COLUMN})"

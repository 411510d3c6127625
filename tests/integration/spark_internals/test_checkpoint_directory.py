"""Relied on: the files of a streaming query's checkpoint directory.

A failure here means that jobs cannot be restored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.checkpoint_directory import (
    PositionsDirectory,
    SparkStateUnsupportedError,
    check_planned,
    inputs_of,
    merged,
    shortened,
    with_commit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real


class Reading:
    """A query over two directories of numbers, and what its batches held."""

    def __init__(self, spark: SparkSession, home: Path, positions: Mapping[str, str], name: str) -> None:
        self.batches: dict[int, list[int]] = {}
        self.planned: dict[int, dict[str, str]] = {}
        self.directory = PositionsDirectory(home / name)
        self.directory.write(positions)
        first, second = (
            spark.readStream.schema("number bigint").option("maxFilesPerTrigger", 1).json(str(home / folder))
            for folder in ("first", "second")
        )
        writer = first.union(second).writeStream.foreachBatch(self._note)
        self.query = writer.option("checkpointLocation", self.directory.location).start()

    def _note(self, frame: DataFrame, batch_id: int) -> None:
        self.planned[batch_id] = self.directory.read_new()
        self.batches[batch_id] = sorted(row.number for row in frame.collect())

    def finish(self) -> None:
        try:
            self.query.processAllAvailable()
        finally:
            self.query.stop()


def write(home: Path, file: str, number: int) -> None:
    path = home / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"number": number}))


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Reading:
    write(tmp_path, "first/a.json", 1)
    write(tmp_path, "first/b.json", 2)
    write(tmp_path, "second/c.json", 10)
    reading = Reading(spark, tmp_path, {}, "before")
    reading.finish()
    return reading


def test_when_a_batch_is_handed_over_the_directory_holds_its_offsets_but_not_its_commit(read: Reading) -> None:
    assert len(read.batches) == 2
    for batch_id, files in read.planned.items():
        check_planned(files, batch_id)
        assert f"commits/{batch_id}" not in files
    assert "metadata" in read.planned[0]
    # The offsets have a line for each input, after version and watermark.
    offsets = read.planned[0]["offsets/0"]
    assert offsets.splitlines()[0] == "v1"
    assert "batchWatermarkMs" in json.loads(offsets.splitlines()[1])
    assert inputs_of(offsets) == 2


def test_a_planned_batch_runs_again_with_the_same_records_from_recorded_files(
    spark: SparkSession, tmp_path: Path, read: Reading
) -> None:
    recorded = with_commit(merged(merged({}, read.planned[0], 0), read.planned[1], 1), 0)
    write(tmp_path, "first/later.json", 3)
    again = Reading(spark, tmp_path, recorded, "again")
    again.finish()
    assert again.batches == {1: read.batches[1], 2: [3]}


def test_after_a_commit_in_spark_s_words_the_next_batch_is_a_new_one(
    spark: SparkSession, tmp_path: Path, read: Reading
) -> None:
    recorded = with_commit(merged(merged({}, read.planned[0], 0), read.planned[1], 1), 1)
    write(tmp_path, "second/later.json", 20)
    further = Reading(spark, tmp_path, recorded, "further")
    further.finish()
    assert further.batches == {2: [20]}


def test_a_compacted_source_log_is_put_together_again_from_shortened_plans(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(23):
        write(tmp_path, f"first/{number:02}.json", number)
    write(tmp_path, "second/only.json", 1000)
    read = Reading(spark, tmp_path, {}, "before")
    read.finish()
    assert len(read.batches) == 23
    whole: dict[str, str] = {}
    recorded: dict[str, str] = {}
    lengths = []
    for batch_id, planned in sorted(read.planned.items()):
        plan = shortened(planned, whole)
        lengths.append(sum(len(content) for name, content in plan.items() if name.startswith("sources/")))
        whole = merged(whole, planned, batch_id)
        recorded = merged(recorded, plan, batch_id)
    assert any(name.endswith("19.compact") for name in whole)
    assert recorded == whole
    assert max(lengths[1:]) <= lengths[0], "the first batch read a file of each directory, the others one file"
    write(tmp_path, "first/later.json", 100)
    further = Reading(spark, tmp_path, with_commit(recorded, 22), "further")
    further.finish()
    assert further.batches == {23: [100]}


@pytest.mark.exhaustive  # 62 batches
def test_a_query_that_starts_again_anywhere_between_compactions_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Spark derives from the compacted files how often it compacts; after 19 alone it would do so by twenties."""
    write(tmp_path, "second/only.json", 1000)
    recorded: dict[str, str] = {}
    seen: list[int] = []
    for start, end in [(0, 21), (21, 51), (51, 53), (53, 61), (61, 62)]:
        for number in range(start, end):
            write(tmp_path, f"first/{number:02}.json", number)
        reading = Reading(spark, tmp_path, recorded, f"until-{end}")
        reading.finish()
        for batch_id, planned in sorted(reading.planned.items()):
            recorded = merged(recorded, shortened(planned, recorded), batch_id)
        recorded = with_commit(recorded, max(reading.planned))
        seen += [number for batch in reading.batches.values() for number in batch]
    assert sorted(seen) == [*range(62), 1000]


def test_the_state_of_spark_s_own_operators_is_seen_by_its_directory(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "in/a.json", 1)
    directory = PositionsDirectory(tmp_path / "positions")
    directory.write({})
    stream = spark.readStream.schema("number bigint").json(str(tmp_path / "in")).dropDuplicates()
    writer = stream.writeStream.foreachBatch(lambda frame, _: frame.collect())
    query = writer.option("checkpointLocation", directory.location).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    with pytest.raises(SparkStateUnsupportedError):
        directory.read_new()

"""Spark's own restart, from checkpoint directories that were written from recorded positions only."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from keyscale.jobs.spark_internals.checkpoint_directory import PositionsDirectory, merged, with_commit
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore::ResourceWarning")]

FILES = 34  # the file source merges its log at 9, 19 and 29
FEW_FILES = 13


class Killed(Exception):  # noqa: N818 - not an error, but what the test wants
    """In place of the end of a driver at a named moment of a batch."""


@dataclass
class Recorded:
    """The data that survives a driver: the positions planned, the batches committed."""

    positions: dict[str, str] = field(default_factory=dict)
    planned: int | None = None
    committed: dict[int, list[int]] = field(default_factory=dict)
    runs: dict[int, list[list[int]]] = field(default_factory=dict)


def run_until_killed(  # noqa: C901 - one driver's life in one piece
    spark: SparkSession, source: Path, directory: Path, recorded: Recorded, kill_at: tuple[int, str] | None
) -> None:
    """Runs a driver from recorded positions to the kill, or to the end of the input."""
    files = recorded.positions
    if recorded.planned is not None:
        if recorded.planned in recorded.committed:
            files = with_commit(files, recorded.planned)
        elif recorded.planned > 0:
            files = with_commit(files, recorded.planned - 1)
    local = PositionsDirectory(directory)
    local.write(files)

    def run(frame: DataFrame, batch_id: int) -> None:
        if batch_id != recorded.planned or batch_id in recorded.committed:
            new = local.read_new()
            if kill_at == (batch_id, "before plan"):
                raise Killed
            recorded.positions = merged(recorded.positions, new, batch_id)
            recorded.planned = batch_id
        if kill_at == (batch_id, "planned"):
            raise Killed
        rows = sorted(row.v for row in frame.collect())
        recorded.runs.setdefault(batch_id, []).append(rows)
        if kill_at == (batch_id, "ran"):
            raise Killed
        assert batch_id not in recorded.committed
        recorded.committed[batch_id] = rows
        if kill_at == (batch_id, "committed"):
            raise Killed

    stream = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json(str(source))
    query = stream.writeStream.foreachBatch(run).option("checkpointLocation", local.location).start()
    try:
        query.processAllAvailable()
    except StreamingQueryException as error:
        if kill_at is None or "Killed" not in str(error):
            raise
    finally:
        query.stop()


@pytest.mark.parametrize("seed", short_form([0, 1, 2], [0]))
@pytest.mark.parametrize("files", short_form([FEW_FILES, FILES], [FEW_FILES]))
def test_every_file_is_read_exactly_once_over_many_restarts_around_compaction(
    spark: SparkSession, tmp_path: Path, seed: int, files: int
) -> None:
    random_moments = random.Random(seed)
    source = tmp_path / "in"
    source.mkdir()
    for number in range(files):
        (source / f"{number:03}.json").write_text(f'{{"v": {number}}}\n')
    recorded = Recorded()
    moments = [
        (batch, moment)
        for batch in (0, 1, 8, 9, 10, 18, 19, 20, 29, 30)
        for moment in ("before plan", "planned", "ran", "committed")
        if batch < files and random_moments.random() < 0.5
    ]
    for life, kill_at in enumerate([*moments, None]):
        # Spark must find the directory that we wrote, whatever its name.
        run_until_killed(spark, source, tmp_path / f"positions, {life} of 100%", recorded, kill_at)

    assert len(moments) > 5
    assert sorted(recorded.committed) == list(range(files))
    assert sorted(v for rows in recorded.committed.values() for v in rows) == list(range(files))
    assert all(run == runs[0] for runs in recorded.runs.values() for run in runs), "a re-run read other input"
    assert len(recorded.positions) < 30, "positions grow without bound"

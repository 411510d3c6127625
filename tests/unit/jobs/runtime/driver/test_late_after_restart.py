"""Whether a record is late depends on the records before it, and never on restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale import TumblingWindows
from tests.support.rehearsal.keyed_rehearsal import SINK, declared_rehearsal

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.functions.process_function import Row
    from keyscale.jobs.streams.streams import DataStream, KeyedStream

# The second batch leads the watermark to where a record of the window up to 20 is late, and lets no timer fire.
BATCHES = [[("a", 20)], [("a", 26)], [("b", 12)], [("a", 3)]]


def last_of_each_ten(keyed: KeyedStream) -> DataStream:
    def last(left: Row, right: Row) -> Row:
        return max(left, right)

    return keyed.window(TumblingWindows(10)).allowed_lateness(5).reduce(last)


def results(directory: Path, restarts: int) -> tuple[int, list[tuple[str, int]]]:
    """Returns the number of late records and the output, with restarts between all batches."""
    job = declared_rehearsal(directory, last_of_each_ten, BATCHES)
    job.start(2)
    for _ in BATCHES:
        job.run_batches(1)
        job.fire_timers()
        for _ in range(restarts):
            job.start(2)
            job.fire_timers()
    return job.counters.late_records, sorted((row["key"], row["at"]) for row in job.output(SINK))


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_job_counts_the_same_late_records_with_restarts_as_without(tmp_path: Path, restarts: int) -> None:
    late, output = results(tmp_path / "without", 0)
    assert late > 0, "a job without late records proves nothing"
    assert results(tmp_path / "with", restarts) == (late, output)

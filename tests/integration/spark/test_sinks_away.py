"""A batch waits for a sink whose system does not answer, and goes on from where it was."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import pytest

from keyscale import FileSink, SinkContext, SinkUnavailableError
from keyscale.jobs.errors import SinkOccupiedError
from keyscale.jobs.operators.failures import CarriedFailure, TaskOrigin, origin_of
from keyscale.jobs.runtime.retries import Retries
from keyscale.state.documents.state_version import NO_BATCH
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import Rig, assert_totals_equal_a_fold, declared, main_job, random_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000
PAUSES = 2


class AwaySink:
    """A sink of files whose system does not answer as often as is said, by the step."""

    reads_repeatedly: ClassVar[bool] = False

    def __init__(self, output: str) -> None:
        self.files = FileSink(output)
        self.left = Counter[str]()
        self.tries = Counter[str]()

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        if self._fails("tasks"):
            frame.mapInArrow(_no_answer, "id string").collect()
        token = self.files.prepare(frame, context)
        self._answer("prepare")
        return token

    def publish(self, token: str) -> None:
        self._answer("publish")
        self.files.publish(token)

    def discard(self, token: str) -> None:
        self.files.discard(token)

    def recover(self, context: SinkContext) -> None:
        self._answer("recover")
        self.files.recover(context)

    def _answer(self, step: str) -> None:
        if self._fails(step):
            raise SinkUnavailableError("no answer")

    def _fails(self, step: str) -> bool:
        self.tries[step] += 1
        self.left[step] -= 1
        return self.left[step] >= 0


def _no_answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:  # all records have been processed by then
        pass
    raise CarriedFailure(SinkUnavailableError("no answer"), TaskOrigin("files", 1))


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> tuple[Rig, AwaySink]:
    return started(spark, tmp_path, limit_ms=HOUR_MS)


def started(spark: SparkSession, path: Path, *, limit_ms: int) -> tuple[Rig, AwaySink]:
    sinks: list[AwaySink] = []

    def with_sink(reports: DataStream, output: str) -> None:
        sinks.append(AwaySink(output))
        main_job(reports, output, sink=sinks[0])

    retries = Retries(limit_ms, sleep=lambda _: None, awaited=SinkUnavailableError)
    return Rig(spark, path, declared(spark, path, with_sink), sink_retries=retries), sinks[0]


@pytest.mark.parametrize("step", short_form(["prepare", "tasks", "publish"], ["tasks", "publish"]))
def test_a_batch_is_written_once_when_the_sink_answers_again(job: tuple[Rig, AwaySink], step: str) -> None:
    rig, sink = job
    batches = [random_reports(seed, 40) for seed in range(2)]
    rig.run(batches[0])
    assert rig.outages == []
    sink.left[step] = PAUSES
    rig.run(batches[1])
    assert_totals_equal_a_fold(rig.output(), batches)
    assert sink.tries[step] == 2 + PAUSES
    assert [outage and (outage.uid, outage.reason) for outage in rig.outages] == [("files", "no answer")] * PAUSES + [
        None
    ]


def test_a_sink_that_is_refused_its_target_at_a_start_is_named(spark: SparkSession, tmp_path: Path) -> None:
    def with_two_sinks(reports: DataStream, output: str) -> None:
        main_job(reports, output, sink=FileSink(f"{output}/own"))
        reports.sink_to(FileSink(f"{output}/taken")).uid("copy")

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, with_two_sinks))
    FileSink(str(rig.path / "out" / "taken")).recover(SinkContext("another", "files", -1, 1, "u"))
    with pytest.raises(SinkOccupiedError) as refused:
        rig.runner.recover(NO_BATCH)
    assert origin_of(refused.value).operator_uid == "copy"


def test_a_start_waits_for_the_sink(job: tuple[Rig, AwaySink]) -> None:
    rig, sink = job
    sink.left["recover"] = PAUSES
    rig.runner.recover(NO_BATCH)
    assert sink.tries["recover"] == 1 + PAUSES
    assert len(rig.outages) == PAUSES + 1


@pytest.mark.parametrize("act", [lambda rig: rig.run(random_reports(1, 4)), lambda rig: rig.runner.recover(NO_BATCH)])
def test_the_waiting_ends_at_the_limit(spark: SparkSession, tmp_path: Path, act: Callable[[Rig], object]) -> None:
    rig, sink = started(spark, tmp_path, limit_ms=1000)
    sink.left.update({"prepare": 1000, "recover": 1000})
    with pytest.raises(SinkUnavailableError):
        act(rig)
    assert rig.outages[-1] is None

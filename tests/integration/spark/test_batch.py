"""Micro-batches through real operators and real state, up to the outcome that a commit would name."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale import FileSink, ForeachBatchSink, KeyedProcessFunction
from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import IncompleteReportsError, OutputTypeError, TaskFailedError, UserFunctionError
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.runtime.batch.keyed_records import KeyedRecords
from keyscale.jobs.runtime.executor.subtask_jobs import run_per_subtask
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN, PlacementDataset
from keyscale.jobs.spark_internals.function_copies import pickled
from keyscale.state.errors import SerializationError
from keyscale.state.keys.hashing import HashId
from keyscale.state.restore.opened_shards import StateSource
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import (
    PARALLELISM,
    TOTALS,
    Rig,
    Totals,
    assert_totals_equal_a_fold,
    declared,
    main_job,
    random_reports,
)
from tests.support.spark.python_workers import kill_python_workers
from tests.support.spark.spark_plans import physical_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream, ProcessContext, Row, RuntimeContext, SinkContext
    from keyscale.errors import KeyscaleError
    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.runtime.batch.frames import OperatorInputs

pytestmark = pytest.mark.real


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job))
    yield rig
    rig.placement.release()


def test_state_lasts_from_batch_to_batch_and_every_record_counts_once(rig: Rig) -> None:
    batches = [random_reports(seed, 300) for seed in range(3)]
    for reports in batches:
        rig.run(reports)
    assert_totals_equal_a_fold(rig.output(), batches)


def test_the_outcome_names_a_changelog_for_each_subtask_that_changed_and_counts_records(rig: Rig) -> None:
    outcome = rig.run([("r1", "N1", 5), ("r1", "N1", 5), ("r2", "N1", 7)])
    assert outcome.input_records == 3
    assert outcome.output_records == 2
    assert {uid: len(changelogs) for uid, changelogs in outcome.changelogs.items()} == {"unique": 2, "totals": 2}
    assert [changelog is None for changelog in outcome.changelogs["totals"]].count(False) == 1
    assert sum(report.read_records for report in outcome.reports["totals"]) == 2
    again = rig.run([("r2", "N1", 7)])
    assert again.output_records == 0
    assert all(changelog is None for changelogs in again.changelogs.values() for changelog in changelogs)


def test_the_query_itself_moves_the_records_to_the_only_operator_that_reads_them(rig: Rig) -> None:
    frame = rig.frame(random_reports(1, 50))
    assert SUBTASK_COLUMN in frame.columns
    assert frame.rdd.getNumPartitions() == PARALLELISM
    placed = frame.select(F.spark_partition_id(), SUBTASK_COLUMN).distinct().collect()
    assert sorted(map(tuple, placed)) == [(subtask, subtask) for subtask in range(PARALLELISM)]


def test_a_batch_moves_only_what_the_query_has_not_moved(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    move = KeyedRecords.moved

    def noted(records: KeyedRecords, node: OperatorNode, inputs: OperatorInputs) -> DataFrame:
        moved.append(node.uid)
        return move(records, node, inputs)

    monkeypatch.setattr(KeyedRecords, "moved", noted)
    rig.run(random_reports(1, 50))
    assert moved == ["totals"]


def test_a_batch_without_records_changes_nothing_and_is_complete(rig: Rig) -> None:
    rig.run(random_reports(1, 50))
    outcome = rig.run([])
    assert (outcome.input_records, outcome.output_records) == (0, 0)
    assert (rig.path / "out" / "batch=1").is_dir()


@pytest.mark.exhaustive  # a batch that fails in a task shows the same
def test_a_batch_that_was_not_committed_runs_again_from_the_state_before_it(rig: Rig) -> None:
    batches = [random_reports(seed, 200) for seed in range(3)]
    rig.run(batches[0])
    lost = rig.runner.run(rig.frame(random_reports(9, 200)), rig.committed)
    rig.runner.discard(lost.sinks)
    for reports in batches[1:]:
        rig.run(reports)
    assert_totals_equal_a_fold(rig.output(), batches)


def test_subtasks_keep_the_workers_that_have_their_stores_open(rig: Rig) -> None:
    rig.run(random_reports(0, 50))
    outcomes = [rig.run(random_reports(seed, 50)) for seed in range(1, 7)]
    sources = Counter(
        report.source
        for outcome in outcomes
        for reports in outcome.reports.values()
        for report in reports
        if report.source is not None
    )
    # Spark by itself would open every third store again. A single worker that is idle but does not say so yet is no
    # failure.
    assert sources[StateSource.WARM] > 0.9 * sources.total()


def test_local_files_that_are_lost_with_their_workers_are_rebuilt_from_the_changelogs(rig: Rig) -> None:
    batches = [random_reports(seed, 200) for seed in range(3)]
    rig.run(batches[0])
    rig.run(batches[1])
    assert kill_python_workers()  # a worker that lives would keep its files and use them
    shutil.rmtree(rig.path / "local")
    rig.run(batches[2])
    assert_totals_equal_a_fold(rig.output(), batches)


def test_a_large_operator_is_shipped_once_and_leaves_nothing_on_the_driver_batch_after_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    def job(reports: DataStream, output: str) -> None:
        counted = reports.key_by("aircraft").process(Modelled(), output={"aircraft": "string", "model": "bigint"})
        counted.uid("modelled").sink_to(FileSink(output)).uid("files")

    def files() -> set[Path]:
        return {path for path in Path(str(spark.sparkContext._temp_dir)).rglob("*") if path.is_file()}

    before = files()
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    planned = rig.runner._plan("plan", rig.committed, is_at_end=False)
    task = rig.runner._task(planned, rig.topology.operators[0], b"")
    assert len(pickled(task)) < 10_000
    for seed in range(2):
        rig.run(random_reports(seed, 50))
        assert len(files() - before) == 1
    rig.runner._shipped.release()
    assert files() == before
    rig.placement.release()


class Modelled(KeyedProcessFunction):
    def __init__(self) -> None:
        self.model = bytes(2 << 20)

    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        return [(context.current_key, len(self.model))]


def test_a_resource_is_made_once_per_worker_and_again_after_a_failure(spark: SparkSession, tmp_path: Path) -> None:
    def job(reports: DataStream, output: str) -> None:
        seen = reports.key_by("aircraft").process(Connected(), output={"worker": "string", "made": "string"})
        seen.uid("connected").sink_to(FileSink(output)).uid("files")

    def made() -> set[tuple[str, str]]:
        rows = spark.read.parquet(str(tmp_path / "out")).select("worker", "made").collect()
        return {(row.worker, row.made) for row in rows}

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    for seed in range(2):
        rig.run(random_reports(seed, 50))
    first = made()
    assert len(first) == len({worker for worker, _ in first})
    rig.fail(
        [(f"r{number}", aircraft, -1) for number, aircraft in enumerate(["N0", "N1", "N2", "N3", "N4", "N5", "N6"])]
    )
    rig.run(random_reports(4, 50))
    assert made() > first
    rig.placement.release()


class Connected(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.client = context.worker_resource("client", lambda: uuid.uuid4().hex)

    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        if row.delay < 0:
            raise ConnectionError
        return [(str(os.getpid()), self.client)]


@pytest.mark.exhaustive  # test_routing.py shows that Spark and Python agree on each key's subtask
def test_the_java_hash_routes_every_record_to_its_subtask_too(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job), hash_id=HashId.JAVA, parallelism=3)
    batches = [random_reports(seed, 200) for seed in range(2)]
    for reports in batches:
        rig.run(reports)
    assert_totals_equal_a_fold(rig.output(), batches)
    rig.placement.release()


def test_a_batch_fails_with_the_error_of_its_function_and_runs_again_from_the_last_commit(rig: Rig) -> None:
    batches = [random_reports(seed, 50) for seed in range(2)]
    rig.run(batches[0])
    error = rig.fail([("secret", "raises", 1), *batches[1]])
    assert type(error) is UserFunctionError
    origin = origin_of(error)
    assert origin.operator_uid == "totals"
    assert origin.subtask in range(PARALLELISM)
    assert "in process_element" in str(origin.user_traceback)
    assert "raise ValueError" in str(origin.user_traceback)
    assert re.search(r"ValueError: no secret, at record \d+ of subtask", str(error))
    assert str(origin.user_traceback).splitlines()[-1] == "ValueError: no secret"
    rig.run(batches[1])
    assert_totals_equal_a_fold(rig.output(), batches)
    assert list(rig.path.glob("out/_staging/*/*/*")) == []


WRONG_TYPES: dict[str, type[KeyscaleError]] = {
    "updates wrongly": SerializationError,
    "yields wrongly": OutputTypeError,
}


@pytest.mark.parametrize("aircraft", short_form(WRONG_TYPES, ["updates wrongly"]))
def test_values_of_wrong_types_are_refused_without_being_quoted(rig: Rig, aircraft: str) -> None:
    error = rig.fail([("secret", aircraft, 1)])
    assert type(error) is WRONG_TYPES[aircraft]
    assert origin_of(error).operator_uid == "totals"
    assert "secret" not in f"{error} {origin_of(error)}"


def test_a_killed_worker_fails_the_batch_which_then_runs_again_exactly(rig: Rig) -> None:
    batches = [random_reports(seed, 200) for seed in range(2)]
    rig.run(batches[0])
    error = rig.fail([*batches[1], ("x", "kills", 1)])
    assert type(error) is TaskFailedError
    assert error.retryable
    rig.run(batches[1])
    assert_totals_equal_a_fold(rig.output(), batches)


def test_a_transform_that_fails_on_a_batch_is_the_users_error(spark: SparkSession, tmp_path: Path) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        if not frame.isEmpty():
            raise ValueError("not a plate")
        return frame

    def job(reports: DataStream, output: str) -> None:
        reports.transform(transform).sink_to(FileSink(output)).uid("files")

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    error = rig.fail(random_reports(1, 20))
    assert type(error) is UserFunctionError
    assert "in transform" in str(origin_of(error).user_traceback)
    assert str(error) == "ValueError: not a plate"
    rig.placement.release()


def test_a_transform_that_runs_an_action_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def counted(frame: DataFrame) -> DataFrame:
        return frame.where(f"{frame.count()} >= 0")

    def job(reports: DataStream, output: str) -> None:
        reports.key_by("id").deduplicate().uid("unique").transform(counted).sink_to(FileSink(output)).uid("files")

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    assert type(rig.fail(random_reports(1, 20))) is IncompleteReportsError
    rig.placement.release()


def test_an_operator_with_two_readers_runs_once(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[int] = []

    def write(frame: DataFrame, key: SinkContext) -> None:  # noqa: ARG001 - the signature of such a function
        seen.extend([frame.count(), frame.count()])

    def job(reports: DataStream, output: str) -> None:
        unique = reports.key_by("id").deduplicate().uid("unique")
        unique.key_by("aircraft").process(Totals(), output=TOTALS).uid("totals").sink_to(FileSink(output)).uid("files")
        unique.where("delay < 50").sink_to(ForeachBatchSink(write)).uid("database")

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    outcome = rig.run([("r1", "N1", 5), ("r1", "N1", 5), ("r2", "N1", 70)])
    assert seen == [1, 1]
    assert outcome.output_records == 4
    assert len(rig.output()) == 2
    rig.placement.release()


def test_a_function_runs_once_per_subtask(rig: Rig, spark: SparkSession) -> None:
    results = run_per_subtask(spark, rig.placement, "count", lambda subtask: b"%d" % (subtask * 10))
    assert results == {SubtaskIndex(0): b"0", SubtaskIndex(1): b"10"}


def test_a_function_that_fails_on_a_subtask_raises_its_own_error(rig: Rig, spark: SparkSession) -> None:
    def fail(subtask: SubtaskIndex) -> bytes:
        raise SerializationError(f"subtask {subtask}")

    with pytest.raises(SerializationError, match="subtask"):
        run_per_subtask(spark, rig.placement, "fail", fail)


def test_a_function_per_subtask_runs_in_the_workers_of_batches(rig: Rig, spark: SparkSession) -> None:
    """Workers that Spark forks from one process are one pool: a task of either kind gets any of them."""

    def pool(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pool": [os.getppid()] * batch.num_rows})

    of_batches = {row.pool for row in rig.placement.frame.mapInArrow(pool, "pool long").collect()}
    anchored = run_per_subtask(spark, rig.placement, "pool", lambda _: b"%d" % os.getppid())
    assert {int(result) for result in anchored.values()} == of_batches


def test_a_function_per_subtask_does_not_run_for_the_spare_partition_of_a_single_subtask(spark: SparkSession) -> None:
    placement = PlacementDataset.create(spark, 1)
    assert run_per_subtask(spark, placement, "alone", lambda subtask: b"%d" % subtask) == {SubtaskIndex(0): b"0"}
    placement.release()


def test_batches_shuffle_each_operator_once_and_join_the_anchor(rig: Rig) -> None:
    planned = rig.runner._plan("plan", rig.committed, is_at_end=False)
    with rig.runner._frames(rig.frame([]), partial(rig.runner._run_on, planned)) as frames:
        last = frames[rig.topology.sinks[0].input]
        plan = physical_plan(last)
    operators = len(rig.topology.operators)
    assert plan.count("InMemoryTableScan") == operators
    assert plan.count("ShuffledHashJoin") == operators
    assert plan.count("ShufflePartitionIdPassThrough") + plan.count("REPARTITION_BY_NUM") >= operators
    assert plan.count("BroadcastExchange") == 0

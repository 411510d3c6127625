"""A task reports what it did and what it waited for, without Spark."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

import keyscale.jobs.runtime.executor.task as task_module
from keyscale import KeyedProcessFunction
from keyscale.identifiers import Attempt, BatchId, JobId, SubtaskIndex
from keyscale.jobs.errors import IncompleteReportsError
from keyscale.jobs.functions.subtask_info import SecondInputInfo, SplitInfo, SubtaskInfo
from keyscale.jobs.graph.nodes import NodeId, OperatorNode, SecondInput
from keyscale.jobs.operators.failures import CarriedFailure, TaskOrigin, origin_of, typed_failure, with_origin
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN, SubtaskProgress
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.runtime.executor.record_sample import SampleOrder
from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart
from keyscale.jobs.runtime.executor.task import BatchTime, OperatorTask, TasksWithoutRecords, subtask_info
from keyscale.jobs.runtime.executor.task_stopwatch import Activity, TaskStopwatch, TimedRetries
from keyscale.jobs.runtime.executor.worker import open_stores, worker_resources
from keyscale.jobs.runtime.retries import RetryingStore
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN
from keyscale.state.doors.subtasks import SubtaskSpec, SubtaskStore
from keyscale.state.keyed.timer_service import NextTimers
from keyscale.state.keys.hashing import HashId
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import StateSource
from tests.support.drivers.shipped_starts import payload, shipped
from tests.support.state.state_job import UID, StateJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyscale import ProcessContext, Row
    from keyscale.jobs.runtime.executor.task_reports import TaskReport

SCHEMA = pa.schema([("id", pa.int64())])
NO_TIME = BatchTime(0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class Slow(KeyedProcessFunction):
    """Takes a second per record."""

    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        CLOCK.now += 1
        return [row]


class Reports:
    """Stands for the accumulator."""

    def __init__(self) -> None:
        self.value: list[TaskReport] = []

    def add(self, reports: list[TaskReport]) -> None:
        self.value.extend(reports)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateJob]:
    monkeypatch.setattr(task_module, "TaskStopwatch", partial(TaskStopwatch, clock=CLOCK))
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    yield job
    open_stores().close()


def records(groups: list[int]) -> pa.RecordBatch:
    ids = pa.array(range(len(groups)), pa.int64())
    columns = [ids, pa.array(groups, pa.int32()), pa.array([0] * len(groups), pa.int32())]
    return pa.RecordBatch.from_arrays(columns, names=["id", KEY_GROUP_COLUMN, SUBTASK_COLUMN])


def run(
    job: StateJob,
    batches: Iterator[pa.RecordBatch],
    sample: SampleOrder | None = None,
    time: BatchTime = NO_TIME,
) -> TaskReport:
    spec, reports = job.spec(0), Reports()
    info = SubtaskInfo(UID, SubtaskIndex(0), 1, spec.max_parallelism, Attempt(1), ("id",), ("id",), None, SCHEMA)
    task = OperatorTask(
        run="run",
        batch_id=BatchId(0),
        spec=spec,
        starts=shipped(UID, [SubtaskStart(job.version(0), job.plans[0])]),
        logic=payload(Process(Slow())),
        info=info,
        store_url=job.store.url,
        local_root=str(job.local_root),
        time=time,
        due=(False,),
        reports=cast("Any", reports),
        sample=sample,
    )
    for _ in task._run(SubtaskIndex(0), batches):
        CLOCK.now += 100  # the reader of the rows takes its time
    (report,) = reports.value
    return report


def test_the_time_of_processing_is_without_waits_for_the_shuffle_and_for_the_reader_of_the_rows(job: StateJob) -> None:
    def shuffle() -> Iterator[pa.RecordBatch]:
        CLOCK.now += 10
        yield records([3, 5, 3])
        CLOCK.now += 10

    report = run(job, shuffle())
    assert (report.input_ms, report.process_ms, report.output_ms) == (20_000, 3_000, 100_000)
    assert report.processor_ms > 0
    assert report.began_at_ms > 0
    assert (report.read_records, report.largest_key_group, report.largest_key_group_records) == (3, 3, 2)
    assert report.key_groups == {3: 2, 5: 1}


def test_a_subtask_without_records_reports_that_it_waited_for_them(job: StateJob) -> None:
    def shuffle() -> Iterator[pa.RecordBatch]:
        CLOCK.now += 10
        yield from ()

    report = run(job, shuffle())
    assert (report.input_ms, report.process_ms, report.largest_key_group) == (10_000, 0, None)


def test_a_task_samples_the_records_that_it_reads_and_emits_without_its_own_columns(job: StateJob) -> None:
    report = run(job, iter([records([3, 5, 3])]), SampleOrder("d1", 2, None))
    lines = ['{"id": 0}', '{"id": 1}']
    assert (report.sample_id, report.sample) == ("d1", {"input": lines, "output": lines})
    assert report.read_records == 3


class DistinctTimes(TaskStopwatch):
    """Tells another time of each activity."""

    processor_ms, processor_wait_ms = 201.0, 202.0

    def ms(self, activity: Activity) -> float:
        return 101.0 + list(Activity).index(activity)


def test_a_task_reports_each_measurement_under_its_name(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = SubtaskProgress(
        input_records=1,
        records_of_origins={"a": 2},
        output_records=3,
        counts=Counter(late=4),
        user_series=cast("Any", ("series",)),
        user_help={"seen": "help"},
        ahead_records=5,
        first_failure="failure",
        latest_event_ms=6,
        latest_of_origins={"a": 7},
        latest_of_splits={"a(part)": {"0": 8}},
        next_timers=NextTimers(9, 10),
        key_group_records=np.array([11, 13, 12]),
    )
    given: dict[str, Any] = {}

    def run_subtask(_: Any, keyed: Any, info: SubtaskInfo, batches: Any, **named: Any) -> list[Any]:
        given.update(
            named, info=info, clock=(keyed.clock.processing_time_ms, keyed.clock.event_time_ms), rows=[*batches]
        )
        return []

    monkeypatch.setattr(task_module, "TaskStopwatch", DistinctTimes)
    monkeypatch.setattr(task_module, "SubtaskProgress", lambda: progress)
    monkeypatch.setattr(task_module, "run_subtask", run_subtask)
    monkeypatch.setattr(task_module, "executor_name", lambda: "executor 1 of host")
    warm, stores = open_stores(), list[str]()

    def noted(name: str) -> Callable[..., Any]:
        return lambda *parts, **named: (stores.append(name), getattr(warm, name)(*parts, **named))[1]

    stand_in = SimpleNamespace(**{name: noted(name) for name in ("take", "give_back", "abandon_older")})
    monkeypatch.setattr(task_module, "open_stores_for", lambda _: stand_in)
    time = BatchTime(301, records_ms=302, timers_ms=303, is_at_end=True)
    report = run(job, iter([records([3])]), SampleOrder("d1", 2, None), time)
    told = {field: getattr(report, field) for field in report.__struct_fields__}
    assert told.pop("began_at_ms") > 0
    assert told.pop("state_bytes") is not None
    assert told.pop("changelog") is None
    assert told.pop("source") is StateSource.NEW
    assert told.pop("sample")["input"] == ['{"id": 0}']
    assert told == {
        "run": "run",
        "uid": UID,
        "subtask": 0,
        "read_records": 1,
        "records_of_origins": {"a": 2},
        "write_records": 3,
        "input_ms": 101.0,
        "open_ms": 102.0,
        "process_ms": 103.0,
        "output_ms": 104.0,
        "store_ms": 105.0,
        "finish_ms": 106.0,
        "processor_ms": 201.0,
        "processor_wait_ms": 202.0,
        "largest_key_group": 1,
        "largest_key_group_records": 13,
        "key_groups": {1: 13, 2: 12, 0: 11},
        "latest_event_ms": 6,
        "latest_of_origins": {"a": 7},
        "latest_of_splits": {"a(part)": {"0": 8}},
        "next_timers": NextTimers(9, 10),
        "executor": "executor 1 of host",
        "broadcast_digest": None,
        "counts": {"late": 4},
        "user_series": ("series",),
        "user_help": {"seen": "help"},
        "ahead_records": 5,
        "first_failure": "failure",
        "part": None,
        "sample_id": "d1",
    }
    assert (given["progress"], given["clock"]) == (progress, (301, 302)), "records see the watermark before the batch"
    assert (given["watermark_ms"], given["is_at_end"]) == (303, True), "timers fire up to the watermark after it"
    assert (given["info"].subtask, [*given["broadcast"]]) == (0, [])
    assert given["info"].resources is worker_resources(UID)
    assert given["info"].metrics._operator == UID
    assert [batch.num_rows for batch in given["rows"]] == [1]
    assert stores == ["take", "give_back", "abandon_older"]


class FilledState:
    """Keyed state that fits two rows at first, and three more after each look at its memory."""

    rows_at_once = 2

    def __init__(self, happened: list[tuple[str, int]]) -> None:
        self.happened = happened

    def make_room(self, rows: int) -> None:
        self.happened.append(("room", rows))
        self.rows_at_once += 3


def test_a_batch_comes_in_parts_that_fit_in_memory_and_makes_room_after_each_part() -> None:
    happened: list[tuple[str, int]] = []
    store = cast("Any", SimpleNamespace(keyed=FilledState(happened)))
    ids: list[int] = []
    for part in task_module._in_parts(iter([records([0] * 8), records([0])]), store):
        happened.append(("part", part.num_rows))
        ids += part.column("id").to_pylist()
    assert happened == [(what, rows) for rows in (2, 5, 1, 1) for what in ("part", "room")]
    assert ids == [*range(8), 0]


class Part:
    """A direct output that keeps what it was given."""

    def __init__(self) -> None:
        self.written: list[tuple[int, list[Any]]] = []

    def write(self, index: int, rows: Iterator[pa.RecordBatch]) -> str:
        CLOCK.now += 7
        self.written.append((index, [row for batch in rows for row in batch.column("id").to_pylist()]))
        return "part"


def task_of(job: StateJob, reports: Reports, **fields: Any) -> OperatorTask:
    spec = job.spec(0)
    info = SubtaskInfo(UID, SubtaskIndex(0), 1, spec.max_parallelism, Attempt(1), ("id",), ("id",), None, SCHEMA)
    given: dict[str, Any] = {
        "run": "run",
        "batch_id": BatchId(4),
        "spec": spec,
        "starts": shipped(UID, [SubtaskStart(job.version(0), job.plans[0])]),
        "logic": payload(Process(Slow())),
        "info": info,
        "store_url": job.store.url,
        "local_root": str(job.local_root),
        "time": NO_TIME,
        "due": (False,),
        "reports": reports,
    }
    return OperatorTask(**{**given, **fields})


def run_partition(
    task: OperatorTask, partition: int, *batches: pa.RecordBatch, told: list[str] | None = None
) -> list[pa.RecordBatch]:
    """Runs a task as Spark does in a worker."""
    with pytest.MonkeyPatch.context() as patch:
        context = SimpleNamespace(partitionId=lambda: partition)
        patch.setattr(task_module, "TaskContext", SimpleNamespace(get=lambda: context))
        patch.setattr(task_module, "settle", lambda: None)
        patch.setattr(task_module, "begin_task", [].append if told is None else told.append)
        return [*task.run_partition(iter(batches))]


def test_a_task_that_writes_to_its_sink_emits_nothing_and_reports_the_part_and_its_time(job: StateJob) -> None:
    output, reports, told = Part(), Reports(), list[str]()
    task = task_of(job, reports, output=output)
    assert run_partition(task, 0, records([3, 5]), told=told) == []
    assert (output.written, told) == ([(0, [0, 1])], [f"operator {UID}, subtask 0, batch 4"])
    (report,) = reports.value
    assert (report.part, report.write_records) == ("part", 2)
    assert (report.output_ms, report.process_ms) == (7_000, 2_000)


def test_a_failure_of_a_task_names_its_operator_and_its_subtask(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []

    def run_subtask(*_: Any, **__: Any) -> Iterator[Any]:
        raise with_origin(IncompleteReportsError("broken"), TaskOrigin(None, None, "at line 3"))
        yield

    resources = SimpleNamespace(clear=lambda: cleared.append("cleared"))
    monkeypatch.setattr(task_module, "run_subtask", run_subtask)
    monkeypatch.setattr(task_module, "worker_resources", lambda _: resources)
    reports = Reports()
    with pytest.raises(CarriedFailure) as carried:
        run_partition(task_of(job, reports), 0, records([3]))
    error = typed_failure(carried.value)
    assert (error.code, str(error)) == (IncompleteReportsError.code, "broken")
    assert origin_of(error) == TaskOrigin(UID, SubtaskIndex(0), "at line 3")
    assert (reports.value, cleared) == ([], ["cleared"]), "only complete success is reported"


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_does_not_complete_abandons_its_state_and_only_a_failure_drops_the_workers_objects(
    job: StateJob, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    happened: list[str] = []
    abandon = SubtaskStore.abandon

    def run_subtask(*_: Any, **__: Any) -> Iterator[Any]:
        yield records([3])
        if fails:
            raise IncompleteReportsError("broken")
        yield records([5])

    def noted(store: SubtaskStore) -> None:
        happened.append("abandon")
        abandon(store)

    monkeypatch.setattr(task_module, "run_subtask", run_subtask)
    monkeypatch.setattr(
        task_module, "worker_resources", lambda _: SimpleNamespace(clear=lambda: happened.append("clear"))
    )
    monkeypatch.setattr(SubtaskStore, "abandon", noted)
    reports = Reports()
    reading = task_of(job, reports)._run(SubtaskIndex(0), iter([records([3])]))
    next(reading)
    if fails:
        with pytest.raises(IncompleteReportsError, match="broken"):
            next(reading)
    else:
        reading.close()
    assert happened == (["clear", "abandon"] if fails else ["abandon"])
    assert reports.value == []


def test_a_task_opens_and_finishes_its_state_in_its_own_times_and_through_a_store_that_retries(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []
    begin, finish, task = SubtaskStore.begin_batch, SubtaskStore.finish_batch, task_of(job, Reports())

    def begun(store: SubtaskStore, batch_id: BatchId) -> None:
        happened.append(f"begin {batch_id}")
        begin(store, batch_id)

    def finished(store: SubtaskStore, batch_id: BatchId, unique: str) -> Any:
        happened.append(f"finish {batch_id}")
        CLOCK.now += 5
        return finish(store, batch_id, unique)

    def plan(index: int, store: Any, layout: Any) -> Any:
        happened.append(store)
        return task.starts.plan(SubtaskIndex(index), store, layout)

    def take(*given: Any, **named: Any) -> Any:
        happened.append(given[4])
        CLOCK.now += 3
        return open_stores().take(*given, **named)

    monkeypatch.setattr(SubtaskStore, "begin_batch", begun)
    monkeypatch.setattr(SubtaskStore, "finish_batch", finished)
    warm = SimpleNamespace(take=take, give_back=lambda _: None, abandon_older=lambda _: None)
    monkeypatch.setattr(task_module, "open_stores_for", lambda _: warm)
    reports, starts = Reports(), SimpleNamespace(versions=task.starts.versions, plan=plan)
    run_partition(task_of(job, reports, starts=starts, store_outage_max_ms=700), 0, records([3]))
    of_plan, of_state, *calls = happened
    assert isinstance(of_plan, RetryingStore)
    assert (of_plan is of_state, of_plan.retries.limit_ms) == (True, 700)
    assert isinstance(of_plan.retries, TimedRetries)
    assert of_plan.retries.stopwatch is not None
    assert calls == ["begin 4", "finish 4"]
    (report,) = reports.value
    assert (report.open_ms, report.finish_ms, report.process_ms) == (3_000, 5_000, 1_000)


def test_a_task_with_broadcast_rows_gives_them_to_its_operator_and_reports_the_state_that_they_leave(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def run_subtask(*_: Any, broadcast: Any, **__: Any) -> list[Any]:
        given.extend(row for batch in broadcast for row in batch.to_pylist())
        return []

    monkeypatch.setattr(task_module, "run_subtask", run_subtask)
    reports, sink = Reports(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.table({"id": [7, 8]}))
    rows = payload(sink.getvalue().to_pybytes())
    run_partition(task_of(job, reports, broadcast=rows, due=(True,)), 0)
    (report,) = reports.value
    assert given == [{"id": 7}, {"id": 8}]
    assert report.broadcast_digest is not None


def test_functions_can_ask_for_the_values_of_their_operator_and_its_subtasks() -> None:
    key, second = pa.schema([("id", pa.int64())]), pa.schema([("ref", pa.int64()), ("when", pa.int64())])
    node = OperatorNode(
        id=NodeId(9),
        input=NodeId(1),
        uid=UID,
        key_columns=("id",),
        key_schema=key,
        input_schema=pa.schema([("id", pa.int64()), ("at", pa.int64())]),
        schema=SCHEMA,
        timestamp_column="at",
        logic=Process(Slow()),
        out_of_orderness_ms=30,
        side_outputs={"late": second},
        broadcast=NodeId(2),
        broadcast_schema=pa.schema([("rule", pa.string())]),
        second=SecondInput(NodeId(3), second, ("ref",), "when", 40, 500),
        max_ahead_ms=600,
        failed_records="drop",
    )
    spec = SubtaskSpec(
        job_id=JobId("job"),
        operator_uid=UID,
        index=SubtaskIndex(1),
        parallelism=2,
        max_parallelism=128,
        hash_id=HashId.JAVA,
        key_schema=key,
        attempt=Attempt(3),
    )
    splits = {"orders": SplitInfo("orders(part)", ("part",))}
    assert subtask_info(node, spec, ("orders", "events"), splits) == SubtaskInfo(
        operator_uid=UID,
        subtask=SubtaskIndex(0),
        parallelism=2,
        max_parallelism=128,
        attempt=Attempt(3),
        input_columns=("id", "at"),
        key_columns=("id",),
        timestamp_column="at",
        output_schema=SCHEMA,
        side_outputs={"late": second},
        hash_id=HashId.JAVA,
        origins=("orders", "events"),
        splits=splits,
        broadcast_columns=("rule",),
        max_ahead_ms=600,
        failed_records="drop",
        second=SecondInputInfo(("ref", "when"), ("ref",), "when", 500),
    )


@pytest.mark.parametrize(
    ("partition", "batches", "failure"),
    [
        (1, [], None),  # the spare partition beside a single subtask
        (1, [[3]], "runs more than once in one Spark job"),
        (2, [], "runs more than once in one Spark job"),
    ],
)
def test_a_partition_beyond_the_subtasks_is_the_spare_one_without_records(
    job: StateJob, partition: int, batches: list[list[int]], failure: str | None
) -> None:
    reports = Reports()
    given = [records(groups) for groups in batches]
    if failure is None:
        assert run_partition(task_of(job, reports), partition, *given) == []
    else:
        with pytest.raises(CarriedFailure, match=failure):
            run_partition(task_of(job, reports), partition, *given)
    assert reports.value == []


def test_a_row_in_the_partition_of_another_subtask_is_refused() -> None:
    right, wrong = records([3]), records([5])
    wrong = wrong.set_column(2, SUBTASK_COLUMN, pa.array([1], pa.int32()))
    placed = task_module._placed(iter([right, wrong]), SubtaskIndex(0))
    assert next(placed) is right
    with pytest.raises(IncompleteReportsError, match="partition 0 got rows of subtask 1"):
        next(placed)


@pytest.mark.parametrize("rows", [0, 1])
def test_the_tasks_of_a_batch_without_records_run_one_after_another_and_emit_nothing(rows: int) -> None:
    ran: list[Any] = []

    def task(name: str, emitted: int = 0) -> Any:
        def run_partition(batches: Iterator[Any]) -> Iterator[Any]:
            ran.append((name, [*batches]))
            yield from range(emitted)

        return SimpleNamespace(info=SimpleNamespace(operator_uid=name), run_partition=run_partition)

    tasks = TasksWithoutRecords((task("one", rows), task("two")))
    if rows:
        with pytest.raises(IncompleteReportsError, match=r"operator one\[3\] emitted rows"):
            tasks(SubtaskIndex(3))
    else:
        assert tasks(SubtaskIndex(3)) == b""
        assert ran == [("one", []), ("two", [])]

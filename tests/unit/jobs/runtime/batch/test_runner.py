"""The runner of batches uses the rules of time, of timers and of sinks as they are meant, without Spark."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.errors import (
    BroadcastDivergedError,
    IncompleteReportsError,
    SinkPublishError,
    SinkUnavailableError,
)
from keyscale.jobs.graph.nodes import NodeId, Timestamps
from keyscale.jobs.graph.topology import Topology, TopologyBuilder
from keyscale.jobs.operators.failures import origin_of, with_origin
from keyscale.jobs.runtime.batch import frames, keyed_records, routing
from keyscale.jobs.runtime.batch import runner as runner_module
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.operator_info import operator_info
from keyscale.jobs.runtime.batch.processing_clock import ProcessingClock
from keyscale.jobs.runtime.batch.record_sampling import RecordSampling
from keyscale.jobs.runtime.batch.runner import BatchRunner, RunInfo, subtask_specs
from keyscale.jobs.runtime.executor.task import OperatorTask
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.jobs.runtime.retries import Retries
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.rewind import Rewind
from keyscale.state.doors.subtasks import SubtaskSpec
from keyscale.state.engine.rocksdb_settings import Profile, RocksDbSettings
from keyscale.state.keyed.timer_service import NextTimers
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.log.resolution import resolve
from tests.support.rehearsal.rehearsed_spark import RehearsedContext, RehearsedPlacement, RehearsedSources
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from keyscale.jobs.protocol.messages import SinkOutage
    from keyscale.jobs.sinks.sink import SinkContext

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])
OPERATOR, SINK = OperatorUid("operator"), OperatorUid("out")
IDLE_AFTER_MS = 5000


@dataclass(frozen=True)
class Logic:
    uses_timers: bool = True

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return key


@dataclass
class NotedSink:
    """A sink that notes what is asked of it, and does not answer for some times."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    is_away: int = 0

    def prepare(self, frame: Any, context: SinkContext) -> str:  # noqa: ARG002 - the signature of a sink
        return self._call("prepare", context)

    def publish(self, token: str) -> None:
        self._call("publish", token)

    def discard(self, token: str) -> None:
        self._call("discard", token)

    def recover(self, context: SinkContext) -> None:
        self._call("recover", context)

    def _call(self, what: str, of: Any) -> str:
        self.calls.append((what, of))
        if self.is_away:
            self.is_away -= 1
            raise SinkUnavailableError("away")
        return f"token {of.batch_id}" if what == "prepare" else ""

    @property
    def made(self) -> list[str]:
        return [what for what, _ in self.calls]


class TakingOver(NotedSink):
    """A sink that ends what earlier attempts hold."""

    def take_over(self, context: SinkContext) -> None:
        self._call("take over", context)


class Diverting(NotedSink):
    """A sink that diverts a row of each batch; its token says so."""

    reads_repeatedly = False

    def dead_letters_of(self, token: str) -> int:
        return len(token.removeprefix("token "))


class Accumulator:
    value: list[TaskReport]


class StagedRunner(BatchRunner):
    """A runner whose tasks only report: when a batch is staged, time passes, and records of some sources are read."""

    takes_ms = 0
    reads: Mapping[str, int] = {}
    reported: Mapping[str, Any] = {}
    clock_ms: list[int]
    plans: list[Any]

    def _stage(self, frame: Any, plan: Any, tokens: dict[OperatorUid, str]) -> None:
        self.plans.append(plan)
        self.clock_ms[0] += self.takes_ms
        latest = max(self.reads.values(), default=None)
        report = TaskReport(plan.run, OPERATOR, SubtaskIndex(0), latest_event_ms=latest, latest_of_origins=self.reads)  # type: ignore[arg-type]
        self._collector.accumulator.value.append(msgspec.structs.replace(report, **self.reported))
        for node in self._topology.sinks:
            context = self._sink_context(node, plan.batch_id, plan.run)
            tokens[node.uid] = runner_module.of_sink(node, partial(node.sink.prepare, frame, context))


def two_sources(sink: NotedSink, idle_after_ms: int | None = IDLE_AFTER_MS) -> Topology:
    builder = TopologyBuilder()
    timed = []
    for uid in ("left", "right"):
        source = builder.add_source(cast("Any", None), SCHEMA)
        timed.append(builder.add_timestamps(source, Timestamps("at", 0, idle_after_ms)))
        builder.name(timed[-1], uid)
    joined = builder.add_union(timed)
    logic = cast("Any", Logic())
    last = builder.add_operator(joined, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at")
    builder.name(last, OPERATOR)
    builder.name(builder.add_sink(last, cast("Any", sink)), SINK)
    return builder.build()


@dataclass
class Runs:
    """Batches of a runner, each on the state that the one before has left."""

    runner: StagedRunner
    committed: CommittedState
    clock_ms: list[int]

    def run(self, takes_ms: int = 0, *, of_spark: bool = True, **reads: int) -> None:
        self.runner.takes_ms, self.runner.reads = takes_ms, reads
        outcome = self.runner.run(cast("Any", "frame"), self.committed)
        after = outcome.time_after(self.committed.time, of_spark=of_spark)
        number = BatchId(self.committed.batch_id + 1)
        self.committed = self.committed.after(number, outcome, {}, number + 2, after)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark of the batch that ran last, by which its timers fired."""
        return self.runner.plans[-1].times[OPERATOR].timers_ms  # type: ignore[no-any-return]  # of a plan


@pytest.fixture
def sink() -> NotedSink:
    return NotedSink()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, sink: NotedSink) -> Runs:
    return runs_of(monkeypatch, sink)


def clock_of(clock_ms: list[int]) -> ProcessingClock:
    return ProcessingClock(10**12 + clock_ms[0], lambda: 10**12 + clock_ms[0], lambda: clock_ms[0])


def runs_of(monkeypatch: pytest.MonkeyPatch, sink: NotedSink, **more: Any) -> Runs:
    clock_ms = [1_000_000]
    monkeypatch.setattr(runner_module, "_elapsed_ms", lambda: clock_ms[0])
    more.setdefault("clock", clock_of(clock_ms))
    collector = SimpleNamespace(accumulator=Accumulator(), clear=lambda: None)
    collector.accumulator.value = []
    collector.reports_of = lambda run: [each for each in collector.accumulator.value if each.run == run]
    monkeypatch.setattr(runner_module, "ReportCollector", lambda _: collector)
    monkeypatch.setattr(runner_module, "KeyedRecords", lambda *_, **__: None)  # expressions of Spark
    topology = two_sources(sink)
    info = RunInfo(JobId("job"), Attempt(3), KeyGroupRanges.of_count(8, 1), HashId.SPARK, "file:///none", Path("none"))
    session = SimpleNamespace(sparkContext=RehearsedContext())
    placement = cast("Any", RehearsedPlacement(1))
    runner = StagedRunner(cast("Any", session), topology, info, placement, **more)
    runner.clock_ms, runner.plans = clock_ms, []
    specs = {node.uid: subtask_specs(node, info) for node in topology.operators}
    committed = CommittedState.resumed(resolve(None, [], JobId("job")), specs, {}, 1)
    return Runs(runner, committed, clock_ms)


def test_a_batch_that_takes_longer_than_the_time_after_which_a_source_is_idle_makes_none_idle(runs: Runs) -> None:
    runs.run(left=100, right=50)
    runs.run(10 * IDLE_AFTER_MS, left=200, right=60)
    runs.run(left=300)
    runs.run(left=400)
    assert runs.watermark_ms == 59, "the records in the long batch count as of its end"


def test_a_source_is_idle_once_spark_has_looked_for_its_records_for_long(runs: Runs) -> None:
    runs.run(left=100, right=50)
    runs.clock_ms[0] += IDLE_AFTER_MS - 1
    assert not runs.runner.is_due(runs.committed.time, {OPERATOR: [NextTimers(event_ms=99)]})
    runs.clock_ms[0] += 1
    assert runs.runner.is_due(runs.committed.time, {OPERATOR: [NextTimers(event_ms=99)]})
    assert not runs.runner.is_due(runs.committed.time, {OPERATOR: [NextTimers(event_ms=100)]})


def test_an_input_is_looked_for_when_the_batch_begins_and_not_when_it_has_ended(runs: Runs) -> None:
    runs.run(left=100, right=50)
    runs.clock_ms[0] += IDLE_AFTER_MS - 1
    runs.run(IDLE_AFTER_MS, left=200)
    runs.run(left=201)
    assert runs.watermark_ms == 49


def test_timers_are_due_by_the_end_of_time_only_at_the_end(runs: Runs) -> None:
    runs.run(left=100, right=100)
    timers = {OPERATOR: [NextTimers(event_ms=10**15)]}
    assert not runs.runner.is_due(runs.committed.time, timers)
    assert runs.runner.is_due(runs.committed.time, timers, is_at_end=True)
    runs.runner.run(None, runs.committed, is_at_end=True)
    assert runs.runner.plans[-1].times[OPERATOR].is_at_end
    runs.runner.run(None, runs.committed)
    assert not runs.runner.plans[-1].times[OPERATOR].is_at_end


def test_a_batch_plans_the_timers_of_the_committed_state(runs: Runs) -> None:
    assert runs.runner.run(cast("Any", "frame"), runs.committed) is not None
    assert runs.runner.plans[-1].due == {OPERATOR: (True,)}, "timers that are not known may be due"
    report = TaskReport("", OPERATOR, SubtaskIndex(0), next_timers=NextTimers(event_ms=10**15))
    known = runs.committed.after(BatchId(0), cast("Any", outcome_of(report)), {}, 2)
    runs.runner.run(cast("Any", "frame"), known)
    assert runs.runner.plans[-1].due == {OPERATOR: (False,)}
    assert runs.runner.plans[-1].batch_id == 1


def test_broadcast_records_reach_a_subtask_that_has_neither_records_nor_timers(runs: Runs) -> None:
    report = TaskReport("", OPERATOR, SubtaskIndex(0), next_timers=NextTimers(event_ms=10**15))
    runner = runs.runner
    runner.run(cast("Any", "frame"), runs.committed.after(BatchId(0), cast("Any", outcome_of(report)), {}, 2))
    (node,), plan = runner._topology.operators, runner.plans[-1]
    assert runner._task(plan, node, b"").due == (False,)
    with_records = runner._task(plan, node, b"records")
    assert with_records.due == (True,)
    assert with_records.broadcast is not None
    assert with_records.broadcast.open() == b"records"
    assert plan.payloads == [with_records.broadcast], "it is released with the batch"


def test_a_task_has_the_values_of_its_operator_its_batch_and_its_run(runs: Runs) -> None:
    runner = runs.runner
    runs.run(left=1)
    (node,), plan = runner._topology.operators, runner.plans[-1]
    runner._info = replace(runner._info, store_outage_max_ms=700)
    plan.outputs[OPERATOR] = output = cast("Any", "the output of the batch")
    runner._sampling.begin("diagnostic", OPERATOR, rows=1, with_values=True, seconds=0)
    sample, spec = runner._sampling.order_of(OPERATOR), runner._specs[OPERATOR][0]
    assert sample is not None
    assert runner._task(plan, node, b"") == OperatorTask(
        run=plan.run,
        batch_id=plan.batch_id,
        spec=spec,
        starts=plan.starts[OPERATOR],
        logic=runner._shipped.logic[OPERATOR],
        info=operator_info(runner._topology, node, spec),
        store_url="file:///none",
        local_root="none",
        time=plan.times[OPERATOR],
        due=plan.due[OPERATOR],
        reports=runner._collector.accumulator,
        store_outage_max_ms=700,
        broadcast=None,
        output=output,
        sample=sample,
    )


def test_each_subtask_of_an_operator_has_the_numbers_and_settings_of_its_run(runs: Runs) -> None:
    (node,) = runs.runner._topology.operators
    ranges, settings = KeyGroupRanges.of_count(8, 2), RocksDbSettings.of(Profile.FLASH_SSD)
    info = RunInfo(JobId("job"), Attempt(3), ranges, HashId.JAVA, "file:///none", Path("none"), settings)
    assert subtask_specs(node, info) == tuple(
        SubtaskSpec(
            job_id=JobId("job"),
            operator_uid=OPERATOR,
            index=SubtaskIndex(index),
            parallelism=2,
            max_parallelism=8,
            hash_id=HashId.JAVA,
            key_schema=node.key_schema,
            attempt=Attempt(3),
            settings=settings,
            ranges=ranges,
        )
        for index in range(2)
    )


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_begins_without_earlier_reports_and_leaves_neither_description_nor_broadcast_rows(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    noted: list[str] = []
    runner, stage = runs.runner, runs.runner._stage

    def stage_with_rows(frame: Any, plan: Any, tokens: dict[OperatorUid, str]) -> None:
        noted.append("stage")
        stage(frame, plan, tokens)
        plan.payloads.append(SimpleNamespace(release=lambda: noted.append("release")))
        if fails:
            raise SinkPublishError("gone")

    monkeypatch.setattr(runner, "_stage", stage_with_rows)
    monkeypatch.setattr(runner._collector, "clear", lambda: noted.append("clear"))
    context = SimpleNamespace(setJobDescription=noted.append)
    monkeypatch.setattr(runner, "_spark", SimpleNamespace(sparkContext=context))
    with pytest.raises(SinkPublishError) if fails else contextlib.nullcontext():
        runs.run(left=1)
    assert noted == ["clear", "batch 0", "stage", "", "release"]


def test_a_sample_that_is_ordered_is_taken_by_the_next_batch(monkeypatch: pytest.MonkeyPatch, sink: NotedSink) -> None:
    sampling = RecordSampling()
    runs = runs_of(monkeypatch, sink, sampling=sampling)
    reads = sampling.begin("diagnostic", OPERATOR, rows=2, with_values=True, seconds=0)
    runs.runner.reported = {"sample_id": "diagnostic", "sample": {"input": ['{"key": "a"}']}}
    runs.run(left=1)
    assert reads["input"]() == '{"key": "a"}'


def test_a_batch_whose_subtasks_differ_in_their_broadcast_state_is_discarded(
    runs: Runs, sink: NotedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = TaskReport("", OPERATOR, SubtaskIndex(0), broadcast_digest="a")
    other = msgspec.structs.replace(report, subtask=SubtaskIndex(1), broadcast_digest="b")
    monkeypatch.setattr(runner_module, "complete_reports", lambda *_: {OPERATOR: (report, other)})
    with pytest.raises(BroadcastDivergedError, match="operator 'operator'"):
        runs.run(left=1)
    assert sink.made == ["prepare", "discard"]


def outcome_of(report: TaskReport) -> Any:
    return SimpleNamespace(
        changelogs={OPERATOR: (None,)},
        sinks={},
        reports={OPERATOR: (report,)},
        counters=resolve(None, [], JobId("job")).counters,
    )


def test_records_ahead_of_the_clock_are_logged_once(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    runs.run(left=1)
    assert caplog.messages == []
    runs.runner.reported = {"ahead_records": 7}
    runs.run(left=2)
    runs.run(left=3)
    (message,) = caplog.messages
    assert message.startswith("7 records at operator operator have event times further ahead")


def test_the_first_failed_record_of_each_batch_is_logged(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    runs.runner.reported = {"counts": {"dead_letters": 2}, "first_failure": "ValueError: in debt, key 'ada'"}
    runs.run(left=1)
    runs.run(left=2)
    expected = "operator operator failed on 2 records of a batch, such as: ValueError: in debt, key 'ada'"
    assert caplog.messages == [expected, expected]


def test_a_clock_behind_the_jobs_time_leaves_processing_time_where_it_is_and_is_logged_once(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    ahead_ms = 10**13
    time = JobTime({OPERATOR: EventTime(5, 4)}, 0, ahead_ms)
    state = runs.committed.after(
        BatchId(0), cast("Any", outcome_of(TaskReport("", OPERATOR, SubtaskIndex(0)))), {}, 2, time
    )
    for _ in range(2):
        runs.runner.run(cast("Any", "frame"), state)
        assert runs.runner.plans[-1].times[OPERATOR].processing_ms == ahead_ms
    (message,) = caplog.messages
    assert "s behind the processing time that the job has reached" in message


def test_a_sink_gets_the_batch_its_attempt_and_the_try(runs: Runs, sink: NotedSink) -> None:
    runs.run(left=1)
    runs.run(left=2)
    contexts = [context for what, context in sink.calls if what == "prepare"]
    assert [(each.job_id, each.uid, each.batch_id, each.attempt) for each in contexts] == [
        ("job", SINK, 0, 3),
        ("job", SINK, 1, 3),
    ]
    assert contexts[0].unique != contexts[1].unique
    assert contexts[0].unique == runs.runner.plans[0].run


def test_a_sink_takes_over_with_the_last_batch_and_the_job_that_this_one_was_forked_from(
    runs: Runs, sink: NotedSink
) -> None:
    rewinds = (Rewind(Attempt(2), BatchId(-1)),)
    runs.runner.recover(BatchId(7), rewinds, JobId("origin"))
    runs.runner.recover(BatchId(7))
    [(_, forked), (_, own)] = sink.calls
    assert (forked.batch_id, forked.forked_from, forked.attempt, forked.rewinds) == (7, "origin", 3, rewinds)
    assert (own.forked_from, own.rewinds) == (None, ())


def test_sinks_take_output_back_in_the_reverse_of_the_order_in_which_they_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = TakingOver()
    items = TakingOver(orders.calls)
    runner = runs_of(monkeypatch, orders).runner
    [node] = runner._topology.sinks
    second = replace(node, uid=OperatorUid("items"), sink=items)
    monkeypatch.setattr(runner, "_topology", SimpleNamespace(sinks=(node, second)))
    rewinds = (Rewind(Attempt(2), BatchId(-1)),)
    runner.take_over(BatchId(7), rewinds)
    runner.publish({SINK: "orders", OperatorUid("items"): "items"})
    runner.recover(BatchId(7), rewinds)
    made = [(what, of if what == "publish" else of.uid) for what, of in orders.calls]
    assert made == [
        ("take over", "items"),
        ("take over", SINK),
        ("publish", "orders"),
        ("publish", "items"),
        ("recover", "items"),
        ("recover", SINK),
    ]
    assert {of.rewinds for what, of in orders.calls if what != "publish"} == {rewinds}


def test_a_batch_whose_sink_is_away_is_discarded_and_runs_again_as_another_try(
    monkeypatch: pytest.MonkeyPatch, sink: NotedSink
) -> None:
    outages: list[SinkOutage | None] = []
    retries = Retries(60_000, sleep=lambda _: None, awaited=SinkUnavailableError)
    runs = runs_of(monkeypatch, sink, sink_retries=retries, on_outage=outages.append)
    sink.is_away = 1
    runs.run(left=1)
    assert sink.made == ["prepare", "prepare"]
    assert len({plan.run for plan in runs.runner.plans}) == 2
    assert outages[0] is not None
    assert (outages[0].uid, outages[-1]) == (SINK, None)
    sink.is_away = 2
    runs.runner.publish({SINK: "token 0"})
    assert sink.made[2:] == ["publish"] * 3


def test_a_sink_that_can_take_over_ends_what_earlier_attempts_hold(
    monkeypatch: pytest.MonkeyPatch, sink: NotedSink
) -> None:
    runs_of(monkeypatch, sink).runner.take_over(BatchId(7))
    assert sink.calls == [], "this sink holds nothing"
    taking = TakingOver(is_away=1)
    retries = Retries(60_000, sleep=lambda _: None, awaited=SinkUnavailableError)
    runs_of(monkeypatch, taking, sink_retries=retries).runner.take_over(BatchId(7))
    assert [(what, context.batch_id, context.attempt) for what, context in taking.calls] == [("take over", 7, 3)] * 2


def test_a_batch_without_the_report_of_each_subtask_is_discarded(runs: Runs, sink: NotedSink) -> None:
    runs.runner.reported = {"subtask": SubtaskIndex(1)}
    with pytest.raises(IncompleteReportsError):
        runs.run(left=1)
    assert sink.calls[1:] == [("discard", "token 0")]
    runs.runner.reported = {}
    runs.run(left=1)
    assert runs.committed.batch_id == 0


def test_a_sink_that_cannot_discard_a_failed_batch_does_not_hide_the_failure(
    runs: Runs, sink: NotedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> None:
        raise SinkUnavailableError("away")

    monkeypatch.setattr(sink, "discard", away)
    monkeypatch.setattr(runs.runner, "_info", replace(runs.runner._info, ranges=KeyGroupRanges.of_count(8, 2)))
    with pytest.raises(IncompleteReportsError):
        runs.run(left=1)


def test_a_batch_reports_how_long_its_earlier_tries_have_waited_for_a_sink(
    monkeypatch: pytest.MonkeyPatch, sink: NotedSink
) -> None:
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    runs = runs_of(monkeypatch, sink, sink_retries=Retries(60_000, sleep=sleep, awaited=SinkUnavailableError))
    clocks = dict.fromkeys(("monotonic", "time"), lambda: now_s[0])
    monkeypatch.setattr(runner_module, "time", SimpleNamespace(**clocks))
    first = runs.runner.run(cast("Any", "frame"), runs.committed)
    sink.is_away = 2
    second = runs.runner.run(cast("Any", "frame"), runs.committed)
    assert (first.waited_ms, round(second.waited_ms)) == (0, 300), "a tenth of a second, and then twice as long"


def test_records_emitted_to_a_sink_count_as_output(runs: Runs) -> None:
    runs.runner.reported = {"write_records": 5, "read_records": 7}
    assert runs.runner.run(cast("Any", "frame"), runs.committed).output_records == 5


def test_the_outcome_of_a_batch_has_what_its_tasks_and_sinks_have_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(monkeypatch, Diverting())
    runs.runner.reported = {"write_records": 5, "read_records": 7}
    outcome = runs.runner.run(cast("Any", "frame"), runs.committed)
    assert (outcome.sinks, outcome.dead_letters) == ({SINK: "token 0"}, {SINK: 1})
    assert ([*outcome.changelogs], [*outcome.reports], outcome.times) == (
        [OPERATOR],
        [OPERATOR],
        runs.runner.plans[-1].times,
    )
    assert outcome.waited_ms >= 0
    assert [*outcome.sink_ms] == [stage.uid for stage in runs.runner.plans[-1].stagings]


@pytest.mark.parametrize(("own", "expected"), [(None, SINK), (OPERATOR, OPERATOR)])
def test_an_error_of_a_sink_names_the_sink_unless_an_operator_before_it_has_failed(
    runs: Runs, own: OperatorUid | None, expected: OperatorUid
) -> None:
    error = SinkUnavailableError("away")
    (node,) = runs.runner._topology.sinks

    def fail() -> None:
        raise error if own is None else with_origin(error, msgspec.structs.replace(origin_of(error), operator_uid=own))

    with pytest.raises(SinkUnavailableError) as caught:
        runner_module.of_sink(node, fail)
    assert origin_of(caught.value).operator_uid == expected


@pytest.mark.parametrize("frame", ["frame", None])
@pytest.mark.parametrize("carries_no_rows", [True, False])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_batch_is_staged_by_its_subtasks_or_by_the_sink(
    runs: Runs,
    sink: NotedSink,
    monkeypatch: pytest.MonkeyPatch,
    *,
    frame: str | None,
    carries_no_rows: bool,
    is_direct: bool,
) -> None:
    runner, collected, ran, tokens = runs.runner, [], [], dict[OperatorUid, str]()
    (operator,), (node,) = runner._topology.operators, runner._topology.sinks
    rows = SimpleNamespace(collect=lambda: collected.append("rows"))
    direct_token = "direct token"  # noqa: S105 - no password
    output = SimpleNamespace(token=direct_token)

    def begin(context: SinkContext) -> Any:
        assert (context.uid, context.batch_id, context.unique) == (SINK, 0, plan.run)
        return output

    def frames(given: Any, _: Any) -> Any:
        assert given == frame
        return contextlib.nullcontext({node.input: rows})

    edges = [SimpleNamespace(sink=node, operator=operator, staging=SimpleNamespace(begin=begin))]
    monkeypatch.setattr(runner, "_direct", edges if is_direct else [])
    monkeypatch.setattr(runner, "_time_carries_no_rows", carries_no_rows)
    monkeypatch.setattr(runner, "_frames", frames)
    monkeypatch.setattr(runner_module, "run_per_subtask", lambda *given: ran.append(given[2:]))
    plan = runner._plan("a run", runs.committed, is_at_end=False)
    BatchRunner._stage(runner, cast("Any", frame), plan, tokens)
    if is_direct:
        assert tokens == {SINK: direct_token}
        assert plan.outputs == {OPERATOR: output}
    if frame is None and carries_no_rows:
        assert [name for name, _ in ran] == ["batch 0"]
        assert [len(tasks.tasks) for _, tasks in ran] == [is_direct]
        assert (collected, sink.calls) == ([], [])
    elif is_direct:
        assert (collected, sink.calls, ran) == (["rows"], [], [])
    else:
        assert (tokens, sink.made, ran) == ({SINK: "token 0"}, ["prepare"], [])


def test_tokens_of_sinks_that_the_program_no_longer_has_are_left_out(runs: Runs, sink: NotedSink) -> None:
    runs.runner.publish({OperatorUid("gone"): "token"})
    runs.runner.discard({OperatorUid("gone"): "token"})
    assert sink.calls == []
    runs.runner.discard({SINK: "token"})
    assert sink.calls == [("discard", "token")]


class Placement(RehearsedPlacement):
    """Moves nothing."""

    def route(self, frame: PlayedFrame) -> PlayedFrame:
        return frame.withColumn("routed", played_columns.lit(True))

    def empty(self, schema: StructType) -> Any:
        return frame_of(schema=[*schema.names, "none"])


class PlayedSources(RehearsedSources):
    """Sources whose rows a batch brings beside each other."""

    def split(self, frame: Any, keep: Any) -> Any:
        if len(self.nodes) == 1:
            return {self.nodes[0].id: frame}
        keep(frame)
        return {node.id: frame_of(*frame.rows[node.uid]) for node in self.nodes}

    def empty(self, _: Any) -> Any:
        return {node.id: frame_of(schema=node.schema.names) for node in self.nodes}


def framed(monkeypatch: pytest.MonkeyPatch, *, broadcasts: bool) -> tuple[BatchRunner, list[Any]]:
    """Returns a runner over played frames, and the list of what its subtasks and sinks are asked for."""
    asked: list[Any] = []
    for module in (frames, keyed_records, routing):
        monkeypatch.setattr(module, "F", played_columns)
    monkeypatch.setattr(runner_module, "collected", lambda frame: repr(frame.rows).encode())
    monkeypatch.setattr(runner_module, "run_per_subtask", lambda *given: asked.append(given[2:]))
    builder = TopologyBuilder()
    left = builder.add_source(cast("Any", None), SCHEMA)
    builder.name(left, "left")
    rules = None
    if broadcasts:
        rules = builder.add_source(cast("Any", None), SCHEMA)
        builder.name(rules, "rules")
    stream = left
    for uid in ("first", "second"):
        stream = builder.add_operator(
            stream,
            key_columns=("key",),
            logic=cast("Any", Logic()),
            schema=SCHEMA,
            timestamp_column=None,
            broadcast=rules if uid == "first" else None,
        )
        builder.name(stream, uid)
    builder.name(builder.add_sink(stream, cast("Any", Diverting())), SINK)
    info = RunInfo(JobId("job"), Attempt(3), KeyGroupRanges.of_count(8, 1), HashId.SPARK, "file:///none", Path("none"))
    session = SimpleNamespace(sparkContext=RehearsedContext())
    topology = builder.build()
    sources = cast("Any", PlayedSources(topology.sources))
    return BatchRunner(cast("Any", session), topology, info, cast("Any", Placement(1)), sources=sources), asked


def ran(runner: BatchRunner, batch: Any) -> list[tuple[str, list[Any], bytes]]:
    """Returns the records and the broadcast rows with which each operator runs on a batch."""
    made: list[tuple[str, list[Any], bytes]] = []

    def run_on(node: Any, records: Any, rows: bytes) -> Any:
        made.append((node.uid, [[*row] for row in records.rows] or records.columns, rows))
        return frame_of({"key": "k", "at": 1})

    with runner._frames(batch, run_on) as built:
        assert [*built] == [runner._topology.sinks[0].input]
    return made


ROUTED = ["key", "at", "__key_group", "__subtask", "routed"]


def test_records_that_the_query_has_moved_are_not_moved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = framed(monkeypatch, broadcasts=False)
    batch = runner.of_query(cast("Any", frame_of({"key": "a", "at": 2})))
    assert ran(runner, batch) == [("first", [ROUTED], b""), ("second", [ROUTED], b"")]


def test_an_operator_gets_its_records_moved_and_the_rows_of_its_broadcast_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, _ = framed(monkeypatch, broadcasts=True)
    rule = {"key": "r", "at": 7}
    batch = SimpleNamespace(rows={"left": [{"key": "a", "at": 2}], "rules": [rule]})
    kept: list[str] = []
    batch.persist = lambda _: (kept.append("kept"), batch)[1]
    batch.unpersist = lambda: kept.append("dropped")
    assert ran(runner, batch) == [("first", [ROUTED], repr([rule]).encode()), ("second", [ROUTED], b"")]
    assert kept == ["kept", "dropped"]


@pytest.mark.parametrize("broadcasts", [True, False])
def test_in_a_batch_of_time_alone_operators_behind_the_sources_get_no_records_without_a_move(
    monkeypatch: pytest.MonkeyPatch, *, broadcasts: bool
) -> None:
    runner, _ = framed(monkeypatch, broadcasts=broadcasts)
    none = [*ROUTED, "none"]
    assert ran(runner, None) == [("first", none, b""), ("second", [ROUTED], b"")]
    assert ran(runner, None) == [("first", none, b""), ("second", [ROUTED], b"")]


@pytest.mark.parametrize("broadcasts", [True, False])
@pytest.mark.parametrize("carries_no_rows", [True, False])
def test_a_rehearsal_plans_a_batch_and_its_operators_do_nothing(
    monkeypatch: pytest.MonkeyPatch, *, broadcasts: bool, carries_no_rows: bool
) -> None:
    runner, asked = framed(monkeypatch, broadcasts=broadcasts)
    monkeypatch.setattr(runner, "_time_carries_no_rows", carries_no_rows)
    planned: list[tuple[bool, Any]] = []
    mapped: list[tuple[Any, str]] = []

    def map_in_arrow(frame: PlayedFrame, *given: Any) -> PlayedFrame:
        mapped.append(cast("Any", given))
        return frame

    monkeypatch.setattr(PlayedFrame, "mapInArrow", map_in_arrow)
    run_frames = runner._frames

    def noted(batch: Any, run_on: Any) -> Any:
        planned.append((batch is None, run_on))
        return run_frames(batch, run_on)

    monkeypatch.setattr(runner, "_frames", noted)
    runner.rehearse_input()
    assert asked == [("rehearsal", runner_module.rehearse_conversion)]
    of_time = [] if carries_no_rows else [(True, runner._rehearse_on)]
    assert planned == (of_time if broadcasts else [(False, runner._rehearse_on)])
    planned.clear()
    runner.rehearse()
    assert (planned, len(asked)) == (of_time, 2)
    (node, _) = runner._topology.operators
    runner._rehearse_on(node, frame_of({"key": "a"}), b"")
    function, schema = mapped[-1]
    assert schema == runner._wires[node.uid]
    read = iter([1, 2])
    assert ([*function(read)], [*read]) == ([], []), "all input is read"


def test_subtasks_that_write_to_their_sink_hand_their_parts_over_after_all_have_reported(
    runs: Runs, sink: NotedSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    (operator,), (node,) = runs.runner._topology.operators, runs.runner._topology.sinks
    gathered: list[Any] = []

    def gather(token: str, reports: Any) -> None:
        gathered.append((token, [report.part for report in reports]))
        if len(gathered) == 2:
            raise SinkPublishError("a part is gone")

    edge = SimpleNamespace(sink=node, operator=operator, gather=gather)
    monkeypatch.setattr(runs.runner, "_direct", [edge])
    runs.runner.reported = {"part": "of subtask 0"}
    outcome = runs.runner.run(cast("Any", "frame"), runs.committed)
    assert gathered == [("token 0", ["of subtask 0"])]
    assert (outcome.sinks, [*outcome.sink_ms]) == ({SINK: "token 0"}, [SINK])
    with pytest.raises(SinkPublishError) as failed:
        runs.run(left=1)
    assert origin_of(failed.value).operator_uid == SINK
    assert sink.calls[-1] == ("discard", "token 0")


def plan_of(run: str, committed: CommittedState, *, is_at_end: bool) -> Any:
    assert not is_at_end
    return runner_module._BatchPlan(run, BatchId(committed.batch_id + 1), {}, {}, {})


def test_only_records_of_operators_before_a_sink_count_as_output(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, first = runs.runner, OperatorUid("first")
    (last,) = runner._topology.operators
    before = replace(last, uid=first, id=NodeId(90))
    nodes = (*runner._topology.nodes, before)
    monkeypatch.setattr(runner, "_topology", replace(runner._topology, nodes=nodes))
    stage = runner._stage

    def stage_both(frame: Any, plan: Any, tokens: dict[OperatorUid, str]) -> None:
        stage(frame, plan, tokens)
        report = TaskReport(plan.run, first, SubtaskIndex(0), write_records=100)
        runner._collector.accumulator.value.append(report)

    monkeypatch.setattr(runner, "_stage", stage_both)
    monkeypatch.setattr(runner, "_plan", plan_of)
    monkeypatch.setattr(runner_module, "records_read", lambda *_: 7)
    runner.reported = {"write_records": 5}
    outcome = runner.run(cast("Any", "frame"), runs.committed)
    assert (outcome.output_records, outcome.input_records, [*outcome.changelogs]) == (5, 7, [OPERATOR, first])


@pytest.mark.parametrize("must_all_run", [True, False])
def test_a_subtask_without_due_timers_runs_if_all_must(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, *, must_all_run: bool
) -> None:
    report = TaskReport("", OPERATOR, SubtaskIndex(0), next_timers=NextTimers(event_ms=10**15))
    known = runs.committed.after(BatchId(0), cast("Any", outcome_of(report)), {}, 2)
    starts = {OPERATOR: SimpleNamespace(must_all_run=must_all_run)}
    monkeypatch.setattr(runs.runner, "_shipped", SimpleNamespace(starts=lambda _: starts))
    plan = runs.runner._plan("a run", known, is_at_end=False)
    assert (plan.due, plan.starts, plan.batch_id, plan.run) == ({OPERATOR: (must_all_run,)}, starts, 1, "a run")

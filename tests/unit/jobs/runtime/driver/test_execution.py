"""An execution gives its checkpoints, its clean-up and its batches the settings of its own assignment."""

from __future__ import annotations

import contextlib
import json
import pickle
import queue
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
import pytest
from msgspec import UNSET

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid
from keyscale.jobs.errors import SinkUnavailableError, SourceRecordsLostError
from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.graph.nodes import NodeId, Timestamps, TimestampsNode
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.protocol.messages import (
    Assignment,
    Command,
    CommandResult,
    Commit,
    Failure,
    LiveRescale,
    LiveSettings,
)
from keyscale.jobs.protocol.specification import CheckpointSettings, JobSpec
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.followed_settings import FollowedSettings
from keyscale.jobs.runtime.control.reporter import Following
from keyscale.jobs.runtime.driver import execution
from keyscale.jobs.runtime.driver.attempt import OpenAttempt
from keyscale.jobs.runtime.driver.execution import (
    Execution,
    RunContext,
    existing_checkpoints,
    next_checkpoint_id,
    positions_name,
)
from keyscale.jobs.runtime.driver.host_metrics import HostMetrics
from keyscale.jobs.runtime.driver.run_outcome import ASLEEP, RunOutcome, RunOutcomeBox
from keyscale.jobs.runtime.errors import SparkLostError
from keyscale.jobs.runtime.executor.subtask_jobs import RestoredSubtask
from keyscale.jobs.streams.streams import DataStream
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import JobTime
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keyed.timer_service import NextTimers
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.layout import Layout
from keyscale.state.log.resolution import OperatorHistory, ResumePoint
from keyscale.state.objects.errors import ObjectCorruptError, ObjectNotFoundError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.plan import CoverError
from keyscale.state.retention.deletion_plan import RetentionPolicy
from keyscale.vocabulary import CommandKind, DriverState, RescalePhase
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.runtime.driver.sleep import Sleep

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])
LAYOUT = Layout(JobId("job"))


class Nothing(KeyedProcessFunction):
    """Emits nothing."""

    def process_element(self, row: Any, context: Any) -> Any:  # noqa: ARG002 - the signature of the base class
        return ()


def topology(batch_interval_ms: int = 250) -> Topology:
    builder = TopologyBuilder()
    builder.batch_interval_ms = batch_interval_ms
    source = builder.add_source(cast("Any", None), SCHEMA)
    stream = DataStream(cast("Any", None), builder, source, None).with_timestamps("at")
    stream.key_by("key").process(Nothing(), output=SCHEMA).uid("count").sink_to(cast("Any", None)).uid("out")
    return builder.build()


def assignment(tmp_path: Path, **fields: Any) -> Assignment:
    given = {
        "job_id": "job",
        "job_name": "flights",
        "attempt": 3,
        "revision": 4,
        "parallelism": 2,
        "max_parallelism": 8,
        "artifact_filename": "job.py",
        "artifact_sha256": "0" * 64,
        "store_url": (tmp_path / "store").as_uri(),
        "next_checkpoint_id": 7,
        "checkpoints": CheckpointSettings(timeout_ms=50_000, retained_count=4, store_outage_max_ms=60_000),
    }
    return new_assignment(**{**given, **fields})


@dataclass
class Loop:
    """The loop's interval."""

    batch_interval_ms: int = 250
    calls: list[str] = field(default_factory=list)

    def wait_until_rebased(self) -> None:
        """Runs no batch."""


class Query:
    """Counts how often it is started again."""

    reads_on = 0

    def read_on(self) -> None:
        self.reads_on += 1


class Driver:
    """An execution on a local store, without Spark, and its coordinator."""

    def __init__(self, tmp_path: Path, base: Any = None, *, unsent: bool = False, **fields: Any) -> None:
        self.store = LocalObjectStore(tmp_path / "store")
        self.status = DriverStatus()
        self.reports: list[Any] = []
        self.box = RunOutcomeBox()
        self.loop, self.query = Loop(), Query()
        given = assignment(tmp_path, **fields)
        self.settings = FollowedSettings(given, self.status)
        reporter = SimpleNamespace(
            report_checkpoint=self.reports.append, has_unsent_reports=unsent, nudge=lambda: self.reports.append("nudge")
        )
        self.context = RunContext(
            spark=cast("Any", None),
            assignment=given,
            store=self.store,
            status=self.status,
            settings=self.settings,
            outcome_box=self.box,
            commands=queue.SimpleQueue(),
            reporter=cast("Any", reporter),
            work_dir=tmp_path / "work",
            local_root=tmp_path / "local",
            rescale=lambda *_: None,
        )
        self.execution = Execution(self.context, topology())
        journal = SimpleNamespace(is_overtaken=lambda: False)
        self.opened = OpenAttempt(
            Attempt(3), cast("Any", journal), cast("Any", None), base, {}, KeyGroupRanges.of_count(8, 1), claims=True
        )

    def coordinate(self) -> Any:
        return self.execution._coordinator(
            self.opened,
            cast("Any", "placement"),
            cast("Any", "shipped"),
            cast("Any", self.loop),
            cast("Any", self.query),
        )

    def follow(self, **settings: Any) -> None:
        checkpoints = CheckpointSettings.model_validate(settings.pop("checkpoints", {}))
        self.settings.follow(
            LiveSettings(revision=9, spec=JobSpec(artifact_id="a", checkpoints=checkpoints, **settings))
        )


def manifest(number: int, **fields: Any) -> Any:
    path = LAYOUT.manifest(CheckpointId(number))
    given = {"checkpoint_id": CheckpointId(number), "path": path, "job_id": JobId("job"), "forked_from": UNSET}
    return SimpleNamespace(**{**given, **fields})


def test_the_run_has_the_numbers_of_its_assignment(tmp_path: Path) -> None:
    info = Driver(tmp_path).execution._info
    assert (info.job_id, info.attempt, info.parallelism, info.max_parallelism) == ("job", 3, 2, 8)
    assert (info.store_url, info.local_root) == ((tmp_path / "store").as_uri(), tmp_path / "local")
    assert info.store_outage_max_ms == 60_000


def test_waits_for_the_store_and_for_sinks_end_with_the_run(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    for retries in (driver.execution._retries, driver.execution._sink_retries):
        assert retries.limit_ms == 60_000
        assert not retries.has_ended()
    assert driver.execution._sink_retries.awaited is SinkUnavailableError
    driver.box.give(RunOutcome(DriverState.STOPPED))
    assert driver.execution._retries.has_ended()


def test_checkpoints_go_on_with_the_jobs_numbers_settings_and_base(tmp_path: Path) -> None:
    driver = Driver(tmp_path, manifest(6))
    for number in (4, 5, 6):
        driver.store.put(LAYOUT.manifest(CheckpointId(number)), b"{}")
    checkpoints = driver.coordinate()._checkpoints
    assert (checkpoints.next_id, checkpoints.retained_ids, checkpoints.retained_count) == (7, [4, 5, 6], 4)
    assert (checkpoints.base, checkpoints.claims) == (driver.opened.manifest, True)
    assert (checkpoints.context.timeout_ms, checkpoints.context.layout) == (50_000, LAYOUT)
    checkpoints.report("report")
    assert driver.reports == ["report"]


def test_settings_that_change_reach_checkpoints_and_batches_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    driver = Driver(tmp_path)
    coordinator = driver.coordinate()
    coordinator._follow_settings()
    assert driver.query.reads_on == 0, "nothing has changed"
    driver.follow(checkpoints={"timeout_ms": 90_000, "retained_count": 2}, batch_interval_ms=500)
    for _ in range(2):
        coordinator._follow_settings()
    checkpoints = coordinator._checkpoints
    assert (checkpoints.context.timeout_ms, checkpoints.retained_count) == (90_000, 2)
    assert (driver.loop.batch_interval_ms, driver.query.reads_on) == (500, 1)
    assert caplog.messages == ["the job follows the settings of revision 9"]
    assert coordinator._settings() == driver.settings.newest.spec.checkpoints
    driver.follow(checkpoints={"timeout_ms": 80_000}, batch_interval_ms=500)
    coordinator._follow_settings()
    assert (checkpoints.context.timeout_ms, driver.query.reads_on) == (80_000, 1), "the query need not begin again"


def test_each_command_reaches_the_part_that_carries_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, told = Driver(tmp_path), []
    monkeypatch.setattr(execution, "drain", lambda *parts, operators: told.append((*parts, operators)))
    driver.execution._context = replace(driver.context, rescale=lambda *parts: told.append(parts))
    coordinator = driver.coordinate()
    coordinator._drain()
    coordinator._rescale("command")
    assert told == [
        (driver.query, driver.loop, 1),
        (driver.execution, driver.loop, coordinator._checkpoints, "command"),
    ]
    assert driver.query.reads_on == 0
    coordinator._read_on()
    coordinator._nudge()
    assert (driver.query.reads_on, driver.reports) == (1, ["nudge"])
    assert coordinator._sleeps == driver.execution._may_fall_asleep
    assert coordinator._commands is driver.context.commands
    assert (coordinator._status, coordinator._outcome_box) == (driver.status, driver.box)
    assert (coordinator._loop, coordinator._checkpoints.loop) == (driver.loop, driver.loop)
    snapshots = coordinator._checkpoints.context
    assert (snapshots.spark, snapshots.placement, snapshots.shipped) == (None, "placement", "shipped")
    assert (snapshots.store, snapshots.info, snapshots.places, snapshots.operators) == (
        driver.store,
        driver.execution._info,
        driver.execution._places,
        driver.execution._operators,
    )


def test_an_interval_of_the_specification_outranks_that_of_the_script_even_if_it_is_zero(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert driver.execution._batch_interval_ms() == 250
    driver.follow(batch_interval_ms=0)
    assert driver.execution._batch_interval_ms() == 0
    driver.follow(batch_interval_ms=None)
    assert driver.execution._batch_interval_ms() == 250


def test_the_clean_up_keeps_what_the_attempt_began_with_until_it_has_a_checkpoint(tmp_path: Path) -> None:
    driver = Driver(tmp_path, manifest(6))
    coordinator = driver.coordinate()
    retention = next(
        cell.cell_contents
        for cell in coordinator._run_retention.__closure__
        if type(cell.cell_contents).__name__ == "RetentionRunner"
    )
    coordinator._run_retention()
    path = LAYOUT.manifest(CheckpointId(6))
    assert retention.policy == RetentionPolicy.for_uploads(50_000, 4, frozenset({path}))
    coordinator._checkpoints.base = manifest(7)
    driver.follow(checkpoints={"timeout_ms": 9_000_000, "retained_count": 1})
    coordinator._run_retention()
    assert retention.policy == RetentionPolicy.for_uploads(9_000_000, 1, frozenset())
    assert retention._allowed()


def test_the_clean_up_waits_for_reports_that_the_control_plane_lacks(tmp_path: Path) -> None:
    coordinator = Driver(tmp_path, unsent=True).coordinate()
    [retention] = [
        cell.cell_contents
        for cell in coordinator._run_retention.__closure__
        if type(cell.cell_contents).__name__ == "RetentionRunner"
    ]
    assert not retention._allowed()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"job_id": JobId("other")}, "other"),
        ({"forked_from": JobId("other")}, "other"),
        ({"forked_from": JobId("job")}, None),
    ],
)
def test_sinks_are_told_whose_snapshot_a_fork_began_with(
    tmp_path: Path, fields: dict[str, Any], expected: str | None
) -> None:
    run = Driver(tmp_path).execution
    assert run._forked_from(manifest(1, **fields)) == expected
    assert run._forked_from(None) is None


@pytest.mark.parametrize(
    ("restored", "existing", "expected"),
    [(None, [], 7), (None, [3, 9], 10), (12, [3, 9], 13), (3, [], 7), (6, [], 7), (7, [], 8), (None, [6], 7)],
)
def test_the_next_checkpoint_has_a_number_above_all_that_are_known(
    tmp_path: Path, restored: int | None, existing: list[int], expected: int
) -> None:
    base = None if restored is None else manifest(restored)
    numbers = [CheckpointId(number) for number in existing]
    assert next_checkpoint_id(assignment(tmp_path), base, numbers) == expected


def test_the_existing_checkpoints_are_those_with_a_manifest_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    for number in (10, 9, 2):
        store.put(LAYOUT.manifest(CheckpointId(number)), b"{}")
    store.put(f"{LAYOUT.checkpoints}11/state", b"")
    store.put(LAYOUT.manifest(CheckpointId(12), "savepoint"), b"{}")
    assert existing_checkpoints(store, LAYOUT) == [2, 9, 10]


def test_each_execution_of_an_attempt_has_a_directory_of_its_own() -> None:
    assert [positions_name(Attempt(3), number) for number in (0, 1)] == ["positions-3", "positions-3-1"]


class Runner:
    """In place of the runner: notes what a resumed attempt does with the output of the one before."""

    def __init__(self, *_: Any, **named: Any) -> None:
        self.calls: list[str] = []
        self.named = named

    def take_over(self, batch_id: int, rewinds: tuple[Rewind, ...]) -> None:
        self.calls.append(f"take over after {batch_id} and {len(rewinds)} rewinds")

    def publish(self, tokens: Any) -> dict[OperatorUid, float]:
        self.calls.append(f"publish {tokens}")
        return {}

    def recover(self, batch_id: int, rewinds: tuple[Rewind, ...], forked_from: str | None) -> None:
        self.calls.append(f"recover after {batch_id} and {len(rewinds)} rewinds of {forked_from}")


def resume_point(schema: Any = None) -> ResumePoint:
    return ResumePoint(
        batch_id=BatchId(4),
        planned=None,
        positions={},
        operators={OperatorUid("count"): OperatorHistory(schema=schema)},
        next_position=9,
        attempt=Attempt(3),
        sinks={"out": "token"},
        max_parallelism=8,
        hash_id=HashId.SPARK,
        counters=JobCounters(input_records=5),
        rewinds=(Rewind(Attempt(2), BatchId(-1)),),
    )


@pytest.mark.parametrize("skips", [True, False])
def test_a_batch_that_runs_again_needs_its_files_unless_the_job_skips_lost_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, skips: bool
) -> None:
    driver = Driver(tmp_path)
    entry = "v1\n" + "\n".join(
        json.dumps({"path": f"file:/in/{name}", "timestamp": 1, "batchId": batch})
        for name, batch in (("old", 2), ("here", 3), ("gone", 3))
    )
    planned = BatchPlanned(Attempt(3), BatchId(5), {"sources/0/3": entry})
    opened = replace(driver.opened, resume=replace(resume_point(), planned=planned))
    driver.execution._context = replace(
        driver.context, assignment=driver.context.assignment.model_copy(update={"skip_lost_records": skips})
    )
    asked: list[list[str]] = []

    def missing(_: Any, paths: list[str]) -> list[str]:
        asked.append(paths)
        return [path for path in paths if path.endswith("gone")]

    monkeypatch.setattr(execution, "missing_files", missing)
    if skips:
        driver.execution._require_planned_files(opened)
        assert asked == []
        return
    with pytest.raises(SourceRecordsLostError, match=r"1 of the 2 files of batch 5 .* such as file:/in/gone"):
        driver.execution._require_planned_files(opened)
    assert asked == [["file:/in/here", "file:/in/gone"]], "files of earlier batches are not read again"


@pytest.mark.parametrize("error", [ObjectCorruptError("damaged"), ObjectNotFoundError("gone")])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_damaged_checkpoint_is_left_for_an_older_one_and_damaged_changelogs_alone_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, *, has_checkpoint: bool
) -> None:
    driver = Driver(tmp_path, manifest(6) if has_checkpoint else None)
    journal = cast("Any", SimpleNamespace(last_position=8))
    opened = replace(driver.opened, resume=resume_point(), journal=journal)
    older = replace(opened, manifest=manifest(5))
    failures = [error]

    def restore(*_: Any) -> None:
        if failures:
            raise failures.pop()

    def fall_back(store: Any, given: Any, damaged: OpenAttempt) -> OpenAttempt:
        assert (store, given, damaged) == (driver.store, driver.context.assignment, opened)
        return older

    monkeypatch.setattr(execution, "BatchRunner", Runner)
    monkeypatch.setattr(execution, "fall_back", fall_back)
    monkeypatch.setattr(driver.execution, "_restore", restore)
    if has_checkpoint:
        resumed, _, _ = driver.execution._resumed(opened, cast("Any", None), cast("Any", None))
        assert resumed is older
    else:
        with pytest.raises(type(error)):
            driver.execution._resumed(opened, cast("Any", None), cast("Any", None))


@pytest.mark.parametrize(("last", "is_whole"), [(7, True), (6, False)])
def test_a_job_runs_only_after_all_of_its_state_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, is_whole: bool
) -> None:
    driver = Driver(tmp_path)
    parts = [KeyGroupRange(0, 3), KeyGroupRange(4, last)]
    results = {index: pickle.dumps([RestoredSubtask(OperatorUid("count"), part)]) for index, part in enumerate(parts)}

    def run_per_subtask(spark: Any, placement: str, label: str, task: Any) -> dict[int, bytes]:
        assert (spark, placement, label, task.starts) == (None, "placement", "restore", "starts")
        assert driver.status.heartbeat().restored_at_ms is None
        return results

    monkeypatch.setattr(execution, "run_per_subtask", run_per_subtask)
    shipped = SimpleNamespace(starts=lambda _: "starts")
    committed = SimpleNamespace(is_empty=False, counters=JobCounters(input_records=5))
    with contextlib.nullcontext() if is_whole else pytest.raises(CoverError):
        driver.execution._restore(cast("Any", "placement"), cast("Any", shipped), cast("Any", committed))
    assert (driver.status.heartbeat().restored_at_ms is not None) is is_whole


def test_a_resumed_attempt_publishes_recovers_and_restores_with_the_schema_of_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, manifest(6, job_id=JobId("other")))
    uid, schema = OperatorUid("count"), cast("Any", "the schema of all state")
    resume = resume_point(schema)
    opened = replace(driver.opened, resume=resume, journal=cast("Any", SimpleNamespace(last_position=8)))
    driver.execution._clock = cast("Any", "the clock")
    monkeypatch.setattr(execution, "BatchRunner", Runner)
    resumed, committed, runner = driver.execution._resumed(opened, cast("Any", "placement"), cast("Any", "shipped"))
    assert resumed is opened
    assert [spec.schema for spec in driver.execution._places.specs[uid]] == [schema, schema]
    assert (committed.batch_id, committed.log_position) == (4, 8)
    assert cast("Any", runner).calls == [
        "take over after 4 and 1 rewinds",
        "publish {'out': 'token'}",
        "recover after 4 and 1 rewinds of other",
    ]
    named = cast("Any", runner).named
    assert named["sink_retries"] is driver.execution._sink_retries
    assert named["on_outage"] == driver.status.sink_waited_for
    assert (named["clock"], named["sampling"]) == ("the clock", driver.context.sampling)
    assert (named["shipped"], [node.uid for node in named["sources"].nodes]) == ("shipped", ["source"])
    beat = driver.status.heartbeat()
    assert beat.restored_at_ms is not None
    assert beat.metrics.counters is not None
    assert beat.metrics.counters.input_records == 5


def test_a_restarted_execution_counts_its_records_from_the_last_report_on(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.status.committed(
        Commit(batch_id=0, at_ms=1), counters=JobCounters(), input_records=30, output_records=0, duration_ms=1
    )
    checkpoints = driver.coordinate()._checkpoints
    assert (checkpoints.reported_records, checkpoints.input_records()) == (30, 30)
    checkpoints.next_id = CheckpointId(40)
    again = Execution(driver.context, topology(), driver.execution)
    assert again._number == 1
    driver.execution = again
    assert driver.coordinate()._checkpoints.next_id == 40, "a failed checkpoint has used up its number"


class Notes(list[str]):
    """The calls of several stand-ins, in their order."""

    def of(self, name: str, *methods: str, **fields: Any) -> Any:
        """Returns a stand-in whose methods are noted."""

        def noting(method: str) -> Any:
            return lambda *arguments: self.append(" ".join([f"{name}.{method}", *map(str, arguments)]))

        return SimpleNamespace(**{method: noting(method) for method in methods}, **fields)


FAILED = SinkUnavailableError("away")


@pytest.mark.parametrize(
    ("outcome", "cancels"),
    [
        (None, True),
        (RunOutcome(DriverState.FAILED, FAILED), True),
        (RunOutcome(DriverState.FENCED, FAILED), True),
        (RunOutcome(DriverState.STOPPED), True),
        (RunOutcome(DriverState.FINISHED), False),
    ],
)
def test_a_run_goes_down_between_two_batches_and_cancels_a_batch_that_nothing_waits_for(
    tmp_path: Path, outcome: RunOutcome | None, cancels: bool
) -> None:
    driver, notes = Driver(tmp_path), Notes()
    if outcome is not None:
        driver.box.give(outcome)
    spark = SimpleNamespace(sparkContext=notes.of("spark", "cancelAllJobs"))
    driver.execution._context = replace(driver.context, spark=cast("Any", spark))
    driver.execution._go_down(
        notes.of("loop", "refuse", "halt"), notes.of("query", "stop"), notes.of("coordinator", "close")
    )
    cancelled = ["spark.cancelAllJobs"] if cancels else []
    assert notes == ["loop.refuse", *cancelled, "loop.halt", "query.stop", "coordinator.close 30.0"]


def test_a_timer_of_a_batch_beside_the_checkpoint_of_a_sleep_wakes_the_driver(tmp_path: Path) -> None:
    driver, notes = Driver(tmp_path), Notes()
    driver.box.give(ASLEEP)
    operator = SimpleNamespace(uid="count", logic=SimpleNamespace(uses_timers=True))
    driver.execution._topology = cast("Any", SimpleNamespace(operators=[operator]))
    loop = notes.of("loop", "refuse")
    loop.committed = SimpleNamespace(timers={})

    def halt() -> None:  # waits for the last batch
        loop.committed = SimpleNamespace(timers={operator.uid: (NextTimers(processing_ms=77),)})

    loop.halt = halt
    driver.execution._go_down(loop, notes.of("query", "stop"), notes.of("coordinator", "close"))
    assert driver.context.sleep.timers_due_at_ms == 77


def test_a_driver_awaits_that_its_sources_are_idle_before_it_sleeps(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert driver.execution._quiet_ms() == 2 * driver.execution._batch_interval_ms()
    stamps = Timestamps("at", 0, idle_after_ms=600_000)
    node = TimestampsNode(NodeId(1), NodeId(0), stamps, SCHEMA)
    driver.execution._topology = replace(driver.execution._topology, nodes=(node,))
    assert driver.execution._quiet_ms() == 600_000, "an idle source lets the watermark move"


@pytest.mark.parametrize(
    ("given", "failure", "expected"),
    [
        (None, FAILED, FAILED.code),
        (None, None, SparkLostError.code),
        (StoreUnavailableError("away"), FAILED, StoreUnavailableError.code),
    ],
)
def test_a_query_that_ends_by_itself_fails_the_run_unless_its_batch_has_given_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Exception | None, failure: Exception | None, expected: str
) -> None:
    driver, notes = Driver(tmp_path), Notes()
    query = SimpleNamespace(ended_by_itself=False, current=SimpleNamespace(exception=lambda: failure))

    class Progress:
        def poll(self) -> None:
            notes.append("poll")
            if notes.count("poll") == 2:
                query.ended_by_itself = True
                if given is not None:
                    driver.box.give(RunOutcome.by(given))

        def poll_once_more(self) -> None:
            notes.append("poll once more")

    driver.status.committed(
        Commit(batch_id=0, at_ms=1), counters=JobCounters(), input_records=1, output_records=0, duration_ms=1
    )
    garbage: Any = SimpleNamespace(polls=0)
    garbage.poll = lambda: setattr(garbage, "polls", garbage.polls + 1)
    looked: list[Any] = []
    monkeypatch.setattr(driver.execution, "_note_idleness", looked.append)
    monkeypatch.setattr(driver.execution, "_verify", lambda: looked.append("verify"))
    waits: list[float] = []
    wait = driver.box.wait
    box = SimpleNamespace(wait=lambda seconds: waits.append(seconds) or wait(0), give=driver.box.give, outcome=None)
    driver.execution._context = replace(driver.context, outcome_box=cast("Any", box))
    driver.execution._wait_for_end(cast("Any", query), cast("Any", Progress()), [garbage.poll], cast("Any", "loop"))
    assert notes == ["poll", "poll", "poll once more"]
    assert garbage.polls == 2
    assert looked == ["loop", "verify"] * 2
    assert waits == [1.0] * 3
    outcome = driver.box.outcome
    assert outcome is not None
    assert outcome.error is not None
    assert (outcome.state, outcome.error.code) == (DriverState.FAILED, expected)


def test_the_first_execution_opens_the_attempt_and_the_next_one_opens_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, notes = Driver(tmp_path), Notes()
    journal = SimpleNamespace(with_retries=lambda retries: ("journal", retries))
    opened = replace(driver.opened, journal=cast("Any", journal), opened_at_ms=0)

    def open_attempt(*arguments: Any) -> OpenAttempt:
        notes.append("open")
        store, given, operators, sources, sinks = arguments
        assert (store, given) == (driver.store, driver.context.assignment)
        assert (list(operators), [source.uid for source in sources], sinks) == (["count"], ["source"], ["out"])
        return opened

    def reopen_attempt(*arguments: Any) -> OpenAttempt:
        notes.append("reopen")
        assert arguments == (driver.store, driver.context.assignment, driver.execution._opened)
        return opened

    monkeypatch.setattr(execution, "JobSources", lambda nodes: SimpleNamespace(declared=lambda: list(nodes)))
    monkeypatch.setattr(execution, "open_attempt", open_attempt)
    monkeypatch.setattr(execution, "reopen_attempt", reopen_attempt)
    assert not driver.execution.has_opened
    first = driver.execution._open()
    assert driver.execution.has_opened
    assert first.journal == ("journal", driver.execution._retries)
    assert (driver.execution._info.ranges, [len(each) for each in driver.execution._places.specs.values()]) == (
        opened.ranges,
        [1],
    ), "the ranges of the opening outrank those of the assignment"
    driver.execution._placement = notes.of("placement", "release")
    again = Execution(driver.context, topology(), driver.execution)
    assert again._open().journal == ("journal", again._retries)
    assert again._clock is driver.execution._clock is not None
    unopened = Execution(driver.context, topology(), Execution(driver.context, topology()))
    unopened._open()
    assert notes == ["open", "placement.release", "reopen", "open"]


class Loops:
    """In place of the loop: keeps what it was made with."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments, self.named = arguments, named
        self.reached, self.start = "reached", "start"


def switched(driver: Driver, notes: Notes) -> None:
    """Makes the execution the one of a live rescale that has held the batches for 1.5 s."""
    driver.execution._held_since = time.monotonic() - 1.5
    driver.execution._after = cast("Any", SimpleNamespace(_placement=notes.of("placement before", "release")))
    driver.status.rescales(
        LiveRescale(command_id="c", phase=RescalePhase.SWITCH, from_attempt=2, to_attempt=3, began_at_ms=1)
    )


def require_verified(driver: Driver) -> None:
    rescale = driver.status.heartbeat().rescale
    assert rescale is not None
    assert (rescale.phase, rescale.held_ms is not None) == (RescalePhase.VERIFY, True)
    assert 1500 <= (rescale.held_ms or 0) < 60_000


def require_failure(driver: Driver, on_failure: Any) -> None:
    driver.box.reopen()
    on_failure(FAILED)
    assert driver.box.outcome == RunOutcome(DriverState.FAILED, FAILED)


def end_watch(driver: Driver, notes: Notes) -> None:
    """Ends the watch of a sleeping driver, and notes it where a driver that does not sleep ends it."""
    assert "backlog.end" not in notes
    driver.context.sleep.end_watch()
    notes.insert(-1, notes.pop())


@pytest.mark.parametrize(
    ("way", "has_timers"),
    [("ends", True), ("ends", False), ("fails", True), ("fails", False), ("sleeps", True), ("is rescaled", False)],
)
def test_an_execution_starts_its_parts_and_ends_them_however_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, has_timers: bool
) -> None:
    driver, notes = Driver(tmp_path), Notes()
    run = driver.execution
    resume = SimpleNamespace(batch_id=BatchId(9), time=JobTime(time_batches=2))
    opened = replace(driver.opened, resume=cast("Any", resume), positions={"offsets/7": "v1"})
    loops: list[Loops] = []
    reached: list[Any] = []
    backlog = notes.of("backlog", "start", "end", "follow")
    backlog.counts = True
    sources = SimpleNamespace(
        stream=lambda: "stream",
        positions=lambda positions: {**positions, "more": ""},
        nodes=[SimpleNamespace(uid="source")],
        counting=lambda: "copies",
        input_uids=lambda: ["source"],
    )

    def backlog_of(counting: str, at: Any, status: Any, uids: list[str]) -> Any:
        assert (counting, status, uids) == ("copies", driver.status, ["source"])
        reached.append(at)
        return backlog

    def loop_of(*arguments: Any, **named: Any) -> Loops:
        loops.append(Loops(*arguments, **named))
        return loops[-1]

    def wait_for_end(*_: Any) -> None:
        notes.append(f"wait while {driver.status.state}")
        if way == "fails":
            raise FAILED
        if way == "sleeps":
            driver.box.give(ASLEEP)

    runner = SimpleNamespace(of_query=lambda frame: f"query of {frame}")
    parts = {
        "ShippedLogic": lambda *_: notes.of("shipped", "release"),
        "PlacementDataset": SimpleNamespace(create=lambda *_: "placement"),
        "Backlog": backlog_of,
        "BatchLoop": loop_of,
        "IdleQueries": lambda _: notes.of("idle", "close"),
        "JobQuery": lambda start: f"job query by {start}",
        "StoreWatch": lambda *_: notes.of("watch", "start", "end"),
        "TimerLoop": lambda *_: notes.of("timer_loop", "start", "end"),
        "ProgressWatch": lambda *_: None,
        "parallelism_of_slots": lambda _: 7,
        "split_sources_for": lambda _, parallelism: notes.append(f"split for {parallelism}"),
    }
    for name, part in parts.items():
        monkeypatch.setattr(execution, name, part)
    logic = SimpleNamespace(uses_timers=has_timers)
    monkeypatch.setattr(
        run, "_topology", SimpleNamespace(operators=[SimpleNamespace(logic=logic)], batch_interval_ms=250)
    )
    monkeypatch.setattr(run, "_context", replace(driver.context, spark=cast("Any", SimpleNamespace(sparkContext=None))))
    monkeypatch.setattr(run, "_open", lambda: opened)
    monkeypatch.setattr(run, "_resumed", lambda *_: (opened, "committed", runner))
    monkeypatch.setattr(run, "_sources_of", lambda _: sources)
    monkeypatch.setattr(run, "_coordinator", lambda *_: notes.of("coordinator", "start"))
    monkeypatch.setattr(run, "_wait_for_end", wait_for_end)
    monkeypatch.setattr(run, "_go_down", lambda _, query, __: notes.append(f"go down {query}"))
    if way == "is rescaled":
        switched(driver, notes)
    with pytest.raises(SinkUnavailableError) if way == "fails" else contextlib.nullcontext():
        run.run()
    if way == "sleeps":
        end_watch(driver, notes)
    if way == "is rescaled":
        require_verified(driver)
    assert driver.status.slots == 7
    assert notes == [
        "backlog.start",
        "backlog.follow reached",
        "split for 2",
        *(["placement before.release"] if way == "is rescaled" else []),
        "coordinator.start",
        "watch.start",
        *(["timer_loop.start"] if has_timers else []),
        "wait while RUNNING",
        "timer_loop.end",
        "watch.end",
        "go down job query by start",
        "idle.close",
        "backlog.end",
        "shipped.release",
    ]
    assert reached == [({"offsets/7": "v1"}, 7)], "Spark's own number of the last batch"
    (loop,) = loops
    assert loop.arguments == ("query of stream", runner, opened, "committed")
    assert (loop.named["directory"], loop.named["batch_interval_ms"]) == (tmp_path / "work" / "positions-3", 250)
    assert loop.named["positions"] == {"offsets/7": "v1", "more": ""}
    assert loop.named["status"] is driver.status
    assert isinstance(loop.named["measure"].__self__, HostMetrics)
    require_failure(driver, loop.named["on_failure"])


def idle(driver: Driver, **watch: Any) -> Sleep:
    """Makes a driver idle that shall sleep; the fields of its watch may differ."""
    sleep = driver.context.sleep
    given = {"unwatched": [], "is_settled": lambda *_: True, "news": lambda: None, "poll": lambda *_: None}
    sleep.watch = cast("Any", SimpleNamespace(**{**given, **watch}))
    sleep.want(True)
    driver.status.waits_for_input(True)
    return sleep


@pytest.mark.parametrize(
    ("reason", "may_sleep"),
    [
        (None, True),
        ("no watch", False),
        ("not wanted", False),
        ("a command waits", False),
        ("reads", False),
        ("unwatched", False),
        ("not settled", False),
        ("news", False),
        ("unknown timers", False),
        ("a due timer", False),
        ("a late timer", True),
    ],
)
def test_a_driver_sleeps_only_if_nothing_speaks_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str | None, may_sleep: bool
) -> None:
    driver, settled = Driver(tmp_path), list[Any]()
    monkeypatch.setattr(execution, "now_ms", lambda: 1_000_000)

    def is_settled(now: float, quiet_ms: int) -> bool:
        settled.append((now > 0, quiet_ms))
        return reason != "not settled"

    watch = {"unwatched": ["kafka"] if reason == "unwatched" else [], "is_settled": is_settled}
    sleep = idle(driver, **watch, news=lambda: "a file" if reason == "news" else None)
    if reason == "no watch":
        sleep.watch = None
    sleep.want(reason != "not wanted")
    if reason == "a command waits":
        driver.context.commands.put(None)
    driver.status.waits_for_input(reason != "reads")
    timers = {
        "unknown timers": [None],
        "a due timer": [NextTimers(processing_ms=1_000_000)],
        "a late timer": [NextTimers(processing_ms=2_000_000)],
    }
    sleep.note_timers(timers.get(reason or "", []))
    assert driver.execution._may_fall_asleep() is may_sleep
    if may_sleep:
        assert settled == [(True, driver.execution._quiet_ms())]


@pytest.mark.parametrize("knows_timers", [True, False])
def test_an_idle_driver_tells_whether_it_may_sleep_and_until_when(tmp_path: Path, knows_timers: bool) -> None:
    driver, polled = Driver(tmp_path), list[Any]()
    driver.status.committed(
        Commit(batch_id=0, at_ms=1), counters=JobCounters(), input_records=1, output_records=0, duration_ms=1
    )
    sleep = idle(driver, unwatched=["rate"], poll=lambda now, commits: polled.append((now > 0, commits)))
    operators = [
        SimpleNamespace(uid=uid, logic=SimpleNamespace(uses_timers=uses))
        for uid, uses in (("fires", True), ("fires too", True), ("never", False))
    ]
    driver.execution._topology = cast("Any", SimpleNamespace(operators=operators))
    timers = {"fires": (NextTimers(processing_ms=90), NextTimers(event_ms=5)), "never": (NextTimers(processing_ms=1),)}
    if knows_timers:
        timers["fires too"] = (NextTimers(processing_ms=80),)
    loop = cast("Any", SimpleNamespace(committed=SimpleNamespace(timers=timers)))
    driver.status.waits_for_input(False)
    driver.execution._note_idleness(loop)
    assert polled == [], "the job reads"
    driver.status.waits_for_input(True)
    driver.execution._note_idleness(loop)
    assert polled == [], "a driver that cannot leave Spark does not sleep"
    sleep.leave_spark = lambda: None
    driver.execution._note_idleness(loop)
    metrics = driver.status.heartbeat().metrics
    assert polled == [(True, 1)]
    assert (metrics.can_sleep, metrics.unwatched) == ((True, ["rate"]) if knows_timers else (False, []))
    assert metrics.timers_due_at_ms == (80 if knows_timers else 90)


@pytest.mark.parametrize("counts", [True, False])
def test_sources_are_watched_by_their_counts_or_else_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    driver = Driver(tmp_path)
    backlog: Any = SimpleNamespace(counts=counts, has_begun=False, loss="lost")
    monkeypatch.setattr(driver.execution, "_sources_of", lambda _: SimpleNamespace(names=lambda: ["kafka"]))
    driver.execution._watch_sources(driver.opened, backlog)
    watch = driver.context.sleep.watch
    assert watch is not None
    assert (list(watch.unwatched), watch.news()) == (
        (["a source that does not count"], "lost") if counts else (["kafka"], None)
    )
    if counts:
        driver.status.records_wait(3)
        assert list(watch.unwatched) == ["a source that the job has not read"]
        backlog.has_begun, backlog.loss = True, None
        assert (list(watch.unwatched), watch.news()) == ([], "3 records waiting")


def test_a_live_rescale_is_answered_once_its_attempt_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    driver = Driver(tmp_path)
    run = driver.execution
    run._context = replace(driver.context, rescaled_by=Command(id="c", kind=CommandKind.RESCALE))
    assert not run.is_unverified
    run._verify()
    run._taken_over = cast("Any", "committed")
    assert run.is_unverified
    run._verify()
    assert (driver.status.heartbeat().results, driver.reports) == ([], []), "neither input nor the want of it"
    driver.status.waits_for_input(True)
    for _ in range(2):
        run._verify()
    assert driver.status.heartbeat().results == [CommandResult(command_id="c", status="COMPLETED")]
    assert (driver.reports, run.is_unverified) == (["nudge"], False)
    assert caplog.messages == ["the job runs at parallelism 2"]


def test_a_checkpoint_after_a_failed_live_rescale_has_a_number_above_those_of_both(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert (driver.execution.next_checkpoint_id, driver.execution.newest_manifest) == (0, None)
    checkpoints = driver.coordinate()._checkpoints
    assert driver.execution.next_checkpoint_id == 7
    checkpoints.next_id, checkpoints.base = CheckpointId(9), manifest(8)
    assert driver.execution.next_checkpoint_id == 9
    assert driver.execution.newest_manifest is checkpoints.base


def test_a_live_rescale_begins_with_the_state_that_it_has_taken_over_and_restores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, notes = Driver(tmp_path, manifest(6)), Notes()
    run, counters = driver.execution, JobCounters(input_records=5)
    committed = SimpleNamespace(batch_id=4, counters=counters, sinks={"out": "token"}, rewinds=("rewind",))
    runner = notes.of("runner", "take_over", "publish", "recover")
    run._prepared = cast("Any", SimpleNamespace(runner=runner, frame="frame"))
    run._taken_over = cast("Any", committed)
    opened = replace(driver.opened, positions={"offsets/4": "v1"})
    sources = SimpleNamespace(positions=lambda files: {**files, "more": ""})
    monkeypatch.setattr(run, "_sources_of", lambda _: sources)
    monkeypatch.setattr(run, "_context", replace(driver.context, spark=cast("Any", SimpleNamespace(sparkContext=None))))
    monkeypatch.setattr(execution, "BatchLoop", Loops)
    found, loop = run._begun(opened, cast("Any", None), cast("Any", None))
    assert found is opened
    assert notes == [
        "runner.take_over 4 ('rewind',)",
        "runner.publish {'out': 'token'}",
        "runner.recover 4 ('rewind',) None",
    ]
    assert cast("Any", loop).arguments == ("frame", runner, opened, committed)
    assert cast("Any", loop).named["positions"] == {"offsets/4": "v1", "more": ""}
    beat = driver.status.heartbeat()
    assert beat.restored_at_ms is not None
    assert beat.metrics.counters is not None
    assert beat.metrics.counters.input_records == 5


def test_the_attempt_of_a_live_rescale_is_opened_at_the_end_of_the_log_and_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, calls = Driver(tmp_path), list[Any]()
    journal = SimpleNamespace(last_position=8, with_retries=lambda retries: ("journal", retries))
    driver.execution._opened = before = replace(driver.opened, journal=cast("Any", journal))
    given = assignment(tmp_path, attempt=4, revision=6, parallelism=4)
    reporter = SimpleNamespace(follow=calls.append, nudge=lambda: calls.append("nudge"))
    context = replace(driver.context, assignment=given, token="next", reporter=cast("Any", reporter))  # noqa: S106
    driver.status.begins(3)
    following = driver.execution.following(context)

    class Committed:
        def divided(self, specs: Any, position: int) -> Any:
            calls.append(({uid: len(each) for uid, each in specs.items()}, position))
            return "divided"

    def open_next(*arguments: Any, **named: Any) -> Any:
        assert driver.execution.is_followed, "from now on the attempt before appends nothing"
        calls.append((arguments, named))
        return before

    committed = Committed()
    monkeypatch.setattr(execution, "open_next_attempt", open_next)
    following.take_over(cast("Any", committed), "manifest", 12.5)  # type: ignore[arg-type]
    assert calls == [
        ({"count": 4}, 9),
        ((before, given, following._operators, committed, "manifest"), {"ranges": KeyGroupRanges.of_count(8, 4)}),
        Following("job", 4, "next"),
        "nudge",
    ]
    assert (following._taken_over, following._held_since, following.is_unverified) == ("divided", 12.5, True)
    assert following._opened is not None
    assert following._opened.journal == ("journal", following._retries)
    beat = driver.status.heartbeat()
    assert (beat.attempt, beat.revision, driver.settings.newest.spec.parallelism) == (4, 6, 4)
    assert not driver.execution.has_opened
    assert following.has_opened


class Histories:
    """In place of a committed state that needs no restore: the schema of its log."""

    positions: ClassVar[dict[str, str]] = {}
    log_position = 8

    def histories(self) -> dict[str, Any]:
        return {"count": SimpleNamespace(schema="of the log")}

    def divided(self, specs: Any, position: int) -> Any:
        assert (len(specs["count"]), position) == (4, 8)
        return SimpleNamespace(is_empty=True)


@pytest.mark.parametrize("is_opened", [True, False])
def test_what_is_prepared_for_a_live_rescale_has_the_jobs_schema_and_is_released_unless_its_attempt_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_opened: bool
) -> None:
    driver, notes = Driver(tmp_path), Notes()
    context = replace(
        driver.context,
        assignment=assignment(tmp_path, attempt=4, parallelism=4),
        spark=cast("Any", SimpleNamespace(sparkContext=None)),
    )
    following = driver.execution.following(context)
    made: list[Any] = []

    def runner_of(*arguments: Any, **_: Any) -> Any:
        made.append(arguments)
        return SimpleNamespace(of_query=lambda frame: f"query of {frame}")

    monkeypatch.setattr(execution, "merge_schemas", list)
    monkeypatch.setattr(execution, "BatchRunner", runner_of)
    monkeypatch.setattr(execution, "ShippedLogic", lambda *_: notes.of("shipped", "release"))
    placements = SimpleNamespace(create=lambda _, parallelism: notes.of(f"placement of {parallelism}", "release"))
    monkeypatch.setattr(execution, "PlacementDataset", placements)
    monkeypatch.setattr(following, "_sources_of", lambda _: SimpleNamespace(stream=lambda: "stream"))
    for _ in range(2):
        following.prepare(cast("Any", Histories()))
    (arguments,) = made
    specs = following._places.specs
    assert arguments[-1] is specs
    assert [spec.schema for spec in specs[OperatorUid("count")]] == [[None, "of the log"]] * 4
    assert following._prepared is not None
    assert following._prepared.frame == "query of stream"
    following._opened = driver.opened if is_opened else None
    following.release()
    following.release()
    assert notes == ([] if is_opened else ["placement of 4.release", "shipped.release"])


def test_a_driver_that_goes_back_answers_the_rescale_with_its_failure(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    failure = Failure(code="X", message="the first batch failed")
    driver.status.begins(4)
    driver.status.rescales(
        LiveRescale(command_id="c", phase=RescalePhase.VERIFY, from_attempt=3, to_attempt=4, began_at_ms=1)
    )
    command = Command(id="c", kind=CommandKind.RESCALE)
    driver.execution._context = replace(driver.context, rescaled_by=command, failure=failure)
    driver.execution._announce()
    beat = driver.status.heartbeat()
    assert beat.attempt == 3
    assert beat.rescale is not None
    assert beat.rescale.failure == failure
    assert beat.results == [CommandResult(command_id="c", status="FAILED", failure=failure)]
    assert driver.reports == ["nudge"]
    driver.execution._announce()
    assert driver.reports == ["nudge"], "an attempt is announced once"

"""The execution of a declared job.

It fences, restores, and runs batches and checkpoints until something ends it.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import UnsetType

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint
from keyscale.identifiers import Attempt, CheckpointId, JobId, OperatorUid
from keyscale.state.doors.commits import OperatorDeclaration, RetentionPolicy
from keyscale.state.doors.objects import ObjectCorruptError, ObjectNotFoundError
from keyscale.state.doors.paths import Layout
from keyscale.state.doors.subtasks import merge_schemas
from keyscale.state.doors.values import HashId, KeyGroupRange
from keyscale.units import counted
from keyscale.vocabulary import DriverState, RescalePhase

from ...errors import SinkUnavailableError, SourceRecordsLostError
from ...graph.nodes import TimestampsNode
from ...protocol.messages import CommandResult
from ...spark_internals.affinity import PlacementDataset
from ...spark_internals.checkpoint_directory import planned_files
from ...spark_internals.executor_times import executor_times
from ...spark_internals.hadoop_files import missing_files
from ...spark_internals.idle_queries import IdleQueries
from ...spark_internals.jvm_heap import jvm_heap_bytes
from ...spark_internals.task_slots import parallelism_of_slots, split_sources_for
from ..batch.committed_state import CommittedState
from ..batch.job_sources import JobSources
from ..batch.processing_clock import ProcessingClock, beginning_ms
from ..batch.record_sampling import RecordSampling
from ..batch.runner import BatchRunner, RunInfo, subtask_specs
from ..batch.shipped_logic import ShippedLogic
from ..batch.source_order import SourceInputs, order_of, recorded_order
from ..control.reporter import Following
from ..errors import SparkLostError
from ..executor.subtask_jobs import RestoreSubtasks, SubtaskPlaces, check_restored, run_per_subtask
from ..retries import Retries
from .attempt import attempt_ranges, fall_back, open_attempt, open_next_attempt, reopen_attempt
from .backlog import Backlog, Reached
from .batch_loop import BatchLoop
from .checkpoints import Checkpoints, SnapshotContext
from .coordinator import Coordinator
from .garbage_watch import GarbageWatch
from .host_metrics import HostMetrics
from .job_query import JobQuery
from .progress_watch import ProgressWatch
from .retention_runner import RetentionRunner
from .run_outcome import ASLEEP, RunOutcome
from .sleep import Sleep
from .slot_watch import SlotWatch
from .source_watch import SourceWatch
from .store_watch import StoreWatch
from .timer_loop import TimerLoop

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import ResumePoint
    from keyscale.state.doors.objects import ObjectStore

    from ...graph.topology import Topology
    from ...protocol.messages import Assignment, Command, Failure
    from ...protocol.specification import CheckpointSettings
    from ..control.driver_status import DriverStatus
    from ..control.followed_settings import FollowedSettings
    from ..control.reporter import Reporter
    from .attempt import OpenAttempt
    from .run_outcome import RunOutcomeBox

logger = logging.getLogger(__name__)

_QUERY_POLL_SECONDS = 1.0
_ROUNDS_OF_TIMERS = 10
_FIRST_COMMIT_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RunContext:
    """The driver's objects that an execution uses.

    Attributes:
        spark: The session.
        assignment: The job and its settings.
        store: The object store.
        status: Takes all progress.
        settings: The settings that may change while the job runs.
        outcome_box: Takes the run's outcome.
        commands: The control plane's commands, in order.
        reporter: Sends checkpoint reports.
        work_dir: A directory for this process alone.
        local_root: Directory of local state; the same path on every host, shared by all attempts there.
        token: The attempt's token, if the driver has to speak with another one than at its start.
        rescale: Carries out the command of a live rescale.
        rescaled_by: The command of the live rescale that the attempt comes from, if any.
        failure: Why the driver goes back to the parallelism before that live rescale, if it does.
        withdrawn: Ids of commands that the control plane has withdrawn.
        sampling: Orders samples of records.
        sleep: The driver's sleep.
    """

    spark: SparkSession
    assignment: Assignment
    store: ObjectStore
    status: DriverStatus
    settings: FollowedSettings
    outcome_box: RunOutcomeBox
    commands: queue.SimpleQueue[Command | None]
    reporter: Reporter
    work_dir: Path
    local_root: Path
    rescale: Callable[[Execution, BatchLoop, Checkpoints, Command], None]
    token: str | None = None
    rescaled_by: Command | None = None
    failure: Failure | None = None
    withdrawn: set[str] = field(default_factory=set)
    sampling: RecordSampling = field(default_factory=RecordSampling)
    sleep: Sleep = field(default_factory=Sleep)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What an execution has before its attempt is opened.

    Attributes:
        placement: The subtasks' rows.
        shipped: The parts of the run that are shipped once.
        sources: The job's sources.
        runner: Runs the batches.
        frame: The frame of the query.
    """

    placement: PlacementDataset
    shipped: ShippedLogic
    sources: JobSources
    runner: BatchRunner
    frame: DataFrame


class Execution:
    """One topology in one attempt: everything of an attempt in the driver.

    A live rescale replaces it as a whole.

    Args:
        context: The driver's objects.
        topology: The job.
        after: The execution before in this process, of the same attempt or of the attempt before, if any.

    Attributes:
        successor: The execution of the next attempt, once a live rescale has opened it.
        is_followed: Whether the next attempt may be open in the commit log, so that this one no longer appends.
    """

    def __init__(self, context: RunContext, topology: Topology, after: Execution | None = None) -> None:
        self._context = context
        self.successor: Execution | None = None
        self._topology = topology
        self._after = after
        self._number: int = 0 if after is None else after._number + 1
        self._opened: OpenAttempt | None = None
        self._prepared: Preparation | None = None
        self._taken_over: CommittedState | None = None
        self._held_since: float | None = None
        self._is_verified = False
        self.is_followed = False
        self._clock: ProcessingClock | None = None if after is None else after._clock
        self._placement: PlacementDataset | None = None
        self._checkpoints: Checkpoints | None = None
        assignment = context.assignment
        self._info = RunInfo(
            job_id=JobId(assignment.job_id),
            attempt=Attempt(assignment.attempt),
            ranges=attempt_ranges(assignment, None if after is None else after.newest_manifest),
            hash_id=HashId(assignment.spec.hash_id),
            store_url=assignment.store_url,
            local_root=context.local_root,
            rocksdb=topology.rocksdb,
            store_outage_max_ms=assignment.spec.checkpoints.store_outage_max_ms,
        )
        self._retries = Retries(
            assignment.spec.checkpoints.store_outage_max_ms, lambda: context.outcome_box.outcome is not None
        )
        self._sink_retries = replace(self._retries, awaited=SinkUnavailableError)
        self._operators = operator_declarations(topology)
        self._places = self._new_places()

    @property
    def context(self) -> RunContext:
        return self._context

    @property
    def newest_manifest(self) -> Manifest | None:
        """The newest checkpoint of the attempt.

        Before the first, it is the checkpoint that the attempt was restored from.
        """
        return None if self._checkpoints is None else self._checkpoints.base

    def _new_places(self) -> SubtaskPlaces:
        specs = {node.uid: subtask_specs(node, self._info) for node in self._topology.operators}
        return SubtaskPlaces(specs, self._info.store_url, str(self._info.local_root))

    @property
    def has_opened(self) -> bool:
        """Whether the attempt's fence stands, so that another execution can continue it."""
        return self._opened is not None and not self.is_followed

    @property
    def is_unverified(self) -> bool:
        """Whether a live rescale still waits for the attempt's first batch."""
        return self._taken_over is not None and not self._is_verified

    @property
    def next_checkpoint_id(self) -> int:
        """An unused id of a checkpoint; 0 before the attempt takes checkpoints."""
        return 0 if self._checkpoints is None else self._checkpoints.next_id

    def following(self, context: RunContext) -> Execution:
        """Returns the execution of the next attempt.

        It can be prepared beside the batches of this attempt.
        """
        return Execution(context, self._topology, self)

    def prepare(self, committed: CommittedState) -> None:
        """Builds the stores of all subtasks.

        Batches of the attempt before may run. A repeated call brings the stores forward.

        Args:
            committed: A committed state of the attempt before.
        """
        prepared = self._preparation(committed)
        ahead = committed.divided(self._places.specs, committed.log_position)
        if not ahead.is_empty:
            self._restore_stores(prepared.placement, prepared.shipped, ahead, is_ahead=True)

    def rehearse(self) -> None:
        """Rehearses Spark's part of a batch."""
        if self._prepared is not None:
            self._prepared.runner.rehearse_input()

    def rehearse_ahead(self) -> None:
        """Rehearses Spark's part of a batch beside the driver before.

        A cluster may have slots only when the driver before has ended.
        """
        slots = parallelism_of_slots(self._context.spark)
        if slots is None or slots < self._info.parallelism:
            return
        placement = PlacementDataset.create(self._context.spark, self._info.parallelism)
        shipped = ShippedLogic(self._context.spark.sparkContext, self._topology)
        try:
            self._runner(placement, shipped, self._sources_of({})).rehearse_input()
        finally:
            placement.release()
            shipped.release()

    def take_over(self, committed: CommittedState, manifest: Manifest | None, held_since: float) -> None:
        """Opens this attempt in the commit log, between two batches.

        Args:
            committed: The state after the last batch of the attempt before.
            manifest: The newest checkpoint of the attempt before.
            held_since: When batches began to wait, by `time.monotonic`.

        Raises:
            FencedError: Another attempt has been opened.
            StoreUnavailableError: The store did not answer; the attempt may be open.
        """
        before = self._after
        assert before is not None  # noqa: S101 - as `following` has made it
        assert before._opened is not None  # noqa: S101 - it runs batches
        divided = committed.divided(self._places.specs, before._opened.journal.last_position + 1)
        before.is_followed = True
        opened = open_next_attempt(
            before._opened, self._context.assignment, self._operators, committed, manifest, ranges=self._info.ranges
        )
        self._taken_over = divided
        self._opened = replace(opened, journal=opened.journal.with_retries(self._retries))
        self._held_since = held_since
        self._announce()

    def release(self) -> None:
        """Releases what was prepared for an attempt that is not opened."""
        if self._prepared is not None and self._opened is None:
            self._prepared.placement.release()
            self._prepared.shipped.release()
            self._prepared = None

    def _preparation(self, committed: CommittedState) -> Preparation:
        if self._prepared is None:
            context = self._context
            before = self._after
            assert before is not None  # noqa: S101 - as `following` has made it
            self._places = with_histories(self._places, before._places, committed)
            sources = self._sources_of(committed.positions)
            placement = self._placement = PlacementDataset.create(context.spark, self._info.parallelism)
            shipped = ShippedLogic(context.spark.sparkContext, self._topology)
            runner = self._runner(placement, shipped, sources)
            self._prepared = Preparation(placement, shipped, sources, runner, runner.of_query(sources.stream()))
        return self._prepared

    def _announce(self) -> None:
        """Makes the driver speak for this attempt."""
        context = self._context
        assignment = context.assignment
        if not context.status.begins(assignment.attempt):
            return
        if context.token is not None:
            context.settings.assigned(assignment)
            context.reporter.follow(Following(assignment.job_id, assignment.attempt, context.token))
        if context.failure is not None and context.rescaled_by is not None:
            context.status.rescale_failed(context.failure)
            context.status.answer(
                CommandResult(command_id=context.rescaled_by.id, status="FAILED", failure=context.failure)
            )
        context.reporter.nudge()

    def run(self) -> None:
        """Runs until a thread sets the run's outcome.

        Nothing is committed after this returns.

        Raises:
            KeyscaleError: The attempt could not begin.
        """
        prepared = self._prepared
        shipped = (
            ShippedLogic(self._context.spark.sparkContext, self._topology) if prepared is None else prepared.shipped
        )
        try:
            self._run(shipped)
        finally:
            shipped.release()

    def _run(self, shipped: ShippedLogic) -> None:
        context = self._context
        opened = self._open()
        logger.info(
            "attempt %d opened (%d times before) after batch %d, restored from %s",
            opened.attempt,
            self._number,
            opened.resume.batch_id,
            opened.manifest.path if opened.manifest else "nothing",
        )
        prepared = self._prepared
        placement = self._placement = (
            PlacementDataset.create(context.spark, self._info.parallelism) if prepared is None else prepared.placement
        )
        backlog = self._backlog(opened)
        backlog.start()
        try:
            self._run_batches(opened, placement, shipped, backlog)
        finally:
            if context.outcome_box.outcome is ASLEEP:
                context.sleep.end_watch = backlog.end
            else:
                backlog.end()

    def _run_batches(
        self, opened: OpenAttempt, placement: PlacementDataset, shipped: ShippedLogic, backlog: Backlog
    ) -> None:
        context = self._context
        opened, loop = self._begun(opened, placement, shipped)
        backlog.follow(loop.reached)
        with contextlib.closing(
            IdleQueries(context.spark)
        ) as idle:  # before the query, which may find no input at its first poll
            split_sources_for(context.spark, self._info.parallelism)
            query = JobQuery(loop.start)
            slots = SlotWatch(partial(parallelism_of_slots, context.spark), context.status)
            slots.poll()  # before the driver runs the job
            if self._held_since is not None:
                held_ms = round(1000 * (time.monotonic() - self._held_since))
                context.status.rescale_reaches(RescalePhase.VERIFY, held_ms=held_ms)
                if self._after is not None and self._after._placement is not None:
                    self._after._placement.release()
            context.status.enter(DriverState.RUNNING)
            logger.info("the query runs")
            self._watch_sources(opened, backlog)
            coordinator = self._coordinator(opened, placement, shipped, loop, query)
            coordinator.start()
            watch = StoreWatch(context.store, Layout(self._info.job_id).log_entry(1), context.status)
            watch.start()
            timer_loop = TimerLoop(loop, lambda: context.status.has_looked_for_input)
            if any(node.logic.uses_timers for node in self._topology.operators):
                timer_loop.start()
            source_uids = [node.uid for node in self._sources_of(opened.positions).nodes]
            progress = ProgressWatch(query, idle, source_uids, context.status)
            garbage = GarbageWatch(partial(executor_times, context.spark), context.status)
            try:
                self._wait_for_end(query, progress, (garbage.poll, slots.poll), loop)
            finally:
                timer_loop.end()
                watch.end()
                self._go_down(loop, query, coordinator)

    def _begun(
        self, opened: OpenAttempt, placement: PlacementDataset, shipped: ShippedLogic
    ) -> tuple[OpenAttempt, BatchLoop]:
        """Returns the loop of the batches, which begins with its query.

        The state is restored, unless a live rescale has prepared it.
        """
        context, prepared, taken_over = self._context, self._prepared, self._taken_over
        if prepared is not None and taken_over is not None:
            committed, runner, frame = taken_over, prepared.runner, prepared.frame
            self._take_sinks_over(runner, committed, opened.manifest)
            context.status.restored(now_ms(), committed.counters)
        else:
            opened, committed, runner = self._resumed(opened, placement, shipped)
            frame = runner.of_query(self._sources_of(opened.positions).stream())
        loop = BatchLoop(
            frame,
            runner,
            opened,
            committed,
            directory=context.work_dir / positions_name(opened.attempt, self._number),
            status=context.status,
            on_failure=lambda failure: context.outcome_box.give(RunOutcome.by(failure)),
            positions=self._sources_of(opened.positions).positions(opened.positions),
            batch_interval_ms=self._batch_interval_ms(),
            measure=HostMetrics(partial(jvm_heap_bytes, context.spark.sparkContext)).measure,
        )
        return opened, loop

    def _require_planned_files(self, opened: OpenAttempt) -> None:
        """Checks that the files of a batch that runs again exist.

        Spark leaves missing files out, so the batch would be committed without their records.

        Raises:
            SourceRecordsLostError: Files are gone, and the job is not to skip lost records.
        """
        planned = opened.resume.planned
        if planned is None or self._context.assignment.skip_lost_records:
            return
        files = planned_files(planned.positions)
        gone = missing_files(self._context.spark, files)
        if gone:
            raise SourceRecordsLostError(
                f"{len(gone)} of the {counted(len(files), 'file')} of batch {planned.batch_id} had been deleted before"
                f" the batch was committed, such as {gone[0]}"
            )

    def _backlog(self, opened: OpenAttempt) -> Backlog:
        """Returns the count of waiting records, from the restored positions on."""
        resume = opened.resume
        reached = Reached(opened.positions, resume.batch_id - resume.time.time_batches)
        sources = self._sources_of(opened.positions)
        return Backlog(sources.counting(), reached, self._context.status, uids=sources.input_uids())

    def _open(self) -> OpenAttempt:
        context, after = self._context, self._after
        if self._opened is not None:  # a live rescale has opened it
            return self._opened
        if after is None or after._opened is None:
            sinks = [node.uid for node in self._topology.sinks]
            opened = open_attempt(context.store, context.assignment, self._operators, self._declared_sources, sinks)
            self._clock = ProcessingClock(beginning_ms(now_ms(), opened.opened_at_ms))
            failpoint("run.fenced")
        else:
            if after._placement is not None:
                after._placement.release()
            before = after._opened
            opened = self._retries.run(lambda: reopen_attempt(context.store, context.assignment, before))
            failpoint("run.reopened")
        self._opened = replace(opened, journal=opened.journal.with_retries(self._retries))
        self._info = replace(self._info, ranges=opened.ranges)
        self._places = self._new_places()
        self._announce()
        return self._opened

    def _resumed(
        self, opened: OpenAttempt, placement: PlacementDataset, shipped: ShippedLogic
    ) -> tuple[OpenAttempt, CommittedState, BatchRunner]:
        """Publishes committed output and restores the state.

        It restores from an older checkpoint if the newest is damaged.
        """
        self._require_planned_files(opened)
        context = self._context
        while True:
            self._places = with_schemas(self._places, opened.resume)
            committed = CommittedState.resumed(
                opened.resume, self._places.specs, opened.positions, opened.journal.last_position
            )
            runner = self._runner(placement, shipped, self._sources_of(opened.positions))
            self._take_sinks_over(runner, committed, opened.manifest)
            try:
                self._restore(placement, shipped, committed)
            except (ObjectCorruptError, ObjectNotFoundError):
                if opened.manifest is None:
                    raise
                logger.exception("skipping %s: its files are damaged or missing", opened.manifest.path)
                opened = fall_back(context.store, context.assignment, opened)
            else:
                return opened, committed, runner

    def _runner(self, placement: PlacementDataset, shipped: ShippedLogic, sources: JobSources) -> BatchRunner:
        context = self._context
        return BatchRunner(
            context.spark,
            self._topology,
            self._info,
            placement,
            self._places.specs,
            sources=sources,
            shipped=shipped,
            sink_retries=self._sink_retries,
            on_outage=context.status.sink_waited_for,
            clock=self._clock,
            sampling=context.sampling,
        )

    def _take_sinks_over(self, runner: BatchRunner, committed: CommittedState, manifest: Manifest | None) -> None:
        """Fences earlier attempts in the sinks, and publishes what is committed."""
        runner.take_over(committed.batch_id, committed.rewinds)
        runner.publish({OperatorUid(uid): token for uid, token in committed.sinks.items()})
        runner.recover(committed.batch_id, committed.rewinds, self._forked_from(manifest))

    def _forked_from(self, manifest: Manifest | None) -> JobId | None:
        if manifest is None:
            return None
        taken_by = manifest.job_id if isinstance(manifest.forked_from, UnsetType) else manifest.forked_from
        return None if taken_by == self._info.job_id else taken_by

    @property
    def _declared_sources(self) -> list[SourceInputs]:
        return JobSources(self._topology.sources).declared()

    @property
    def _source_uids(self) -> list[OperatorUid]:
        return [node.uid for node in self._topology.sources]

    def _sources_of(self, positions: Mapping[str, str]) -> JobSources:
        """Returns the sources in the order of the recorded positions."""
        order = order_of(self._source_uids, recorded_order(positions))
        return JobSources.ordered(self._topology.sources, order)

    def _restore(self, placement: PlacementDataset, shipped: ShippedLogic, committed: CommittedState) -> None:
        """Restores every subtask's state on its host, each key group once.

        A job without state starts immediately: its first batch creates the stores, as on a new executor.
        """
        if not committed.is_empty:
            self._restore_stores(placement, shipped, committed)
        self._context.status.restored(now_ms(), committed.counters)
        logger.info("all state is restored")
        failpoint("run.restored")

    def _restore_stores(
        self,
        placement: PlacementDataset,
        shipped: ShippedLogic,
        committed: CommittedState,
        *,
        is_ahead: bool = False,
    ) -> None:
        task = RestoreSubtasks(self._places, shipped.starts(committed), is_ahead)
        results = run_per_subtask(self._context.spark, placement, "prepare" if is_ahead else "restore", task)
        restored = chain.from_iterable(map(pickle.loads, results.values()))  # from our own tasks
        check_restored(restored, self._places.specs, KeyGroupRange(0, self._info.max_parallelism - 1))

    def _coordinator(
        self,
        opened: OpenAttempt,
        placement: PlacementDataset,
        shipped: ShippedLogic,
        loop: BatchLoop,
        query: JobQuery,
    ) -> Coordinator:
        context, settings = self._context, self._context.settings.newest.spec.checkpoints
        layout = Layout(self._info.job_id)
        existing = existing_checkpoints(context.store, layout)
        snapshots = SnapshotContext(
            spark=context.spark,
            placement=placement,
            shipped=shipped,
            info=self._info,
            operators=self._operators,
            places=self._places,
            store=context.store,
            layout=layout,
            timeout_ms=settings.timeout_ms,
        )
        before = None if self._after is None else self._after._checkpoints
        self._after = None  # earlier executions are no longer needed
        checkpoints = self._checkpoints = Checkpoints(
            context=snapshots,
            loop=loop,
            report=context.reporter.report_checkpoint,
            next_id=max(
                next_checkpoint_id(context.assignment, opened.manifest, existing),
                before.next_id if before is not None else CheckpointId(0),
            ),
            retained_ids=existing,
            retained_count=settings.retained_count,
            base=opened.manifest,
            input_records=lambda: context.status.input_records,
            reported_records=context.status.input_records,
            claims=opened.claims,
        )
        protected = frozenset({opened.manifest.path} if opened.manifest else ())
        retention = RetentionRunner(
            context.store,
            self._info.job_id,
            _retention_policy(settings, protected),
            allowed=lambda: not context.reporter.has_unsent_reports,
            wait_until_rebased=loop.wait_until_rebased,
            is_overtaken=opened.journal.is_overtaken,
            status=context.status,
        )
        followed = context.settings.newest

        def follow_settings() -> None:
            nonlocal followed
            newest = context.settings.newest
            if newest is followed:
                return
            followed = newest
            checkpoints.context = replace(checkpoints.context, timeout_ms=newest.spec.checkpoints.timeout_ms)
            checkpoints.retained_count = newest.spec.checkpoints.retained_count
            interval_ms = self._batch_interval_ms()
            if interval_ms != loop.batch_interval_ms:
                loop.batch_interval_ms = interval_ms
                query.read_on()
            logger.info("the job follows the settings of revision %d", newest.revision)

        def run_retention() -> None:
            # The base is needed until the attempt has its own checkpoint; longer would keep all of the log since.
            needed = protected if checkpoints.base is opened.manifest else frozenset[str]()
            retention.policy = _retention_policy(context.settings.newest.spec.checkpoints, needed)
            retention.run_if_due()

        return Coordinator(
            checkpoints,
            loop,
            lambda: context.settings.newest.spec.checkpoints,
            context.status,
            context.outcome_box,
            commands=context.commands,
            drain=lambda: drain(query, loop, operators=len(self._topology.operators)),
            read_on=query.read_on,
            run_retention=run_retention,
            nudge=context.reporter.nudge,
            follow_settings=follow_settings,
            rescale=lambda command: context.rescale(self, loop, checkpoints, command),
            sleeps=self._may_fall_asleep,
        )

    def _batch_interval_ms(self) -> int:
        """Returns the interval of the job's specification, or else of its script."""
        given_ms = self._context.settings.newest.spec.batch_interval_ms
        return self._topology.batch_interval_ms if given_ms is None else given_ms

    def _watch_sources(self, opened: OpenAttempt, backlog: Backlog) -> None:
        status = self._context.status
        names = [] if backlog.counts else self._sources_of(opened.positions).names()
        self._context.sleep.watch = SourceWatch(
            names, lambda: status.pending_records, has_begun=lambda: backlog.has_begun, loss=lambda: backlog.loss
        )

    def _note_idleness(self, loop: BatchLoop) -> None:
        """Reports whether the driver may sleep, and until when."""
        context, watch = self._context, self._context.sleep.watch
        if watch is None or context.sleep.leave_spark is None or not context.status.is_idle:
            return
        watch.poll(time.monotonic(), context.status.commits)
        self._note_timers(loop)
        context.status.timers_due(context.sleep.timers_due_at_ms)
        context.status.may_sleep(watch.unwatched if context.sleep.are_timers_known else None)

    def _note_timers(self, loop: BatchLoop) -> None:
        timers = loop.committed.timers
        of_operators = [timers.get(node.uid, (None,)) for node in self._topology.operators if node.logic.uses_timers]
        self._context.sleep.note_timers([*chain.from_iterable(of_operators)])

    def _quiet_ms(self) -> int:
        """Returns the time without a commit after which watermarks stand still.

        The query has polled twice by then, and all sources are idle.
        """
        stamped = [node for node in self._topology.nodes if isinstance(node, TimestampsNode)]
        return max([2 * self._batch_interval_ms(), *(node.timestamps.idle_after_ms or 0 for node in stamped)])

    def _may_fall_asleep(self) -> bool:
        context, watch = self._context, self._context.sleep.watch
        if watch is None or not context.sleep.is_wanted or not context.status.is_idle or context.commands.qsize():
            return False
        if watch.unwatched:  # a live rescale, or a new input, may have come since the decision
            return False
        is_settled = watch.is_settled(time.monotonic(), self._quiet_ms())
        return is_settled and context.sleep.reason_to_wake(now_ms()) is None

    def _wait_for_end(
        self, query: JobQuery, progress: ProgressWatch, polls: Sequence[Callable[[], None]], loop: BatchLoop
    ) -> None:
        outcome_box, status = self._context.outcome_box, self._context.status
        # Polling takes a busy driver some milliseconds; only the first commit must be noticed at once.
        while outcome_box.wait(_QUERY_POLL_SECONDS if status.commits else _FIRST_COMMIT_POLL_SECONDS) is None:
            progress.poll()
            for poll in polls:
                poll()
            self._note_idleness(loop)
            self._verify()
            if query.ended_by_itself:
                failure = query.current.exception()
                # A failed batch has set its own, better reason before the query ends.
                outcome_box.give(RunOutcome.by(failure or SparkLostError("the streaming query ended by itself")))
        with contextlib.suppress(Exception):  # Spark may be gone
            progress.poll_once_more()

    def _verify(self) -> None:
        """Answers a live rescale once the attempt works.

        It has committed a batch, or has found no input.
        """
        command, status = self._context.rescaled_by, self._context.status
        if not self.is_unverified or command is None or not (status.commits or status.has_looked_for_input):
            return
        self._is_verified = True
        status.rescale_verified()
        status.answer(CommandResult(command_id=command.id, status="COMPLETED"))
        self._context.reporter.nudge()
        logger.info("the job runs at parallelism %d", self._info.parallelism)

    def _go_down(self, loop: BatchLoop, query: JobQuery, coordinator: Coordinator) -> None:
        """Ends between two batches, never in a commit.

        A batch without a waiting stop is cancelled.
        """
        loop.refuse()
        outcome = self._context.outcome_box.outcome
        if outcome is None or outcome.error is not None or outcome.state is DriverState.STOPPED:
            with contextlib.suppress(Exception):
                self._context.spark.sparkContext.cancelAllJobs()
        loop.halt()
        if outcome is ASLEEP:
            self._note_timers(loop)  # a batch may have been committed beside the checkpoint
        with contextlib.suppress(Exception):  # Spark may be gone
            query.stop()
        coordinator.close(_CLOSE_SECONDS)


def _retention_policy(settings: CheckpointSettings, protected: frozenset[str]) -> RetentionPolicy:
    return RetentionPolicy.for_uploads(settings.timeout_ms, settings.retained_count, protected)


def positions_name(attempt: Attempt, number: int) -> str:
    """Returns the name of Spark's checkpoint directory of an execution.

    The execution is the `number`-th of its attempt.
    """
    return f"positions-{attempt}-{number}" if number else f"positions-{attempt}"


def drain(query: JobQuery, loop: BatchLoop, *, operators: int) -> None:
    """Processes the present input, then fires all event-time timers.

    Event time has come to its end.

    Records that an operator then emits may register timers in downstream operators, and a timer may register another
    timer. So the number of rounds is the number of operators and some more.
    """
    query.drain()
    while loop.fire_timers(wait=True):
        pass
    for _ in range(operators + _ROUNDS_OF_TIMERS):
        if not loop.fire_timers(wait=True, is_at_end=True):
            return
    logger.warning("timers register further timers without end; the remaining timers stay in the savepoint")


def operator_declarations(topology: Topology) -> dict[OperatorUid, OperatorDeclaration]:
    """Returns each operator's declaration, for comparison with later runs."""
    return {
        node.uid: OperatorDeclaration(key_schema=tuple((field.name, str(field.type)) for field in node.key_schema))
        for node in topology.operators
    }


def with_schemas(places: SubtaskPlaces, resume: ResumePoint) -> SubtaskPlaces:
    """Gives every subtask the schema of its whole operator's state."""
    specs = {
        uid: tuple(replace(spec, schema=resume.operators[uid].schema) for spec in subtasks)
        if uid in resume.operators
        else subtasks
        for uid, subtasks in places.specs.items()
    }
    return replace(places, specs=specs)


def with_histories(places: SubtaskPlaces, before: SubtaskPlaces, committed: CommittedState) -> SubtaskPlaces:
    """Gives every subtask the schema of its operator's state."""
    schemas = {
        uid: merge_schemas([before.specs[uid][0].schema, history.schema])
        for uid, history in committed.histories().items()
    }
    specs = {
        uid: tuple(replace(spec, schema=schemas[uid]) for spec in subtasks) for uid, subtasks in places.specs.items()
    }
    return replace(places, specs=specs)


def next_checkpoint_id(
    assignment: Assignment, restored: Manifest | None, existing: Sequence[CheckpointId]
) -> CheckpointId:
    """Returns an unused number for the job's next checkpoint or savepoint.

    The number is unused even if the control plane missed reports.
    """
    used = [*existing, restored.checkpoint_id] if restored is not None else existing
    return CheckpointId(max([assignment.next_checkpoint_id, *(number + 1 for number in used)]))


def existing_checkpoints(store: ObjectStore, layout: Layout) -> list[CheckpointId]:
    """Returns the numbers of the checkpoints with manifests, ascending."""
    manifest = re.compile(re.escape(layout.checkpoints) + r"(\d+)/manifest\.json")
    found = (manifest.fullmatch(info.path) for info in store.list(layout.checkpoints))
    return sorted(CheckpointId(int(match[1])) for match in found if match)

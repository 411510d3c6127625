"""The execution of a declared job.

It fences, restores, and runs batches and checkpoints until something ends it.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import UnsetType

from keyscale.clock import now_ms
from keyscale.identifiers import Attempt, CheckpointId, JobId, OperatorUid
from keyscale.state.doors.commits import OperatorDeclaration, RetentionPolicy
from keyscale.state.doors.objects import ObjectCorruptError, ObjectNotFoundError
from keyscale.state.doors.paths import Layout
from keyscale.state.doors.values import HashId, KeyGroupRange
from keyscale.syncpoint import reach
from keyscale.vocabulary import DriverState

from ...errors import SinkUnavailableError
from ...spark_internals.affinity import Anchor
from ...spark_internals.executor_times import executor_times
from ...spark_internals.idle_queries import IdleQueries
from ..batch.committed_state import CommittedState
from ..batch.job_sources import JobSources
from ..batch.processing_clock import ProcessingClock, beginning_ms
from ..batch.runner import BatchRunner, RunInfo, subtask_specs
from ..batch.shipment import Shipment
from ..batch.source_order import DeclaredSource, order_of, recorded_order
from ..errors import SparkLostError
from ..executor.subtask_jobs import RestoreSubtasks, SubtaskPlaces, check_restored, run_per_subtask
from ..retries import Retries
from .attempt import fall_back, open_attempt, reopen_attempt
from .backlog import Backlog, Reached
from .batch_loop import BatchLoop
from .checkpoints import Checkpoints, SnapshotContext
from .coordinator import Coordinator
from .garbage_watch import GarbageWatch
from .job_query import JobQuery
from .progress_watch import ProgressWatch
from .retention_runner import RetentionRunner
from .run_outcome import RunOutcome
from .store_watch import StoreWatch
from .timekeeper import Timekeeper

if TYPE_CHECKING:
    import queue
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.commits import ResumePoint
    from keyscale.state.doors.objects import ObjectStore

    from ...graph.topology import Topology
    from ...protocol.messages import Assignment, Command
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


class Execution:
    """One topology in one attempt.

    Args:
        context: The driver's objects.
        topology: The job.
        after: A failed execution in this process of the same attempt, if any.
    """

    def __init__(self, context: RunContext, topology: Topology, after: Execution | None = None) -> None:
        self._context = context
        self._topology = topology
        self._after = after
        self._number: int = 0 if after is None else after._number + 1
        self._opened: OpenAttempt | None = None
        self._clock: ProcessingClock | None = None if after is None else after._clock
        self._anchor: Anchor | None = None
        self._checkpoints: Checkpoints | None = None
        assignment = context.assignment
        self._info = RunInfo(
            job_id=JobId(assignment.job_id),
            attempt=Attempt(assignment.attempt),
            parallelism=assignment.spec.parallelism,
            max_parallelism=assignment.spec.max_parallelism,
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
        specs = {node.uid: subtask_specs(node, self._info) for node in topology.operators}
        self._places = SubtaskPlaces(specs, assignment.store_url, str(context.local_root))

    @property
    def has_opened(self) -> bool:
        """Whether the attempt's fence stands, so that another execution can continue it."""
        return self._opened is not None

    def run(self) -> None:
        """Runs until a thread sets the run's outcome.

        Nothing is committed after this returns.

        Raises:
            KeyscaleError: The attempt could not begin.
        """
        shipment = Shipment(self._context.spark.sparkContext, self._topology)
        try:
            self._run(shipment)
        finally:
            shipment.release()

    def _run(self, shipment: Shipment) -> None:
        context = self._context
        opened = self._open()
        logger.info(
            "attempt %d opened (%d times before) after batch %d, restored from %s",
            opened.attempt,
            self._number,
            opened.resume.batch_id,
            opened.manifest.path if opened.manifest else "nothing",
        )
        anchor = self._anchor = Anchor.create(context.spark, self._info.parallelism)
        backlog = self._backlog(opened)
        backlog.start()
        try:
            self._run_batches(opened, anchor, shipment, backlog)
        finally:
            backlog.end()

    def _run_batches(self, opened: OpenAttempt, anchor: Anchor, shipment: Shipment, backlog: Backlog) -> None:
        context = self._context
        opened, committed, runner = self._resumed(opened, anchor, shipment)
        sources = self._sources_of(opened)
        loop = BatchLoop(
            runner.of_query(sources.stream()),
            runner,
            opened,
            committed,
            directory=context.work_dir / positions_name(opened.attempt, self._number),
            status=context.status,
            on_failure=lambda failure: context.outcome_box.give(RunOutcome.by(failure)),
            positions=sources.positions(opened.positions),
            batch_interval_ms=self._batch_interval_ms(),
        )
        backlog.follow(loop.reached)
        with contextlib.closing(
            IdleQueries(context.spark)
        ) as idle:  # before the query, which may find no input at its first poll
            query = JobQuery(loop.start)
            context.status.enter(DriverState.RUNNING)
            logger.info("the query runs")
            coordinator = self._coordinator(opened, anchor, shipment, loop, query)
            coordinator.start()
            watch = StoreWatch(context.store, Layout(self._info.job_id).log_entry(1), context.status)
            watch.start()
            timekeeper = Timekeeper(loop, lambda: context.status.has_looked_for_input)
            if any(node.logic.uses_timers for node in self._topology.operators):
                timekeeper.start()
            progress = ProgressWatch(query, idle, [node.uid for node in sources.nodes], context.status)
            garbage = GarbageWatch(partial(executor_times, context.spark), context.status)
            try:
                self._wait_for_end(query, progress, garbage)
            finally:
                timekeeper.end()
                watch.end()
                self._go_down(loop, query, coordinator)

    def _backlog(self, opened: OpenAttempt) -> Backlog:
        """Returns the count of waiting records, from the restored positions on."""
        resume = opened.resume
        reached = Reached(opened.positions, resume.batch_id - resume.time.time_batches)
        return Backlog(self._sources_of(opened).counting(), reached, self._context.status)

    def _open(self) -> OpenAttempt:
        context, after = self._context, self._after
        if after is None or after._opened is None:
            sinks = [node.uid for node in self._topology.sinks]
            opened = open_attempt(context.store, context.assignment, self._operators, self._declared_sources, sinks)
            self._clock = ProcessingClock(beginning_ms(now_ms(), opened.opened_at_ms))
            reach("run.fenced")
        else:
            if after._anchor is not None:
                after._anchor.release()
            before = after._opened
            opened = self._retries.run(lambda: reopen_attempt(context.store, context.assignment, before))
            reach("run.reopened")
        self._opened = replace(opened, journal=opened.journal.with_retries(self._retries))
        return self._opened

    def _resumed(
        self, opened: OpenAttempt, anchor: Anchor, shipment: Shipment
    ) -> tuple[OpenAttempt, CommittedState, BatchRunner]:
        """Publishes committed output and restores the state.

        It restores from an older checkpoint if the newest is damaged.
        """
        context = self._context
        while True:
            self._places = with_schemas(self._places, opened.resume)
            committed = CommittedState.resumed(
                opened.resume, self._places.specs, opened.positions, opened.journal.last_position
            )
            sources = self._sources_of(opened)
            runner = BatchRunner(
                context.spark,
                self._topology,
                self._info,
                anchor,
                self._places.specs,
                sources=sources,
                shipment=shipment,
                sink_retries=self._sink_retries,
                on_outage=context.status.sink_waited_for,
                clock=self._clock,
            )
            runner.take_over(committed.batch_id, committed.rewinds)
            runner.publish({OperatorUid(uid): token for uid, token in committed.sinks.items()})
            runner.recover(committed.batch_id, committed.rewinds, self._forked_from(opened.manifest))
            try:
                self._restore(anchor, shipment, committed)
            except (ObjectCorruptError, ObjectNotFoundError):
                if opened.manifest is None:
                    raise
                logger.exception("skipping %s: its files are damaged or missing", opened.manifest.path)
                opened = fall_back(context.store, context.assignment, opened)
            else:
                return opened, committed, runner

    def _forked_from(self, manifest: Manifest | None) -> JobId | None:
        if manifest is None:
            return None
        taken_by = manifest.job_id if isinstance(manifest.forked_from, UnsetType) else manifest.forked_from
        return None if taken_by == self._info.job_id else taken_by

    @property
    def _declared_sources(self) -> list[DeclaredSource]:
        return JobSources(self._topology.sources).declared()

    @property
    def _source_uids(self) -> list[OperatorUid]:
        return [node.uid for node in self._topology.sources]

    def _sources_of(self, opened: OpenAttempt) -> JobSources:
        """Returns the sources in the order of the recorded positions."""
        order = order_of(self._source_uids, recorded_order(opened.positions))
        return JobSources.ordered(self._topology.sources, order)

    def _restore(self, anchor: Anchor, shipment: Shipment, committed: CommittedState) -> None:
        """Restores every subtask's state on its host, each key group once.

        A job without state starts immediately: its first batch creates the stores, as on a new executor.
        """
        if not committed.is_empty:
            task = RestoreSubtasks(self._places, shipment.starts(committed))
            results = run_per_subtask(self._context.spark, anchor, "restore", task)
            restored = chain.from_iterable(map(pickle.loads, results.values()))  # from our own tasks
            check_restored(restored, self._places.specs, KeyGroupRange(0, self._info.max_parallelism - 1))
        self._context.status.restored(now_ms(), committed.counters)
        logger.info("all state is restored")
        reach("run.restored")

    def _coordinator(
        self, opened: OpenAttempt, anchor: Anchor, shipment: Shipment, loop: BatchLoop, query: JobQuery
    ) -> Coordinator:
        context, settings = self._context, self._context.settings.newest.spec.checkpoints
        layout = Layout(self._info.job_id)
        existing = existing_checkpoints(context.store, layout)
        snapshots = SnapshotContext(
            spark=context.spark,
            anchor=anchor,
            shipment=shipment,
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
        )

    def _batch_interval_ms(self) -> int:
        """Returns the interval of the job's specification, or else of its script."""
        given_ms = self._context.settings.newest.spec.batch_interval_ms
        return self._topology.batch_interval_ms if given_ms is None else given_ms

    def _wait_for_end(self, query: JobQuery, progress: ProgressWatch, garbage: GarbageWatch) -> None:
        outcome_box, status = self._context.outcome_box, self._context.status
        # Polling takes a busy driver some milliseconds; only the first commit must be noticed at once.
        while outcome_box.wait(_QUERY_POLL_SECONDS if status.commits else _FIRST_COMMIT_POLL_SECONDS) is None:
            progress.look()
            garbage.look()
            if query.ended_by_itself:
                failure = query.current.exception()
                # A failed batch has set its own, better reason before the query ends.
                outcome_box.give(RunOutcome.by(failure or SparkLostError("the streaming query ended by itself")))
        with contextlib.suppress(Exception):  # Spark may be gone
            progress.look_a_last_time()

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

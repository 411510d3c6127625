"""A declared job at work: fence, restore, batches and checkpoints, until something ends it."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from jobs.runtime.affinity import Anchor
from jobs.runtime.anchored import run_anchored
from jobs.runtime.attempt import fall_back, open_attempt, reopen_attempt
from jobs.runtime.backlog import pending_records
from jobs.runtime.batch import BatchRunner, RunFacts, subtask_specs
from jobs.runtime.checkpoints import Checkpoints, SnapshotContext
from jobs.runtime.clock import now_ms
from jobs.runtime.collection import Collector
from jobs.runtime.committed import CommittedState
from jobs.runtime.coordinator import Coordinator
from jobs.runtime.ending import Ending
from jobs.runtime.errors import SparkLostError
from jobs.runtime.patience import Patience
from jobs.runtime.query import BatchLoop
from jobs.runtime.source_order import order_of, recorded_order
from jobs.runtime.sources import JobSources
from jobs.runtime.store_watch import StoreWatch
from jobs.runtime.subtask_jobs import RestoreSubtasks, SubtaskPlaces, check_restored
from jobs.runtime.timekeeper import Timekeeper
from jobs.wire import DriverState
from state.hashing import HashId
from state.identifiers import Attempt, CheckpointId, JobId, OperatorUid
from state.key_groups import KeyGroupRange
from state.layout import Layout
from state.manifest import OperatorFacts
from state.objects import ObjectCorruptError, ObjectNotFoundError, probe
from state.retention import RetentionPolicy
from state.syncpoint import reach

if TYPE_CHECKING:
    import queue
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from jobs.runtime.attempt import OpenAttempt
    from jobs.runtime.ending import EndingBox
    from jobs.runtime.reporter import Reporter
    from jobs.runtime.status import DriverStatus
    from jobs.topology import Topology
    from jobs.wire import Assignment, Command
    from state.log import ResumePoint
    from state.manifest import Manifest
    from state.objects import ObjectStore

_log = logging.getLogger(__name__)

_QUERY_POLL_SECONDS = 1.0
_FIRST_COMMIT_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 30.0
_WAITING_MESSAGE = "Waiting for data to arrive"  # Spark's own words; no flag tells this from a start


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a driver gives to the job that it runs.

    Attributes:
        spark: The session.
        assignment: What to run.
        store: The object store.
        status: Is told of all progress.
        endings: Where the run's end is given.
        commands: What the control plane wants, in order.
        reporter: Carries checkpoint reports.
        work_dir: Of this process only.
        local_root: For local state; the same path on every host, shared by the attempts there.
    """

    spark: SparkSession
    assignment: Assignment
    store: ObjectStore
    status: DriverStatus
    endings: EndingBox
    commands: queue.SimpleQueue[Command | None]
    reporter: Reporter
    work_dir: Path
    local_root: Path


class Execution:
    """One topology in one attempt.

    Args:
        context: What the driver gives.
        topology: The job.
        after: The execution in this process that has failed, if this one goes on with its attempt.
    """

    def __init__(self, context: RunContext, topology: Topology, after: Execution | None = None) -> None:
        self._context = context
        self._topology = topology
        self._after = after
        self._number: int = 0 if after is None else after._number + 1
        self._opened: OpenAttempt | None = None
        self._anchor: Anchor | None = None
        self._checkpoints: Checkpoints | None = None
        assignment = context.assignment
        self._facts = RunFacts(
            job_id=JobId(assignment.job_id),
            attempt=Attempt(assignment.attempt),
            parallelism=assignment.parallelism,
            max_parallelism=assignment.max_parallelism,
            hash_id=HashId(assignment.hash_id),
            store_url=assignment.store_url,
            local_root=context.local_root,
            rocksdb=topology.rocksdb,
            store_outage_max_ms=assignment.checkpoints.store_outage_max_ms,
        )
        self._patience = Patience(
            assignment.checkpoints.store_outage_max_ms, lambda: context.endings.ending is not None
        )
        self._operators = operator_facts(topology)
        specs = {node.uid: subtask_specs(node, self._facts) for node in topology.operators}
        self._places = SubtaskPlaces(specs, assignment.store_url, str(context.local_root))

    @property
    def has_opened(self) -> bool:
        """Whether the attempt's fence stands, so that another execution may go on with it."""
        return self._opened is not None

    def run(self) -> None:
        """Run until the end is given, by this or any other thread; nothing is committed after this returns.

        Raises:
            KeyscaleError: The attempt could not begin.
        """
        context = self._context
        opened = self._open()
        _log.info(
            "attempt %d opened (%d times before) after batch %d, restored from %s",
            opened.attempt,
            self._number,
            opened.resume.batch_id,
            opened.manifest.path if opened.manifest else "nothing",
        )
        anchor = self._anchor = Anchor.create(context.spark, self._facts.parallelism)
        opened, committed, runner = self._resumed(opened, anchor)
        sources = self._sources_of(opened)
        loop = BatchLoop(
            runner.of_query(sources.stream()),
            runner,
            opened,
            committed,
            directory=context.work_dir / positions_name(opened.attempt, self._number),
            status=context.status,
            on_failure=lambda failure: context.endings.give(Ending.by(failure)),
            positions=sources.positions(opened.positions),
        )
        query = loop.start()
        context.status.enter(DriverState.RUNNING)
        _log.info("the query runs")
        coordinator = self._coordinator(opened, anchor, loop, query)
        coordinator.start()
        watch = StoreWatch(context.store, Layout(self._facts.job_id).log_entry(1), context.status)
        watch.start()
        timekeeper = Timekeeper(loop)
        if any(node.logic.uses_timers for node in self._topology.operators):
            timekeeper.start()
        try:
            self._wait_for_end(query)
        finally:
            timekeeper.end()
            watch.end()
            self._go_down(loop, query, coordinator)

    def _open(self) -> OpenAttempt:
        context, after = self._context, self._after
        if after is None or after._opened is None:
            self._patience.wait_out(lambda: probe(context.store))
            opened = open_attempt(context.store, context.assignment, self._operators, self._source_uids)
            reach("run.fenced")
        else:
            if after._anchor is not None:
                after._anchor.release()
            before = after._opened
            opened = self._patience.wait_out(lambda: reopen_attempt(context.store, context.assignment, before))
            reach("run.reopened")
        self._opened = replace(opened, journal=opened.journal.patient(self._patience))
        return self._opened

    def _resumed(self, opened: OpenAttempt, anchor: Anchor) -> tuple[OpenAttempt, CommittedState, BatchRunner]:
        """Publish what is committed and restore the state; from an older checkpoint if files of the newest are damaged."""
        context = self._context
        while True:
            self._places = with_schemas(self._places, opened.resume)
            committed = CommittedState.resumed(
                opened.resume, self._places.specs, opened.positions, opened.journal.last_position
            )
            sources = self._sources_of(opened)
            runner = BatchRunner(
                context.spark, self._topology, self._facts, anchor, self._places.specs, sources=sources
            )
            runner.publish({OperatorUid(uid): token for uid, token in committed.sinks.items()})
            runner.recover(committed.batch_id)
            try:
                self._restore(anchor, committed)
            except (ObjectCorruptError, ObjectNotFoundError):
                if opened.manifest is None:
                    raise
                _log.exception("skipping %s: its files are damaged or missing", opened.manifest.path)
                opened = fall_back(context.store, context.assignment, opened)
            else:
                return opened, committed, runner

    @property
    def _source_uids(self) -> list[OperatorUid]:
        return [node.uid for node in self._topology.sources]

    def _sources_of(self, opened: OpenAttempt) -> JobSources:
        """The sources in the places that the recorded positions give them."""
        order = order_of(self._source_uids, recorded_order(opened.positions))
        return JobSources.ordered(self._topology.sources, order)

    def _restore(self, anchor: Anchor, committed: CommittedState) -> None:
        """Bring every subtask's state to its host, and assert that no key group is missing or doubled.

        A job that has no state yet begins at once: its first batch makes the stores, as it would on an executor that is new.
        """
        if not committed.is_empty:
            task = RestoreSubtasks(self._places, committed.starts)
            results = run_anchored(self._context.spark, anchor, "restore", task)
            restored = chain.from_iterable(pickle.loads(result) for result in results.values())  # noqa: S301 - our own tasks wrote it
            check_restored(restored, self._places.specs, KeyGroupRange(0, self._facts.max_parallelism - 1))
        self._context.status.restored(now_ms())
        _log.info("all state is restored")
        reach("run.restored")

    def _coordinator(self, opened: OpenAttempt, anchor: Anchor, loop: BatchLoop, query: StreamingQuery) -> Coordinator:
        context, settings = self._context, self._context.assignment.checkpoints
        layout = Layout(self._facts.job_id)
        existing = existing_checkpoints(context.store, layout)
        snapshots = SnapshotContext(
            spark=context.spark,
            anchor=anchor,
            facts=self._facts,
            operators=self._operators,
            places=self._places,
            store=context.store,
            layout=layout,
            timeout_ms=settings.timeout_ms,
        )
        before = None if self._after is None else self._after._checkpoints
        self._after = None  # it and those before it are needed no more
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
        collector = Collector(
            context.store,
            self._facts.job_id,
            RetentionPolicy(settings.retained_count, protected=protected),
            allowed=lambda: not context.reporter.has_unsent_reports,
            is_overtaken=opened.journal.is_overtaken,
        )
        return Coordinator(
            checkpoints,
            loop,
            settings,
            context.status,
            context.endings,
            commands=context.commands,
            drain=lambda: drain(query, loop),
            collect=collector.collect_if_due,
            nudge=context.reporter.nudge,
        )

    def _wait_for_end(self, query: StreamingQuery) -> None:
        endings, status = self._context.endings, self._context.status
        seen = status.commits
        # Asking costs a busy driver some milliseconds; only who waits for the first commit needs the answer at once.
        while endings.wait(_QUERY_POLL_SECONDS if status.commits else _FIRST_COMMIT_POLL_SECONDS) is None:
            status.waits_for_input(is_waiting_for_input(query))
            if status.commits != seen:
                seen = status.commits
                status.sources_are_behind(pending_records(query.lastProgress))
            if not query.isActive:
                failure = query.exception()
                # A batch that fails gives its own, better reason; it comes before the query ends.
                endings.give(Ending.by(failure or SparkLostError("the streaming query ended by itself")))

    def _go_down(self, loop: BatchLoop, query: StreamingQuery, coordinator: Coordinator) -> None:
        """End between two batches, never in a commit; a batch that nobody waits for is cut short."""
        loop.refuse()
        ending = self._context.endings.ending
        if ending is None or ending.error is not None or ending.state is DriverState.STOPPED:
            with contextlib.suppress(Exception):
                self._context.spark.sparkContext.cancelAllJobs()
        loop.halt()
        with contextlib.suppress(Exception):  # Spark may be gone, which is an end as well
            query.stop()
        coordinator.close(_CLOSE_SECONDS)


def positions_name(attempt: Attempt, number: int) -> str:
    """Name of Spark's checkpoint directory of an execution, the `number`-th in its attempt."""
    return f"positions-{attempt}-{number}" if number else f"positions-{attempt}"


def drain(query: StreamingQuery, loop: BatchLoop) -> None:
    """Process all input that there is, and fire all timers that are due by then; later ones stay in state."""
    query.processAllAvailable()
    while loop.fire_timers(wait=True):
        pass


def is_waiting_for_input(query: StreamingQuery) -> bool:
    """Whether the query has looked for input since its last batch and found none."""
    return bool(query.status["message"] == _WAITING_MESSAGE)


def operator_facts(topology: Topology) -> dict[OperatorUid, OperatorFacts]:
    """What each operator declares, as a later run is compared with it."""
    return {
        node.uid: OperatorFacts(key_schema=tuple((field.name, str(field.type)) for field in node.key_schema))
        for node in topology.operators
    }


def with_schemas(places: SubtaskPlaces, resume: ResumePoint) -> SubtaskPlaces:
    """Every subtask of an operator reads its state by the schema of the operator as a whole."""
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
    """A number that no checkpoint or savepoint of the job has, also when the control plane has missed some reports."""
    used = [*existing, restored.checkpoint_id] if restored is not None else existing
    return CheckpointId(max([assignment.next_checkpoint_id, *(number + 1 for number in used)]))


def existing_checkpoints(store: ObjectStore, layout: Layout) -> list[CheckpointId]:
    """Numbers of the checkpoints whose manifests are in the store, ascending."""
    manifest = re.compile(re.escape(layout.checkpoints) + r"(\d+)/manifest\.json")
    found = (manifest.fullmatch(info.path) for info in store.list(layout.checkpoints))
    return sorted(CheckpointId(int(match[1])) for match in found if match)

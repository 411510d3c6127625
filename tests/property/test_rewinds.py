"""Random histories of rewinds, deaths and repeated restores; a plain model knows what an attempt resumes from."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.jobs.runtime.batch.source_order import stored_positions
from keyscale.jobs.runtime.driver.attempt import OpenAttempt, open_attempt, reopen_attempt
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import Manifest, SnapshotKind, write_manifest
from keyscale.state.documents.source_positions import write_positions
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout, location_of
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.support.drivers.assignments import assignment as new_assignment

MAIN, OTHER = JobId("main"), JobId("other")
FAR_FUTURE_MS = 4_000_000_000_000
MEMORY = Path("/dev/shm")  # noqa: S108 - if it exists, so that the many fsyncs cost nothing
Trail = tuple[int, ...]
"""The batches that a job has committed: of each, a number that no other batch has."""


class DyingStore(LocalObjectStore):
    """A store whose user may die just before or just after it appends an entry to a log."""

    dies: str | None = None

    def create(self, path: str, data: bytes) -> None:
        dies, self.dies = (self.dies, None) if "/log/" in path else (None, self.dies)
        if dies == "before":
            raise KeyboardInterrupt
        super().create(path, data)
        if dies == "after":
            raise KeyboardInterrupt


@dataclass
class Model:
    """A job as it should be.

    Attributes:
        committed: What its history holds now.
        snapshots: What its snapshots hold, by location; retained ones only.
        done: The restores that were carried out.
        counted: How many batches the job has committed, disowned ones too; it counts a record in each.
    """

    committed: Trail = ()
    snapshots: dict[str, Trail] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    counted: int = 0


@dataclass
class RunningJob:
    """Plays drivers of one job.

    Attributes:
        store: The object store.
        job_id: The job.
        model: The job as it should be.
    """

    store: DyingStore
    job_id: JobId
    model: Model
    opened: OpenAttempt | None = None
    attempt: int = 0
    number: int = 0
    checkpoint_id: int = 0
    trail: Trail = ()
    counters: JobCounters = field(default_factory=JobCounters)

    def start(self, dies: str | None = None, **restore: object) -> None:
        """Starts the next attempt; it may die at its opening."""
        self.attempt += 1
        assignment = new_assignment(
            job_id=self.job_id,
            job_name="job",
            attempt=self.attempt,
            parallelism=1,
            max_parallelism=8,
            artifact_filename="a.py",
            artifact_sha256="0",
            store_url=self.store.url,
        ).model_copy(update=restore)
        self.opened, self.store.dies = None, dies
        try:
            self.opened = open_attempt(self.store, assignment, {})
            again = reopen_attempt(self.store, assignment, self.opened)
            assert (again.manifest, again.resume) == (self.opened.manifest, self.opened.resume)
        except KeyboardInterrupt:
            return
        finally:
            self.store.dies = None
        self.trail = _trail_of(self.opened)
        self.counters = self.opened.resume.counters

    def commit(self) -> None:
        assert self.opened is not None
        self.number += 1
        batch_id = BatchId(len(self.trail))
        # A batch that was planned before runs again as it was planned.
        planned = self.opened.resume.planned
        after = (*self.trail, self.number)
        if planned is not None and self.opened.journal.last_position == self.opened.resume.next_position - 1:
            after = _trail(planned.positions["trail"])
        else:
            self.opened.journal.append(BatchPlanned(Attempt(self.attempt), batch_id, _positions(after)))
        self.counters = self.counters.plus(JobCounters(input_records=1))
        self.model.counted += 1
        self.opened.journal.append(BatchCommitted(Attempt(self.attempt), batch_id, {}, {}, 0, counters=self.counters))
        self.trail = self.model.committed = after

    def plan(self) -> None:
        """Plans a batch and dies before its commit."""
        assert self.opened is not None
        if self.opened.resume.planned is None or len(self.trail) > self.opened.resume.batch_id + 1:
            self.number += 1
            positions = _positions((*self.trail, self.number))
            self.opened.journal.append(BatchPlanned(Attempt(self.attempt), BatchId(len(self.trail)), positions))
        self.opened = None

    def snapshot(self, savepoint_id: str | None) -> str:
        assert self.opened is not None
        self.checkpoint_id += 1
        layout, positions = Layout(self.job_id), None
        if self.trail:
            positions = write_positions(
                self.store,
                layout,
                stored_positions(_positions(self.trail)),
                checkpoint_id=CheckpointId(self.checkpoint_id),
                savepoint_id=savepoint_id,
                unique=str(self.checkpoint_id),
            )
        manifest = Manifest(
            job_id=self.job_id,
            checkpoint_id=CheckpointId(self.checkpoint_id),
            kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
            attempt=Attempt(self.attempt),
            batch_id=BatchId(len(self.trail) - 1),
            log_position=self.opened.journal.last_position,
            max_parallelism=8,
            hash_id=HashId.SPARK,
            created_at_ms=0,
            operators=(),
            positions=positions,
            savepoint_id=savepoint_id,
            counters=self.counters,
        )
        location = location_of(self.store.url, write_manifest(self.store, manifest))
        self.model.snapshots[location] = self.trail
        return location

    def collect(self) -> None:
        facts = gather_facts(self.store, self.job_id, FAR_FUTURE_MS)
        delete_planned(self.store, plan_deletion(facts, RetentionPolicy(retained_count=2)))
        for location in list(self.model.snapshots):
            if self.store.head(location.removeprefix(f"{self.store.url}/")) is None:
                del self.model.snapshots[location]


def _positions(trail: Trail) -> dict[str, str]:
    number = len(trail) - 1
    return {f"offsets/{number}": 'v1\n{"batchWatermarkMs":0}\n-', "trail": ",".join(map(str, trail))}


def _trail(text: str) -> Trail:
    return tuple(int(each) for each in text.split(",") if each)


def _trail_of(opened: OpenAttempt) -> Trail:
    """Returns what an attempt has found committed."""
    trail = _trail(opened.positions.get("trail", ""))
    return trail[: opened.resume.batch_id + 1]


class Rewinds(RuleBasedStateMachine):
    """A job, another one whose snapshots it may start from, and a user who goes back and forth."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        store = DyingStore(Path(self.directory.name))
        other = RunningJob(store, OTHER, Model(), number=1000)
        other.start()
        self.foreign = {}
        for name in ("a", "b"):
            other.commit()
            self.foreign[other.snapshot(name)] = other.trail
        self.job = RunningJob(store, MAIN, Model())
        self.restores: list[tuple[str, dict[str, object], Trail]] = []
        self.hints: list[str] = []
        self.job.start()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()

    @property
    def runs(self) -> bool:
        return self.job.opened is not None

    @precondition(lambda self: self.runs and self.no_plan())
    @rule()
    def commit(self) -> None:
        self.job.commit()

    @precondition(lambda self: self.runs and not self.no_plan())
    @rule()
    def commit_what_was_planned(self) -> None:
        self.job.commit()

    def no_plan(self) -> bool:
        opened = self.job.opened
        return opened is None or opened.resume.planned is None

    @precondition(lambda self: self.runs)
    @rule()
    def die_with_a_plan(self) -> None:
        self.job.plan()

    @precondition(lambda self: self.runs and (self.no_plan() or self.job.trail != _trail_of(self.job.opened)))
    @rule(is_savepoint=st.booleans())
    def snapshot(self, *, is_savepoint: bool) -> None:
        """None is taken while a planned batch has not been committed."""
        taken = self.job.snapshot(f"s{self.job.checkpoint_id}" if is_savepoint else None)
        self.hints.append(taken)

    @precondition(lambda self: self.runs)
    @rule()
    def collect(self) -> None:
        self.job.collect()

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Any hint may be stale, of a disowned checkpoint, or of none at all."""
        known = [None, *(hint for hint in self.hints if hint in self.job.model.snapshots)]
        self.job.start(restore_from=data.draw(st.sampled_from(known)))

    @rule(data=st.data(), dies=st.sampled_from([None, None, "before", "after"]))
    def go_back(self, data: st.DataObject, dies: str | None) -> None:
        """A new restore of a snapshot or of nothing, or an earlier restore once more."""
        snapshots = {**self.job.model.snapshots, **self.foreign}
        target = data.draw(st.sampled_from([None, *snapshots]))
        trail = () if target is None else snapshots[target]
        mode = "stateless" if target is None else "rewind"
        name = f"restore {len(self.restores)}"
        restore = {"restore_mode": mode, "restore_from": target, "restore_id": name}
        self.restores.append((name, restore, trail))
        self.fulfil(dies)

    @precondition(lambda self: self.restores)
    @rule(dies=st.sampled_from([None, None, "before", "after"]))
    def repeat_the_last_restore(self, dies: str | None) -> None:
        """The control plane has not heard that it was fulfilled."""
        name, restore, _ = self.restores[-1]
        target = restore["restore_from"]
        gone = target is not None and target not in self.job.model.snapshots and target not in self.foreign
        if name in self.job.model.done or not gone:
            self.fulfil(dies)

    def fulfil(self, dies: str | None) -> None:
        name, restore, trail = self.restores[-1]
        if dies != "before" and name not in self.job.model.done:
            self.job.model.done.add(name)
            self.job.model.committed = trail
        self.job.start(dies, **restore)

    @invariant()
    def the_attempt_goes_on_from_what_was_committed(self) -> None:
        if hasattr(self, "job") and self.runs:
            assert self.job.trail == self.job.model.committed
            assert self.job.counters.input_records == self.job.model.counted


Rewinds.TestCase.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRewinds = Rewinds.TestCase

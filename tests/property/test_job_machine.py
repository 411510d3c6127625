"""Random histories of a whole job's state, compared with plain dicts.

They have every kind of state, TTL, a clock that advances, checkpoints, savepoints, tasks and drivers that die, restores
on other hosts, rescales to any parallelism, trims and merges, rewinds, and clean-up. All of this uses the real RocksDB,
hard links, range deletes, changelogs, manifests and commit log.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyscale.identifiers import BatchId
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.errors import StateError
from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.ttl import Cleanup, IncrementalCleanup, Ttl, UpdateType
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.contract.keyed_store import ACCUMULATOR, Mean
from tests.property.histories import EXAMPLES, SCRATCH
from tests.support.state.eager_filters import eager_filters
from tests.support.state.state_job import ALWAYS, MAX_PARALLELISM, StateJob, group_of

TTL_MS = 100
KEY_COUNT = 5  # few, so that steps often use the same key
FAR_FUTURE_MS = 4_000_000_000_000
SWEEP = Cleanup(incremental=IncrementalCleanup(600))  # a step at every access
KEYS = st.integers(0, KEY_COUNT - 1)
NAMES = st.sampled_from(["x", "y", "\0", ""])
NUMBERS = st.integers(-5, 5)
PARALLELISM = st.sampled_from([1, 2, 2, 3, 3, 4]) | st.integers(1, MAX_PARALLELISM)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), KEYS, NUMBERS | st.none()),
        st.tuples(st.just("insert"), KEYS, NUMBERS),
        st.tuples(st.just("put"), KEYS, st.tuples(NAMES, NUMBERS | st.none())),
        st.tuples(st.just("remove"), KEYS, NAMES),
        st.tuples(st.just("clear map"), KEYS, st.none()),
        st.tuples(st.just("append"), KEYS, st.lists(NUMBERS, max_size=3)),
        st.tuples(st.just("replace"), KEYS, st.lists(NUMBERS, max_size=3)),
        st.tuples(st.just("reduce"), KEYS, NUMBERS),
        st.tuples(st.just("aggregate"), KEYS, NUMBERS),
        st.tuples(st.just("timer"), KEYS, st.integers(0, 300)),
        st.tuples(st.just("read"), KEYS, st.none()),
    ),
    min_size=1,
    max_size=12,
)


VALUE = ValueStateDescriptor("value", pa.int64(), Ttl(TTL_MS, cleanup=SWEEP))
MAP = MapStateDescriptor(
    "map",
    pa.string(),
    pa.int64(),
    Ttl(TTL_MS, UpdateType.ON_READ_AND_WRITE, time_domain=TimeDomain.EVENT, cleanup=SWEEP),
)
LIST = ListStateDescriptor("list", pa.int64())
REDUCING = ReducingStateDescriptor("max", pa.int64(), max, Ttl(TTL_MS, cleanup=SWEEP))
AGGREGATING = AggregatingStateDescriptor("mean", ACCUMULATOR, Mean())


class Model:
    """The expected state by key; entries with a TTL have the time of their last access."""

    def __init__(self):
        self.value, self.map, self.list, self.max, self.mean = {}, {}, {}, {}, {}
        self.timers = set()


class Subtask:
    """A subtask's open state and its part of the model."""

    def __init__(self, store, model, clock):
        self.keyed, self.model, self.clock = store.keyed, model, clock
        self.value, self.map = self.keyed.state(VALUE), self.keyed.state(MAP)
        self.list, self.max = self.keyed.state(LIST), self.keyed.state(REDUCING)
        self.mean, self.timers = self.keyed.state(AGGREGATING), self.keyed.timers("timers")

    def alive(self, entry, *, event=False):
        now = self.clock.event_time_ms if event else self.clock.processing_time_ms
        return entry is not None and entry[1] + TTL_MS > now

    def play(self, operation, key, argument):  # noqa: C901 - one branch an operation
        self.keyed.set_current_key(group_of(key), (key,))
        now, event = self.clock.processing_time_ms, self.clock.event_time_ms
        model = self.model
        match operation:
            case "update":
                self.value.update(argument)
                model.value[key] = None if argument is None else (argument, now)
            case "insert":
                column = pa.array([key], pa.int64())
                is_new = not self.alive(model.value.get(key))
                assert self.value.insert_if_absent_many(np.array([group_of(key)]), [column], argument).tolist() == [
                    is_new
                ]
                if is_new:
                    model.value[key] = (argument, now)
            case "put":
                self.map.put(*argument)
                model.map.setdefault(key, {})[argument[0]] = (argument[1], event)
            case "remove":
                self.map.remove(argument)
                model.map.get(key, {}).pop(argument, None)
            case "clear map":
                self.map.clear()
                model.map.pop(key, None)
            case "append":
                self.list.add_all(argument)
                model.list[key] = [*model.list.get(key, []), *argument]
            case "replace":
                self.list.update(argument)
                model.list[key] = list(argument)
            case "reduce":
                self.max.add(argument)
                before = model.max.get(key)
                model.max[key] = (max(argument, before[0]) if self.alive(before) else argument, now)
            case "aggregate":
                self.mean.add(argument)
                model.mean.setdefault(key, []).append(argument)
            case "timer":
                self.timers.register(argument)
                model.timers.add((argument, key))
            case "read":
                self.read(key)

    def read(self, key):
        """Compares all of a key's state; reading a map restarts its entries' time."""
        model = self.model
        self.keyed.set_current_key(group_of(key), (key,))
        entry = model.value.get(key)
        assert self.value.value() == (entry[0] if self.alive(entry) else None)
        entries = {name: each for name, each in model.map.get(key, {}).items() if self.alive(each, event=True)}
        assert list(self.map.items()) == sorted((name, each[0]) for name, each in entries.items())
        model.map[key] = {name: (each[0], self.clock.event_time_ms) for name, each in entries.items()}
        assert self.list.get() == model.list.get(key, [])
        entry = model.max.get(key)
        assert self.max.get() == (entry[0] if self.alive(entry) else None)
        numbers = model.mean.get(key)
        assert self.mean.get() == (sum(numbers) / len(numbers) if numbers else None)


class JobMachine(RuleBasedStateMachine):
    """A job, its model, and the expected content of its savepoints."""

    @initialize(parallelism=PARALLELISM)
    def start(self, parallelism):
        self.filters = eager_filters(judged_lookups=50)
        self.filters.__enter__()
        self.directory = Path(tempfile.mkdtemp(dir=SCRATCH))
        self.hosts = 0
        self.job = StateJob(LocalObjectStore(self.directory / "store"), self.directory / "host 0", policy=ALWAYS)
        self.clock = self.job.clock
        self.clock.advance(processing_time_ms=1000, event_time_ms=1000)
        self.model = Model()
        self.savepoints = {}
        self.job.start(parallelism)

    def task(self, index, batch_id, model, operations, until_ms):
        """Runs one task if the runtime would start it; returns its changelog."""
        job = self.job
        keys = {key for _, key, _ in operations} | {key for at, key in model.timers if at <= until_ms}
        if not job.own(index, dict.fromkeys(keys, 1)):
            return None
        with job.open(index) as store:
            subtask = Subtask(store, model, self.clock)
            for operation, key, argument in operations:
                if key in job.own(index, {key: 1}):
                    subtask.play(operation, key, argument)
            fired = {(timer.timestamp_ms, timer.key[0]) for timer in subtask.timers.due(until_ms)}
            expected = {timer for timer in model.timers if timer[0] <= until_ms and job.own(index, {timer[1]: 1})}
            assert fired == expected
            model.timers -= expected
            return store.finish_batch(batch_id, uuid.uuid4().hex)

    @rule(
        operations=OPERATIONS,
        until_ms=st.sampled_from([-1, 50, 200]),
        passed_ms=st.sampled_from([0, 0, 1, 40, 99, 100]),
        event_passed_ms=st.sampled_from([0, 0, 60, 100]),
    )
    def batch(self, operations, until_ms, passed_ms=0, event_passed_ms=0):
        self.clock.advance(
            processing_time_ms=self.clock.processing_time_ms + passed_ms,
            event_time_ms=self.clock.event_time_ms + event_passed_ms,
        )
        job, batch_id = self.job, BatchId(self.job.batch_id + 1)
        job.position = job.log.append(job.position, BatchPlanned(job.attempt, batch_id, {}))
        tasks = [self.task(index, batch_id, self.model, operations, until_ms) for index in range(job.parallelism)]
        job.commit(batch_id, tasks)

    @rule(operations=OPERATIONS, tasks=st.integers(0, 3), mid_task=st.booleans())
    def batch_that_is_lost(self, operations, tasks, mid_task):
        """Runs some tasks to their end, perhaps one to its middle, and commits nothing."""
        job, batch_id = self.job, BatchId(self.job.batch_id + 1)
        model = copy.deepcopy(self.model)
        for index in range(min(tasks, job.parallelism)):
            self.task(index, batch_id, model, operations, 300)
        if mid_task:
            store = job.open(0)
            Subtask(store, model, self.clock).play("update", next(iter(job.own(0, dict.fromkeys(range(200), 1)))), 99)
            store.abandon()

    @rule(is_savepoint=st.booleans())
    def snapshot(self, is_savepoint):
        if is_savepoint and len(self.savepoints) < 3:
            manifest, _ = self.job.checkpoint(f"savepoint-{len(self.savepoints)}")
            self.savepoints[manifest.path] = copy.deepcopy(self.model)
        else:
            self.job.checkpoint()

    @rule(begins=st.booleans())
    def trim_or_merge(self, begins):
        """Finishes a consolidation that a checkpoint started, perhaps batches ago; the subtask's next task uses it."""
        if begins:
            self.job.checkpoint()
        with contextlib.suppress(StateError):  # its snapshot was removed with newer ones, or with the attempt
            if self.job.consolidate():
                event("consolidated")

    @rule(parallelism=PARALLELISM, moves=st.booleans())
    def another_driver(self, parallelism, moves):
        """Restarts the job from the object store, perhaps on a host without local files."""
        if moves:
            self.hosts += 1
            self.job.local_root = self.directory / f"host {self.hosts}"
        self.job.recover(parallelism)

    @rule(parallelism=PARALLELISM, prepares=st.booleans(), batches=st.lists(OPERATIONS, max_size=2))
    def live_rescale(self, parallelism, prepares, batches):
        """Rescales in the same driver; files that were prepared some batches ago catch up in their next task."""
        if prepares:
            ahead = self.job.ahead(parallelism)
            for index in range(parallelism):
                ahead.open(index).close()
        for operations in batches:
            self.batch(operations, 50)
        self.job.rescale_live(parallelism)

    @precondition(lambda self: self.savepoints)
    @rule(parallelism=PARALLELISM, data=st.data())
    def rewind(self, parallelism, data):
        path = data.draw(st.sampled_from(sorted(self.savepoints)))
        self.job.start(parallelism, path, rewinds=True)
        self.model = copy.deepcopy(self.savepoints[path])

    @rule(compacts=st.booleans(), cleans_up=st.booleans())
    def maintain(self, compacts, cleans_up):
        if compacts:
            for index in range(self.job.parallelism):
                with self.job.open(index) as store:
                    store.engine.compact()
        if cleans_up:
            facts = gather_facts(self.job.store, self.job.job_id, FAR_FUTURE_MS)
            delete_planned(self.job.store, plan_deletion(facts, RetentionPolicy(retained_count=1)))

    @rule()
    def read_all(self):
        """Commits a batch that reads every key; then compares all stored entries, by key group."""
        self.batch([("read", key, None) for key in range(KEY_COUNT)], -1)
        found = {"value": {}, "list": {}, "max": {}, "mean": {}}
        for index in range(self.job.parallelism):
            with self.job.open(index) as store:
                subtask = Subtask(store, self.model, self.clock)
                for name, entries in found.items():
                    for stored, value in subtask.keyed.dump(name):
                        assert stored.key_group in self.job.spec(index).key_group_range
                        entries.setdefault(stored.key[0], []).append(value)
                alive = subtask.alive
        model = self.model
        assert found["value"] == {key: [each[0]] for key, each in model.value.items() if alive(each)}
        assert found["max"] == {key: [each[0]] for key, each in model.max.items() if alive(each)}
        assert found["list"] == {key: each for key, each in model.list.items() if each}
        sums = {key: [{"sum": sum(each), "count": len(each)}] for key, each in model.mean.items()}
        assert found["mean"] == sums

    @invariant()
    def every_key_group_has_one_owner(self):
        job = getattr(self, "job", None)
        if job is not None:
            own = [job.spec(index).key_group_range for index in range(job.parallelism)]
            assert [group for each in own for group in range(each.start, each.end + 1)] == list(range(MAX_PARALLELISM))

    def teardown(self):
        if hasattr(self, "job"):
            self.read_all()
            shutil.rmtree(self.directory)
            self.filters.__exit__(None, None, None)


JobMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=EXAMPLES,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestJobMachine = JobMachine.TestCase

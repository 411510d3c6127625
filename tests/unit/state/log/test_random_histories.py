"""Random histories of a job's state, with faults and rescales, compared with a plain dict."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyscale.identifiers import BatchId, CheckpointId, JobId
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.property.histories import EXAMPLES, SCRATCH
from tests.support.state.eager_filters import eager_filters
from tests.support.state.state_job import StateJob, add, add_many

if TYPE_CHECKING:
    from collections.abc import Callable

FAR_FUTURE_MS = 4_000_000_000_000
BATCHES = st.dictionaries(st.integers(0, 30), st.integers(1, 9), max_size=8)
PARALLELISMS = st.integers(1, 5)


class StateHistory(RuleBasedStateMachine):
    """The actions of a driver, its tasks, hosts and users on a job's state, in any order."""

    @initialize(parallelism=PARALLELISMS)
    def begin(self, parallelism: int) -> None:
        self.filters = eager_filters(judged_lookups=50)
        self.filters.__enter__()
        self.root = Path(tempfile.mkdtemp(dir=SCRATCH))
        self.job = StateJob(LocalObjectStore(self.root / "store"), self.root / "local")
        self.job.start(parallelism)
        self.savepoints: list[tuple[str | None, dict[int, int]]] = [(None, {}), self.of_another_job()]

    def of_another_job(self) -> tuple[str, dict[int, int]]:
        other = StateJob(self.job.store, self.root / "elsewhere", job_id=JobId("other"))
        other.start(2)
        other.run_batch({1: 1, 31: 5})
        return other.checkpoint("given")[0].path, dict(other.reference)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)
            self.filters.__exit__(None, None, None)

    @rule(increments=BATCHES, adds=st.sampled_from([add, add_many]))
    def batch(self, increments: dict[int, int], adds: Callable[..., None]) -> None:
        self.job.adds = adds
        self.job.run_batch(increments)

    @rule(increments=BATCHES, finished=st.integers(0, 4), clean=st.booleans(), adds=st.sampled_from([add, add_many]))
    def batch_that_is_never_committed(
        self, increments: dict[int, int], finished: int, clean: bool, adds: Callable[..., None]
    ) -> None:
        for index in range(min(finished, self.job.parallelism)):
            store = self.job.open(index)
            adds(store, self.job.own(index, increments))
            store.finish_batch(BatchId(self.job.batch_id + 1), uuid.uuid4().hex)
            if clean:
                store.close()
            else:
                store.abandon()

    @rule()
    def checkpoint(self) -> None:
        self.job.checkpoint()

    @rule()
    def checkpoint_that_is_never_published(self) -> None:
        for index in range(self.job.parallelism):
            with self.job.open(index) as store:
                store.snapshot(CheckpointId(self.job.next_checkpoint_id))
        self.job.next_checkpoint_id += 1

    @rule()
    def savepoint(self) -> None:
        manifest, _ = self.job.checkpoint(f"savepoint-{self.job.next_checkpoint_id}")
        self.savepoints.append((manifest.path, dict(self.job.reference)))

    @rule(parallelism=PARALLELISMS)
    def restart(self, parallelism: int) -> None:
        """After a crash or for a rescale: the state is restored from the store alone."""
        self.job.recover(parallelism)

    @rule(data=st.data(), parallelism=PARALLELISMS)
    def rewind(self, data: st.DataObject, parallelism: int) -> None:
        """The user rewinds to a savepoint of this or another job or to nothing, or goes forward again."""
        path, reference = data.draw(st.sampled_from(self.savepoints))
        self.job.start(parallelism, path, rewinds=True)
        self.job.reference = dict(reference)

    @rule()
    def lose_the_host(self) -> None:
        shutil.rmtree(self.root / "local", ignore_errors=True)

    @rule()
    def collect(self) -> None:
        facts = gather_facts(self.job.store, self.job.job_id, FAR_FUTURE_MS)
        delete_planned(self.job.store, plan_deletion(facts, RetentionPolicy(retained_count=1)))

    @invariant()
    def the_state_is_what_was_committed(self) -> None:
        if hasattr(self, "job"):
            assert self.job.dump() == self.job.reference


StateHistory.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStateHistory = StateHistory.TestCase

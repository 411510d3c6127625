"""Checkpoints by their settings, one after another, and their failures; with doubles of all that they use."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.jobs.protocol.messages import CheckpointSettings, Command, CommandKind, DriverState
from keyscale.jobs.runtime.driver.coordinator import CheckpointSchedule, Coordinator
from keyscale.jobs.runtime.driver.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.run_outcome import RunOutcome, RunOutcomeBox
from keyscale.jobs.runtime.errors import CheckpointNotBegunError, CheckpointTimeoutError
from keyscale.state.objects.errors import StoreUnavailableError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Manifest:
    """The fields of a manifest that the coordinator reads."""

    state_size_bytes = 77
    checkpoint_id = 1


class Completed:
    """A completed checkpoint."""

    location = "file:///store/job/chk-1/manifest.json"
    manifest = Manifest()


@dataclass
class ScriptedCheckpoints:
    """Fails with the given failures, one after the other, then never; asserts that no two are taken at once."""

    failures: list[Exception] = field(default_factory=list)
    fails_always: bool = False
    taken: int = 0
    running: threading.Lock = field(default_factory=threading.Lock)

    def take(self, savepoint_id: str | None = None, then: object = None) -> Completed:  # noqa: ARG002 - as the real one
        assert self.running.acquire(blocking=False), "two checkpoints at once"
        try:
            self.taken += 1
            if self.fails_always:
                raise StoreUnavailableError("away")
            if self.failures:
                raise self.failures.pop(0)
            return Completed()
        finally:
            self.running.release()

    def find_savepoint(self, savepoint_id: str) -> None:  # noqa: ARG002 - as the real one
        return None


class Loop:
    """A loop whose attempt is never overtaken."""

    def is_overtaken(self) -> bool:
        return False


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.checkpoints = ScriptedCheckpoints()
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.status = DriverStatus()
        self.outcome_box = RunOutcomeBox()
        self.retention_runs = 0
        self.drains: list[str] = []
        self.coordinator = Coordinator(
            cast("Any", self.checkpoints),
            cast("Any", Loop()),
            CheckpointSettings(interval_ms=100, **settings),
            self.status,
            self.outcome_box,
            commands=self.commands,
            drain=lambda: self.drains.append("drained"),
            read_on=lambda: self.drains.append("reads on"),
            run_retention=self._count_retention,
            nudge=lambda: None,
        )

    def _count_retention(self) -> None:
        self.retention_runs += 1


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.coordinator.close(30)


def started(rigs: list[Rig], checkpoints: ScriptedCheckpoints | None = None, **settings: Any) -> Rig:
    rig = Rig(**settings)
    rig.checkpoints = checkpoints or rig.checkpoints
    rig.coordinator._checkpoints = cast("Any", rig.checkpoints)
    rigs.append(rig)
    rig.coordinator.start()
    return rig


def test_failed_checkpoints_are_tolerated_and_taken_again(rigs: list[Rig]) -> None:
    failing = ScriptedCheckpoints([StoreUnavailableError("away"), CheckpointTimeoutError("slow")])
    rig = started(rigs, failing, tolerable_failed_checkpoints=2)
    wait_until(lambda: rig.retention_runs, what="a checkpoint that completes")
    assert failing.taken == 3
    assert rig.outcome_box.outcome is None


def test_a_checkpoint_that_could_not_begin_is_not_counted(rigs: list[Rig]) -> None:
    waiting = ScriptedCheckpoints([CheckpointNotBegunError("a long batch") for _ in range(5)])
    rig = started(rigs, waiting, tolerable_failed_checkpoints=0)
    wait_until(lambda: rig.retention_runs, what="a checkpoint that completes")
    assert waiting.taken == 6
    assert rig.outcome_box.outcome is None


def test_one_failure_more_than_tolerated_ends_the_run(rigs: list[Rig]) -> None:
    rig = started(rigs, ScriptedCheckpoints(fails_always=True), tolerable_failed_checkpoints=2)
    wait_until(lambda: rig.outcome_box.outcome is not None, what="the end of the run")
    outcome = rig.outcome_box.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.code == "CHECKPOINT_FAILURES_EXCEEDED"
    assert "STATE_STORE_UNAVAILABLE" in outcome.failure.message
    assert rig.checkpoints.taken == 3
    assert rig.status.heartbeat().metrics.state_bytes == 0, "nothing that failed is told as durable"


def test_the_failure_of_a_requested_checkpoint_is_returned_and_not_counted(rigs: list[Rig]) -> None:
    rig = Rig(tolerable_failed_checkpoints=0)
    rig.coordinator._settings = CheckpointSettings(interval_ms=3_600_000, tolerable_failed_checkpoints=0)
    rig.checkpoints.failures.append(StoreUnavailableError("away"))
    rigs.append(rig)
    rig.coordinator.start()
    rig.commands.put(Command(id="c", kind=CommandKind.CHECKPOINT))
    wait_until(lambda: rig.status.heartbeat().results, what="the answer")
    (result,) = rig.status.heartbeat().results
    assert result.status == "FAILED"
    assert result.failure is not None
    assert result.failure.code == "STATE_STORE_UNAVAILABLE"
    assert rig.outcome_box.outcome is None


def test_a_job_reads_on_if_its_savepoint_fails_after_a_drain(rigs: list[Rig]) -> None:
    rig = Rig()
    rig.coordinator._settings = CheckpointSettings(interval_ms=3_600_000)
    rig.checkpoints.failures.append(StoreUnavailableError("away"))
    rigs.append(rig)
    rig.coordinator.start()
    rig.commands.put(Command(id="s", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s", drain=True))
    wait_until(lambda: rig.status.heartbeat().results, what="the answer")
    (result,) = rig.status.heartbeat().results
    assert result.status == "FAILED"
    assert rig.drains == ["drained", "reads on"]
    assert rig.status.state is DriverState.RUNNING
    assert rig.outcome_box.outcome is None


def test_the_minimum_pause_after_a_checkpoint_is_kept(rigs: list[Rig]) -> None:
    paused, other = started(rigs, min_pause_ms=3_600_000), started(rigs)
    wait_until(lambda: paused.retention_runs, what="the first checkpoint")
    taken = other.checkpoints.taken
    wait_until(lambda: other.checkpoints.taken > taken + 3, what="checkpoints of the same interval without a pause")
    assert paused.checkpoints.taken == 1


def test_a_closed_coordinator_does_not_end_the_run() -> None:
    rig = Rig(tolerable_failed_checkpoints=0)
    entered, go_on = threading.Event(), threading.Event()

    class Held(ScriptedCheckpoints):
        def take(self, savepoint_id: str | None = None) -> Completed:  # noqa: ARG002 - as the real one
            entered.set()
            go_on.wait(60)
            raise StoreUnavailableError("away")

    rig.coordinator._checkpoints = cast("Any", Held())
    rig.coordinator.start()
    entered.wait(60)
    rig.coordinator.close(0)
    go_on.set()
    rig.coordinator.close(60)
    assert rig.outcome_box.outcome is None
    rig.outcome_box.give(RunOutcome(DriverState.STOPPED))


SCHEDULE = CheckpointSettings(interval_ms=10_000, min_pause_ms=3_000, tolerable_failed_checkpoints=2)


def test_the_first_checkpoint_is_due_an_interval_after_the_start() -> None:
    assert CheckpointSchedule(started_at=100).due_at(SCHEDULE) == 110


def test_after_a_quick_checkpoint_the_next_is_due_an_interval_after_its_start() -> None:
    assert CheckpointSchedule(started_at=0).triggered(100).completed(101).due_at(SCHEDULE) == 110


def test_after_a_slow_checkpoint_the_next_is_due_a_pause_after_its_end() -> None:
    assert CheckpointSchedule(started_at=0).triggered(100).completed(118).due_at(SCHEDULE) == 121


def test_failures_are_tolerated_up_to_the_limit_and_a_success_resets_the_count() -> None:
    schedule = CheckpointSchedule(started_at=0).failed(1).failed(2)
    assert not schedule.has_failed_too_often(SCHEDULE)
    assert schedule.failed(3).has_failed_too_often(SCHEDULE)
    assert not schedule.completed(3).failed(4).has_failed_too_often(SCHEDULE)


@given(
    started=st.floats(0, 1e6), lasted=st.floats(0, 1e5), interval=st.integers(100, 10**6), pause=st.integers(0, 10**6)
)
def test_two_checkpoints_never_overlap(started: float, lasted: float, interval: int, pause: int) -> None:
    settings = CheckpointSettings(interval_ms=interval, min_pause_ms=pause)
    ended = started + lasted
    due = CheckpointSchedule(started_at=0).triggered(started).completed(ended).due_at(settings)
    assert due >= ended
    assert due >= started + interval / 1000

"""Checkpoints by their settings, one after another, and what their failures lead to; with doubles for all that does the work."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from jobs.runtime.coordinator import Coordinator
from jobs.runtime.ending import Ending, EndingBox
from jobs.runtime.errors import CheckpointTimeoutError
from jobs.runtime.status import DriverStatus
from jobs.wire import CheckpointSettings, Command, CommandKind, DriverState
from state.objects import StoreUnavailableError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Manifest:
    """As much of one as the coordinator reads."""

    state_size_bytes = 77
    checkpoint_id = 1


class Completed:
    """A completed checkpoint."""

    location = "file:///store/job/chk-1/manifest.json"
    manifest = Manifest()


@dataclass
class ScriptedCheckpoints:
    """Fails as told, one failure after the other, then never; never taken twice at once."""

    failures: list[Exception] = field(default_factory=list)
    fails_always: bool = False
    taken: int = 0
    running: threading.Lock = field(default_factory=threading.Lock)

    def take(self, savepoint_id: str | None = None) -> Completed:  # noqa: ARG002 - as the real one
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
    """Batches that nobody overtakes."""

    def is_overtaken(self) -> bool:
        return False


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.checkpoints = ScriptedCheckpoints()
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.status = DriverStatus()
        self.endings = EndingBox()
        self.collected = 0
        self.coordinator = Coordinator(
            cast("Any", self.checkpoints),
            cast("Any", Loop()),
            CheckpointSettings(interval_ms=100, **settings),
            self.status,
            self.endings,
            commands=self.commands,
            drain=lambda: None,
            collect=self._collect,
            nudge=lambda: None,
        )

    def _collect(self) -> None:
        self.collected += 1


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


def test_failed_checkpoints_are_tolerated_and_taken_again_by_themselves(rigs: list[Rig]) -> None:
    failing = ScriptedCheckpoints([StoreUnavailableError("away"), CheckpointTimeoutError("slow")])
    rig = started(rigs, failing, tolerable_failed_checkpoints=2)
    wait_until(lambda: rig.collected, what="a checkpoint that completes")
    assert failing.taken == 3
    assert rig.endings.ending is None
    assert rig.status.heartbeat().metrics.state_bytes == 77


def test_one_failure_more_than_is_tolerated_ends_the_run(rigs: list[Rig]) -> None:
    rig = started(rigs, ScriptedCheckpoints(fails_always=True), tolerable_failed_checkpoints=2)
    wait_until(lambda: rig.endings.ending is not None, what="the end of the run")
    ending = rig.endings.ending
    assert ending is not None
    assert ending.failure is not None
    assert ending.failure.code == "CHECKPOINT_FAILURES_EXCEEDED"
    assert "STATE_STORE_UNAVAILABLE" in ending.failure.message
    assert rig.checkpoints.taken == 3
    assert rig.status.heartbeat().metrics.state_bytes == 0, "nothing that failed is told as durable"


def test_a_checkpoint_that_was_asked_for_and_failed_is_its_caller_s_matter(rigs: list[Rig]) -> None:
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
    assert rig.endings.ending is None


def test_the_pause_after_a_checkpoint_is_kept(rigs: list[Rig]) -> None:
    paused, other = started(rigs, min_pause_ms=3_600_000), started(rigs)
    wait_until(lambda: paused.collected, what="the first checkpoint")
    taken = other.checkpoints.taken
    wait_until(lambda: other.checkpoints.taken > taken + 3, what="checkpoints of the same interval without a pause")
    assert paused.checkpoints.taken == 1


def test_what_comes_of_a_closed_coordinator_ends_nobody_s_run() -> None:
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
    assert rig.endings.ending is None
    rig.endings.give(Ending(DriverState.STOPPED))

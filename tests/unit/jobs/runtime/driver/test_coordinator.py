"""Checkpoints by their settings, one after another, and their failures; with doubles of all that they use."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyscale.jobs.runtime.driver.coordinator
from keyscale import log_lines
from keyscale.jobs.protocol.messages import Command
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.coordinator import CheckpointSchedule, Coordinator
from keyscale.jobs.runtime.driver.run_outcome import ASLEEP, RunOutcome, RunOutcomeBox
from keyscale.jobs.runtime.errors import CheckpointNotBegunError, CheckpointTimeoutError, RunEndedError
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.vocabulary import CommandKind, DriverState
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyscale.jobs.protocol.messages import CommandResult


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
    savepoints: list[str | None] = field(default_factory=list)
    known: dict[str, Completed] = field(default_factory=dict)

    def take(
        self, savepoint_id: str | None = None, then: Callable[[Completed], object] = lambda _completed: None
    ) -> Completed:
        assert self.running.acquire(blocking=False), "two checkpoints at once"
        try:
            self.taken += 1
            self.savepoints.append(savepoint_id)
            if self.fails_always:
                raise StoreUnavailableError("away")
            if self.failures:
                raise self.failures.pop(0)
            completed = Completed()
            then(completed)
            return completed
        finally:
            self.running.release()

    def find_savepoint(self, savepoint_id: str) -> Completed | None:
        return self.known.get(savepoint_id)


class Loop:
    """A loop whose attempt is not overtaken unless a test says so; notes what ends its batches."""

    def __init__(self) -> None:
        self.answers: list[bool | Exception] = []
        self.asked = 0
        self.calls: list[str] = []

    def is_overtaken(self) -> bool:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer

    def halt(self) -> None:
        self.calls.append("halt")

    def refuse(self) -> None:
        self.calls.append("refuse")


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.checkpoints = ScriptedCheckpoints()
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.status = DriverStatus()
        self.outcome_box = RunOutcomeBox()
        self.loop = Loop()
        self.retention_runs = self.nudges = 0
        self.drains: list[str] = []
        self.settings = CheckpointSettings(interval_ms=100).model_copy(update=settings)
        self.looks_at_settings = 0
        self.coordinator = Coordinator(
            cast("Any", self.checkpoints),
            cast("Any", self.loop),
            lambda: self.settings,
            self.status,
            self.outcome_box,
            commands=self.commands,
            drain=lambda: self.drains.append("drained"),
            read_on=lambda: self.drains.append("reads on"),
            run_retention=self._count_retention,
            nudge=self._count_nudge,
            follow_settings=self._look_at_settings,
        )

    def _count_retention(self) -> None:
        self.retention_runs += 1

    def _count_nudge(self) -> None:
        self.nudges += 1

    def _look_at_settings(self) -> None:
        self.looks_at_settings += 1

    def execute(self, kind: CommandKind, **fields: Any) -> CommandResult:
        """Executes a command on the test's thread, and returns its result."""
        self.settings = CheckpointSettings(interval_ms=3_600_000)
        self.commands.put(Command(id="command", kind=kind, **fields))
        self.commands.put(None)
        self.coordinator._run()
        (result,) = self.status.heartbeat().results
        assert result.command_id == "command"
        assert self.nudges == 1, "the control plane is told at once"
        return result


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


def test_settings_that_change_are_followed_from_the_next_look_on(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyscale.jobs.runtime.driver.coordinator, "_FENCE_CHECK_SECONDS", 0.05)
    rig = started(rigs, interval_ms=3_600_000)
    wait_until(lambda: rig.looks_at_settings, what="a look at the settings")
    assert rig.checkpoints.taken == 0
    rig.settings = CheckpointSettings(interval_ms=100)
    wait_until(lambda: rig.retention_runs, what="a checkpoint by the new interval")


def test_failed_checkpoints_are_tolerated_and_taken_again(rigs: list[Rig]) -> None:
    failing = ScriptedCheckpoints([StoreUnavailableError("away"), CheckpointTimeoutError("slow")])
    rig = started(rigs, failing, tolerable_failed_checkpoints=2)
    wait_until(lambda: rig.retention_runs, what="a checkpoint that completes")
    assert failing.taken == 3
    assert rig.outcome_box.outcome is None


def test_a_checkpoint_that_could_not_begin_is_not_counted(rigs: list[Rig]) -> None:
    long_batch = [CheckpointNotBegunError("a long batch") for _ in range(5)]
    waiting = ScriptedCheckpoints([*long_batch, StoreUnavailableError("away"), *long_batch])
    rig = started(rigs, waiting, tolerable_failed_checkpoints=1)
    wait_until(lambda: rig.retention_runs or rig.outcome_box.outcome is not None, what="a checkpoint that completes")
    assert waiting.taken == 12
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
    rig.settings = CheckpointSettings(interval_ms=3_600_000, tolerable_failed_checkpoints=0)
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
    rig.settings = CheckpointSettings(interval_ms=3_600_000)
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


def test_the_minimum_pause_begins_when_a_periodic_checkpoint_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, now = Rig(min_pause_ms=1_000), [10.0]

    class Slow(ScriptedCheckpoints):
        def take(self, *_: Any, **__: Any) -> Completed:
            now[0] += 30
            return Completed()

    rig.coordinator._checkpoints = cast("Any", Slow())
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(keyscale.jobs.runtime.driver.coordinator, "time", clock)
    rig.coordinator._take_periodic()
    assert rig.coordinator._schedule.due_at(rig.settings) == 41


def test_the_minimum_pause_is_also_kept_after_a_checkpoint_that_could_not_begin(rigs: list[Rig]) -> None:
    waiting = ScriptedCheckpoints([CheckpointNotBegunError("a long batch")])
    paused, other = started(rigs, waiting, min_pause_ms=3_600_000), started(rigs)
    wait_until(lambda: paused.checkpoints.taken, what="the first try")
    taken = other.checkpoints.taken
    wait_until(lambda: other.checkpoints.taken > taken + 2, what="checkpoints of the same interval without a pause")
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


def test_a_requested_checkpoint_is_answered_and_postpones_the_periodic_one() -> None:
    rig = Rig()
    rig.coordinator._schedule = CheckpointSchedule(started_at=0, consecutive_failures=2)
    result = rig.execute(CommandKind.CHECKPOINT)
    assert (result.status, result.location, result.checkpoint_id) == ("COMPLETED", Completed.location, 1)
    assert (rig.checkpoints.savepoints, rig.retention_runs, rig.outcome_box.outcome) == ([None], 1, None)
    schedule = rig.coordinator._schedule
    assert schedule.ended_at is not None
    assert 0 < schedule.started_at <= schedule.ended_at
    assert schedule.consecutive_failures == 2


@pytest.mark.parametrize(("savepoint_id", "taken"), [("mine", "mine"), (None, "command")])
def test_a_savepoint_is_taken_under_its_id_or_that_of_the_command(savepoint_id: str | None, taken: str) -> None:
    rig = Rig()
    result = rig.execute(CommandKind.SAVEPOINT, savepoint_id=savepoint_id)
    assert (result.status, rig.checkpoints.savepoints, rig.outcome_box.outcome) == ("COMPLETED", [taken], None)
    assert rig.status.state is not DriverState.STOPPING


@pytest.mark.parametrize("savepoint_id", ["mine", None])
def test_a_savepoint_that_is_there_is_not_taken_again(savepoint_id: str | None) -> None:
    rig = Rig()
    rig.checkpoints.known[savepoint_id or "command"] = Completed()
    assert rig.execute(CommandKind.SAVEPOINT, savepoint_id=savepoint_id).status == "COMPLETED"
    assert (rig.checkpoints.taken, rig.loop.calls) == (0, [])


@pytest.mark.parametrize(
    ("drain", "state", "drains"),
    [(False, DriverState.STOPPED, []), (True, DriverState.FINISHED, ["drained"])],
)
def test_a_stop_takes_a_savepoint_after_which_nothing_is_committed(
    drain: bool,
    state: DriverState,
    drains: list[str],
) -> None:
    rig = Rig()
    result = rig.execute(CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="mine", drain=drain)
    assert (result.status, result.location) == ("COMPLETED", Completed.location)
    assert (rig.checkpoints.savepoints, rig.loop.calls, rig.drains) == (["mine"], ["refuse"], drains)
    assert rig.outcome_box.outcome == RunOutcome(state)
    assert rig.status.state is state


@pytest.mark.parametrize("savepoint_id", ["mine", None])
def test_a_stop_whose_savepoint_an_earlier_attempt_has_taken_halts_the_batches(savepoint_id: str | None) -> None:
    rig = Rig()
    rig.checkpoints.known[savepoint_id or "command"] = Completed()
    rig.execute(CommandKind.STOP_WITH_SAVEPOINT, savepoint_id=savepoint_id)
    assert (rig.checkpoints.taken, rig.loop.calls) == (0, ["halt"])
    assert rig.outcome_box.outcome == RunOutcome(DriverState.STOPPED)


def test_a_stop_that_fails_lets_the_job_run_on() -> None:
    rig = Rig()
    rig.checkpoints.failures.append(StoreUnavailableError("away"))
    result = rig.execute(CommandKind.STOP_WITH_SAVEPOINT)
    assert result.failure is not None
    assert (result.status, result.failure.code) == ("FAILED", "STATE_STORE_UNAVAILABLE")
    assert (rig.status.state, rig.outcome_box.outcome, rig.drains) == (DriverState.RUNNING, None, [])


def test_a_drain_that_fails_as_the_run_has_ended_is_answered_with_its_own_failure() -> None:
    rig = Rig()

    def ended() -> None:
        raise RunEndedError("over")

    rig.coordinator._drain = lambda: (_ for _ in ()).throw(StoreUnavailableError("away"))
    rig.coordinator._read_on = ended
    result = rig.execute(CommandKind.STOP_WITH_SAVEPOINT, drain=True)
    assert result.failure is not None
    assert (result.failure.code, rig.checkpoints.taken) == ("STATE_STORE_UNAVAILABLE", 0)


def test_a_failed_checkpoint_of_a_command_still_collects_and_postpones_and_leaves_the_state() -> None:
    rig = Rig()
    rig.status.enter(DriverState.RESTORING)
    rig.checkpoints.failures.append(ValueError("not typed"))
    result = rig.execute(CommandKind.CHECKPOINT)
    assert result.failure is not None
    assert "not typed" in result.failure.message
    assert (rig.retention_runs, rig.status.state) == (1, DriverState.RESTORING)
    assert rig.coordinator._schedule.ended_at is not None


@pytest.fixture
def always_checks_its_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyscale.jobs.runtime.driver.coordinator, "_FENCE_CHECK_SECONDS", 0.0)


@pytest.mark.usefixtures("always_checks_its_fence")
def test_an_idle_attempt_that_is_overtaken_ends_before_another_checkpoint(rigs: list[Rig]) -> None:
    rig = Rig()
    rig.loop.answers = [StoreUnavailableError("away"), False, True]
    rig.settings = CheckpointSettings(interval_ms=3_600_000)
    rigs.append(rig)
    rig.coordinator.start()
    wait_until(lambda: rig.outcome_box.outcome is not None, what="the end of the run")
    assert rig.outcome_box.outcome is not None
    assert rig.outcome_box.outcome.state is DriverState.FENCED
    assert (rig.loop.asked, rig.checkpoints.taken) == (3, 0)


@pytest.mark.usefixtures("always_checks_its_fence")
def test_a_job_that_shall_sleep_commits_nothing_after_its_checkpoint() -> None:
    rig = Rig(interval_ms=3_600_000)
    rig.coordinator._sleeps = lambda: rig.looks_at_settings > 1
    rig.checkpoints.failures = [StoreUnavailableError("away")]
    rig.coordinator._run()
    assert rig.outcome_box.outcome is ASLEEP
    assert (rig.checkpoints.savepoints, rig.loop.calls) == ([None, None], ["refuse"]), "a failed checkpoint is repeated"


def test_the_fence_is_not_checked_at_every_step(rigs: list[Rig]) -> None:
    rig = started(rigs)
    wait_until(lambda: rig.checkpoints.taken > 2, what="some checkpoints")
    assert rig.loop.asked <= 1


def test_a_run_that_has_ended_is_no_failure_of_its_checkpoint(rigs: list[Rig]) -> None:
    rig = started(rigs, ScriptedCheckpoints([RunEndedError("over")]), tolerable_failed_checkpoints=0)
    wait_until(lambda: rig.checkpoints.taken > 1, what="another step")
    assert rig.outcome_box.outcome is None
    assert rig.coordinator._schedule.consecutive_failures == 0


def test_any_other_failure_ends_the_run(rigs: list[Rig]) -> None:
    rig = Rig()

    def fail() -> None:
        raise ValueError("a defect")

    rig.coordinator._run_retention = fail
    rigs.append(rig)
    rig.coordinator.start()
    wait_until(lambda: rig.outcome_box.outcome is not None, what="the end of the run")
    assert rig.outcome_box.outcome is not None
    assert rig.outcome_box.outcome.state is DriverState.FAILED
    taken = rig.checkpoints.taken
    rig.coordinator.close(30)
    assert rig.checkpoints.taken == taken == 1


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


def test_single_failures_between_checkpoints_that_complete_never_end_the_run() -> None:
    rig = Rig(tolerable_failed_checkpoints=1)
    for _ in range(3):
        rig.checkpoints.failures = [StoreUnavailableError("away")]
        rig.coordinator._take_periodic()
        rig.coordinator._take_periodic()
    assert (rig.checkpoints.taken, rig.retention_runs) == (6, 3), "the clean-up runs after each that completes"
    assert rig.coordinator._schedule.consecutive_failures == 0


def test_what_is_due_is_done_in_order_and_no_sooner() -> None:
    rig, now = Rig(interval_ms=10_000, min_pause_ms=4_000), [100.0]
    made: list[str] = []
    rig.coordinator._check_fence = lambda: made.append("fence")  # type: ignore[method-assign]
    rig.coordinator._run_retention = lambda: made.append("clean-up")
    rig.coordinator._follow_settings = lambda: made.append("settings")
    rig.coordinator._take_periodic = lambda: made.append("checkpoint")  # type: ignore[method-assign]
    rig.coordinator._sleeps = lambda: bool(made.append("sleep?"))
    rig.coordinator._schedule = CheckpointSchedule(started_at=92.0, ended_at=98.5)
    rig.coordinator._fence_checked_at = 95.5
    done = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyscale.jobs.runtime.driver.coordinator, "time", SimpleNamespace(monotonic=lambda: now[0]))
        for now[0] in (100.0, 100.6, 102.0, 102.5, 105.6):
            made.clear()
            rig.coordinator._tick()
            done[now[0]] = " ".join(made)
    assert done == {
        100.0: "settings sleep?",
        100.6: "fence clean-up settings sleep?",
        102.0: "settings sleep?",  # an interval after the last start, but no pause after the last end
        102.5: "settings sleep? checkpoint",
        105.6: "fence clean-up settings sleep? checkpoint",
    }


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("kind", [CommandKind.RESCALE, CommandKind.SAVEPOINT])
def test_a_command_that_fails_is_answered_unless_a_rescale_has_ended_the_run(
    kind: CommandKind, *, has_ended: bool
) -> None:
    rig = Rig()
    rig.checkpoints.failures = [StoreUnavailableError("away")]

    def rescale(command: Command) -> None:
        assert command.id == "c"
        raise StoreUnavailableError("away")

    rig.coordinator._rescale = rescale
    if has_ended:
        rig.outcome_box.give(RunOutcome(DriverState.FAILED))
    rig.coordinator._execute_command(Command(id="c", kind=kind))
    found = [(result.command_id, result.status) for result in rig.status.heartbeat().results]
    assert found == ([] if kind is CommandKind.RESCALE and has_ended else [("c", "FAILED")])
    assert rig.nudges == len(found)


def test_the_next_attempt_answers_a_live_rescale_and_the_log_names_the_operation() -> None:
    rig, seen = Rig(), list[Any]()
    rig.coordinator._rescale = lambda command: seen.append((command.id, dict(log_lines._FIELDS.get({}))))
    for name in ("upgrade:7:o-1", "o-2"):
        rig.commands.put(Command(id=name, kind=CommandKind.RESCALE))
    rig.commands.put(None)
    rig.settings = CheckpointSettings(interval_ms=3_600_000)
    rig.coordinator._run()
    assert seen == [("upgrade:7:o-1", {"operation": "o-1"}), ("o-2", {"operation": "o-2"})]
    assert (rig.status.heartbeat().results, rig.nudges) == ([], 0)

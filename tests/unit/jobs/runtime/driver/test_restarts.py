"""Whether a failed run restarts in its process, by the job's strategy and by what happens meanwhile."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.errors import KeyscaleError
from keyscale.jobs.errors import UserFunctionError
from keyscale.jobs.protocol.messages import Command, FailureHistory
from keyscale.jobs.protocol.specification import FixedDelayRestart
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.job_run import forget_ends
from keyscale.jobs.runtime.driver.restarts import Restarts, is_session_good
from keyscale.jobs.runtime.driver.run_outcome import RunOutcome, RunOutcomeBox
from keyscale.jobs.runtime.errors import RestoreRefusedError, SparkLostError
from keyscale.state.log.commit_log import FencedError
from keyscale.vocabulary import CommandKind, DriverState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 9000
FAILURE = RunOutcome.by(UserFunctionError("ValueError"))
AGAIN = FixedDelayRestart(attempts=2, delay_ms=0)


def restarts(
    strategy: FixedDelayRestart | None, status: DriverStatus, history: FailureHistory | None = None
) -> Restarts:
    return Restarts(lambda: strategy, history or FailureHistory(), status, draw=lambda: 0.0, clock=lambda: NOW_MS)


def failed() -> RunOutcomeBox:
    box = RunOutcomeBox()
    box.give(FAILURE)
    return box


def test_a_failure_is_counted_and_the_run_starts_again_while_the_strategy_allows_it() -> None:
    status = DriverStatus()
    decides = restarts(AGAIN, status, FailureHistory(count=1, times_ms=[1000]))
    box = failed()
    assert decides.wait_to_restart(box)
    assert box.outcome is None
    metrics = status.heartbeat().metrics
    assert metrics.failures == FailureHistory(count=2, times_ms=[1000, NOW_MS])
    assert metrics.last_failure is not None
    assert metrics.last_failure.code == "JOB_FUNCTION_FAILED"
    assert (metrics.restart, status.state) == (AGAIN, DriverState.RESTORING)

    box.give(FAILURE)
    assert not decides.wait_to_restart(box)
    assert box.outcome is not None
    assert box.outcome.failure is not None
    assert box.outcome.failure.final, "the control plane must not start it again, either"
    assert "the limit is 2 restarts" in box.outcome.failure.message


def test_a_strategy_that_changes_counts_from_the_next_failure_on_and_is_shown_at_once() -> None:
    status, strategies = DriverStatus(), [AGAIN]
    decides = Restarts(lambda: strategies[-1], FailureHistory(), status, draw=lambda: 0.0, clock=lambda: NOW_MS)
    strategies.append(FixedDelayRestart(attempts=1, delay_ms=0))
    decides.show()
    assert status.heartbeat().metrics.restart == strategies[-1]
    box = failed()
    assert decides.wait_to_restart(box)
    box.give(FAILURE)
    assert not decides.wait_to_restart(box), "the first strategy would have allowed another one"


@pytest.mark.parametrize(
    ("strategy", "outcome"),
    [
        (None, FAILURE),
        (AGAIN, RunOutcome.by(RestoreRefusedError("another max parallelism"))),
        (AGAIN, RunOutcome.by(SparkLostError("the JVM has ended"))),
        (AGAIN, RunOutcome.by(FencedError("position 7"))),
        (AGAIN, RunOutcome(DriverState.STOPPED)),
    ],
)
def test_an_outcome_that_this_process_cannot_restart_stays(
    strategy: FixedDelayRestart | None, outcome: RunOutcome
) -> None:
    status, box = DriverStatus(), RunOutcomeBox()
    box.give(outcome)
    assert not restarts(strategy, status).wait_to_restart(box)
    assert box.outcome == outcome
    assert status.heartbeat().metrics.failures.count == 0


def test_a_cancellation_between_a_failure_and_the_restart_counts() -> None:
    box = failed()
    box.give(RunOutcome(DriverState.STOPPED))
    assert not restarts(AGAIN, DriverStatus()).wait_to_restart(box)
    assert box.outcome == RunOutcome(DriverState.STOPPED)


def test_a_cancellation_ends_the_wait_for_a_restart() -> None:
    box, status = failed(), DriverStatus()
    decides = restarts(FixedDelayRestart(delay_ms=3_600_000), status)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(decides.wait_to_restart(box)))
    waiting.start()
    while box.outcome is not None:
        waiting.join(0.001)
    box.give(RunOutcome(DriverState.STOPPED))
    waiting.join(60)
    assert answers == [False]
    assert box.outcome == RunOutcome(DriverState.STOPPED)


def test_a_second_failure_while_a_run_ends_does_not_prevent_the_restart() -> None:
    box = failed()
    box.give(RunOutcome.by(KeyscaleError("the query ended")))
    assert restarts(AGAIN, DriverStatus()).wait_to_restart(box)


def test_commands_survive_the_thread_that_reads_them() -> None:
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    savepoint, checkpoint = (Command(id=kind, kind=kind) for kind in (CommandKind.SAVEPOINT, CommandKind.CHECKPOINT))
    for each in (savepoint, None, checkpoint, None):
        commands.put(each)
    forget_ends(commands)
    assert [commands.get_nowait(), commands.get_nowait()] == [savepoint, checkpoint]
    assert commands.empty()


def test_a_run_that_has_not_ended_does_not_restart() -> None:
    status = DriverStatus()
    assert not restarts(AGAIN, status).wait_to_restart(RunOutcomeBox())
    assert status.heartbeat().metrics.failures == FailureHistory()


@pytest.mark.parametrize(("rows", "is_good"), [(1, True), (0, False), (None, False)])
def test_a_session_is_good_if_it_still_counts_a_row(rows: int | None, is_good: bool) -> None:
    class Range:
        def count(self) -> int:
            if rows is None:
                raise ConnectionError("the JVM has ended")
            return rows

    spark = SimpleNamespace(range=lambda count: Range() if count == 1 else None)
    assert is_session_good(cast("SparkSession", spark)) is is_good

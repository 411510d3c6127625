"""A failed run is started again in its process, or is not, by the job's strategy and whatever happens meanwhile."""

from __future__ import annotations

import queue
import threading

import pytest

from jobs.errors import UserFunctionError
from jobs.runtime.ending import Ending, EndingBox
from jobs.runtime.errors import RestoreRefusedError, SparkLostError
from jobs.runtime.job_run import forget_ends
from jobs.runtime.restarts import Restarts
from jobs.runtime.status import DriverStatus
from jobs.wire import Command, CommandKind, DriverState, FailureHistory, FixedDelayRestart
from state.errors import KeyscaleError
from state.log import FencedError

NOW_MS = 9000
FAILURE = Ending.by(UserFunctionError("ValueError"))
AGAIN = FixedDelayRestart(attempts=2, delay_ms=0)


def restarts(
    strategy: FixedDelayRestart | None, status: DriverStatus, history: FailureHistory | None = None
) -> Restarts:
    return Restarts(strategy, history or FailureHistory(), status, draw=lambda: 0.0, clock=lambda: NOW_MS)


def failed() -> EndingBox:
    box = EndingBox()
    box.give(FAILURE)
    return box


def test_a_failure_is_counted_and_the_run_starts_again_while_the_strategy_allows_it() -> None:
    status = DriverStatus()
    decides = restarts(AGAIN, status, FailureHistory(count=1, times_ms=[1000]))
    box = failed()
    assert decides.wait_to_restart(box)
    assert box.ending is None
    metrics = status.heartbeat().metrics
    assert metrics.failures == FailureHistory(count=2, times_ms=[1000, NOW_MS])
    assert metrics.last_failure is not None
    assert metrics.last_failure.code == "JOB_FUNCTION_FAILED"
    assert (metrics.restart, status.state) == (AGAIN, DriverState.RESTORING)

    box.give(FAILURE)
    assert not decides.wait_to_restart(box)
    assert box.ending is not None
    assert box.ending.failure is not None
    assert box.ending.failure.final, "the control plane must not start it again, either"
    assert "2 restarts are allowed" in box.ending.failure.message


@pytest.mark.parametrize(
    ("strategy", "ending"),
    [
        (None, FAILURE),
        (AGAIN, Ending.by(RestoreRefusedError("another max parallelism"))),
        (AGAIN, Ending.by(SparkLostError("the JVM has ended"))),
        (AGAIN, Ending.by(FencedError("position 7"))),
        (AGAIN, Ending(DriverState.STOPPED)),
    ],
)
def test_what_is_not_this_process_s_to_mend_stays_as_it_is(strategy: FixedDelayRestart | None, ending: Ending) -> None:
    status, box = DriverStatus(), EndingBox()
    box.give(ending)
    assert not restarts(strategy, status).wait_to_restart(box)
    assert box.ending == ending
    assert status.heartbeat().metrics.failures.count == 0


def test_a_cancellation_that_comes_between_the_failure_and_the_restart_counts() -> None:
    box = failed()
    box.give(Ending(DriverState.STOPPED))
    assert not restarts(AGAIN, DriverStatus()).wait_to_restart(box)
    assert box.ending == Ending(DriverState.STOPPED)


def test_a_cancellation_ends_the_wait_for_a_restart() -> None:
    box, status = failed(), DriverStatus()
    decides = restarts(FixedDelayRestart(delay_ms=3_600_000), status)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(decides.wait_to_restart(box)))
    waiting.start()
    while box.ending is not None:
        waiting.join(0.001)
    box.give(Ending(DriverState.STOPPED))
    waiting.join(60)
    assert answers == [False]
    assert box.ending == Ending(DriverState.STOPPED)


def test_a_second_failure_while_a_run_goes_down_is_not_a_reason_to_end() -> None:
    box = failed()
    box.give(Ending.by(KeyscaleError("the query ended")))
    assert restarts(AGAIN, DriverStatus()).wait_to_restart(box)


def test_commands_outlive_the_thread_that_took_them() -> None:
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    savepoint, checkpoint = (Command(id=kind, kind=kind) for kind in (CommandKind.SAVEPOINT, CommandKind.CHECKPOINT))
    for each in (savepoint, None, checkpoint, None):
        commands.put(each)
    forget_ends(commands)
    assert [commands.get_nowait(), commands.get_nowait()] == [savepoint, checkpoint]
    assert commands.empty()

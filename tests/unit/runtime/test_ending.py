from __future__ import annotations

import threading

from jobs.errors import UserFunctionError
from jobs.runtime.ending import Ending, EndingBox
from jobs.runtime.failures import TaskOrigin, with_origin
from jobs.wire import DriverState
from state.log import FencedError


def test_a_fenced_driver_has_not_failed() -> None:
    ending = Ending.by(FencedError("position 7 is taken"))
    assert ending.state is DriverState.FENCED
    assert ending.failure is None


def test_a_failure_says_where_it_came_from() -> None:
    origin = TaskOrigin(operator_uid="counts", subtask=3, user_traceback="Traceback ...")
    failure = Ending.by(with_origin(UserFunctionError("TypeError"), origin)).failure
    assert failure is not None
    assert (failure.code, failure.message) == ("JOB_FUNCTION_FAILED", "TypeError")
    assert (failure.operator_uid, failure.subtask, failure.traceback) == ("counts", 3, "Traceback ...")


def test_an_unknown_exception_is_a_failed_task() -> None:
    failure = Ending.by(RuntimeError("out of memory")).failure
    assert failure is not None
    assert failure.code == "JOB_TASK_FAILED"


def test_the_first_ending_stays() -> None:
    box = EndingBox()
    box.give(Ending(DriverState.STOPPED))
    box.give(Ending.by(RuntimeError("Spark went down while it was stopped")))
    assert box.wait(0) == Ending(DriverState.STOPPED)


def test_whoever_waits_is_woken() -> None:
    box = EndingBox()
    threading.Timer(0.01, box.give, (Ending(DriverState.FINISHED),)).start()
    assert box.wait(30) == Ending(DriverState.FINISHED)

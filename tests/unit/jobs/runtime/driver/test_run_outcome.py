from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyscale.jobs.errors import UserFunctionError
from keyscale.jobs.operators.failures import TaskOrigin, with_origin
from keyscale.jobs.protocol.messages import Failure
from keyscale.jobs.runtime.driver.run_outcome import RunOutcome, RunOutcomeBox, log_failure
from keyscale.state.errors import DiskFullError
from keyscale.state.log.commit_log import FencedError
from keyscale.vocabulary import DriverState

if TYPE_CHECKING:
    import pytest


def test_a_fenced_driver_has_not_failed() -> None:
    outcome = RunOutcome.by(FencedError("position 7 is taken"))
    assert outcome.state is DriverState.FENCED
    assert outcome.failure is None


def test_a_failure_says_where_it_came_from() -> None:
    origin = TaskOrigin(operator_uid="counts", subtask=3, user_traceback="Traceback ...")
    failure = RunOutcome.by(with_origin(UserFunctionError("TypeError"), origin)).failure
    assert failure is not None
    assert (failure.code, failure.message) == ("JOB_FUNCTION_FAILED", "TypeError")
    assert (failure.operator_uid, failure.subtask, failure.traceback) == ("counts", 3, "Traceback ...")


def test_the_log_shows_the_users_traceback_and_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    origin = TaskOrigin(operator_uid="counts", subtask=3, user_traceback="Traceback of the user")
    log_failure("the run ends FAILED", with_origin(UserFunctionError("TypeError: no"), origin))
    (record,) = caplog.records
    assert record.message.startswith(
        "the run ends FAILED: JOB_FUNCTION_FAILED: TypeError: no (operator counts, subtask 3)\nTraceback of the user\n"
    )
    assert not record.exc_info
    log_failure("the run ends FAILED", DiskFullError("no space"))
    assert caplog.records[1].exc_info


def test_an_unknown_exception_is_a_failed_task() -> None:
    failure = RunOutcome.by(RuntimeError("out of memory")).failure
    assert failure is not None
    assert failure.code == "JOB_TASK_FAILED"


def test_the_first_outcome_stays() -> None:
    box = RunOutcomeBox()
    box.give(RunOutcome(DriverState.STOPPED))
    box.give(RunOutcome.by(RuntimeError("Spark went down while it was stopped")))
    assert box.wait(0) == RunOutcome(DriverState.STOPPED)


def test_a_waiting_thread_gets_the_outcome() -> None:
    box = RunOutcomeBox()
    threading.Timer(0.01, box.give, (RunOutcome(DriverState.FINISHED),)).start()
    assert box.wait(30) == RunOutcome(DriverState.FINISHED)


def test_a_failure_is_taken_back_unless_a_stop_or_a_fence_has_come_after_it() -> None:
    box = RunOutcomeBox()
    box.give(RunOutcome.by(RuntimeError("first")))
    box.give(RunOutcome.by(RuntimeError("second")))
    assert box.reopen() is None
    assert (box.outcome, box.wait(0)) == (None, None)
    box.give(RunOutcome.by(RuntimeError("third")))
    box.give(RunOutcome(DriverState.STOPPED))
    box.give(RunOutcome(DriverState.FENCED))
    box.give(RunOutcome.by(RuntimeError("fourth")))
    assert box.outcome is not None
    assert box.outcome.state is DriverState.FAILED
    assert box.reopen() == RunOutcome(DriverState.STOPPED)
    assert box.wait(0) == RunOutcome(DriverState.STOPPED)
    assert box.reopen() is None, "each outcome counts once"


def test_a_failure_that_is_final_says_why_and_all_of_its_facts_are_told() -> None:
    origin = TaskOrigin(operator_uid="counts", subtask=0, user_traceback=None)
    error = with_origin(UserFunctionError("TypeError"), origin)
    failure = RunOutcome(DriverState.FAILED, error, "the limit is 2 restarts").failure
    assert failure == Failure(
        code="JOB_FUNCTION_FAILED",
        message="TypeError (the limit is 2 restarts)",
        traceback=None,
        operator_uid="counts",
        subtask=0,
        advice=error.advice,
        final=True,
    )
    assert RunOutcome(DriverState.STOPPED, error).failure is None
    assert RunOutcome(DriverState.FAILED).failure is None

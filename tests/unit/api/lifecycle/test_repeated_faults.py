"""A fault of a user's code that comes back on the same batch is given up; one that may pass is retried."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.lifecycle.facts import NO_FAILURES
from keyscale.api.lifecycle.outcomes import FAILURES_MAX
from keyscale.api.lifecycle.repeated_faults import EarlierRun, fault_of, is_repeated
from keyscale.api.lifecycle.steps import FailJob, ReplaceAttempt
from keyscale.jobs.protocol.specification import ExponentialDelayRestart
from keyscale.vocabulary import DriverState
from tests.support.control_plane.job_facts import attempt, job, step_of


def fault(
    message: str = "ValueError: no amount, record 3 of subtask 0", *, run: int = 1, **fields: Any
) -> dict[str, Any]:
    """A failure as a driver reports it; the artifact is in another directory in each run."""
    line = fields.pop("line", 12)
    traceback = (
        "Traceback (most recent call last):\n"
        f'  File "/home/runs/{run}/artifact/job.py", line {line}, in process_element\n    total += row.amount\n'
        f"{message}"
    )
    return {"code": "JOB_FUNCTION_FAILED", "message": message, "traceback": traceback, "operator_uid": "sum", **fields}


def runs(*failures: dict[str, Any] | None, committed: tuple[int, ...] = ()) -> tuple[EarlierRun, ...]:
    return tuple(EarlierRun(failure, has_committed=at in committed) for at, failure in enumerate(failures))


def repeated(*earlier: EarlierRun, has_committed: bool = False, **now: Any) -> bool:
    return is_repeated(fault(**now), has_committed=has_committed, earlier=earlier)


def test_the_third_time_in_a_row_is_a_repeated_fault_wherever_the_program_lay() -> None:
    assert repeated(*runs(fault(run=2), fault(run=1)), run=3)
    assert not repeated(*runs(fault()))
    assert not repeated()


def test_what_the_message_quotes_may_differ() -> None:
    assert repeated(
        *runs(fault("ValueError: at 0x7f01"), fault("ValueError: at 0x7f02")), message="ValueError: at 0x7f03"
    )


def test_only_the_first_of_the_runs_may_have_committed_batches_before_it_met_the_fault() -> None:
    both = (fault(), fault())
    assert repeated(*runs(*both, committed=(1,)))
    assert not repeated(*runs(*both, committed=(0,)))
    assert not repeated(*runs(*both), has_committed=True)


@pytest.mark.parametrize(
    "other",
    [
        None,
        {"code": "DRIVER_LOST", "message": "the driver died", "traceback": None},
        fault(line=13),
        fault("KeyError: 'amount'"),
        fault(operator_uid="other"),
        fault(code="JOB_OUTPUT_MISMATCH"),
    ],
)
def test_another_failure_in_between_begins_the_count_again(other: dict[str, Any] | None) -> None:
    assert not repeated(*runs(other, fault()))
    assert not repeated(*runs(fault(), other))


@pytest.mark.parametrize(
    "kind", ["ConnectionError", "ReadTimeout", "OperationalError", "ConnectError", "ServiceUnavailable", "MemoryError"]
)
def test_an_exception_that_tells_of_something_outside_is_no_fault_of_the_code(kind: str) -> None:
    assert fault_of(fault(f"{kind}: it does not answer")) is None
    assert fault_of(fault(kind)) is None


@pytest.mark.parametrize("code", ["SINK_UNAVAILABLE", "JOB_TASK_FAILED", "SINK_FUNCTION_FAILED"])
def test_a_failure_of_spark_or_of_a_sink_is_no_fault_of_the_code(code: str) -> None:
    assert fault_of(fault(code=code)) is None


def test_a_failure_without_a_place_in_the_code_cannot_be_compared() -> None:
    assert fault_of({**fault(), "traceback": "no frames"}) is None
    assert fault_of({**fault(), "traceback": None}) is None


def test_a_job_without_a_strategy_is_given_up_after_the_third_time_and_says_so() -> None:
    failed = attempt(driver_state=DriverState.FAILED, failure=fault(run=3))
    step = step_of(job(active=failed, consecutive_failures=2, earlier=runs(fault(run=2), fault(run=1))))
    assert isinstance(step, FailJob)
    assert "ValueError: no amount" in step.failure["message"]
    assert "3 times in a row on the same batch" in step.failure["message"]
    assert step.failure["traceback"] == fault(run=3)["traceback"]


def test_a_job_without_a_strategy_whose_failures_differ_is_replaced_until_the_usual_limit() -> None:
    failed = attempt(driver_state=DriverState.FAILED, failure=fault(line=1))
    facts = job(active=failed, consecutive_failures=2, earlier=runs(fault(line=2), fault(line=3)))
    assert isinstance(step_of(facts), ReplaceAttempt)
    assert FAILURES_MAX > 3


def test_a_strategy_that_the_user_has_chosen_is_obeyed() -> None:
    failed = attempt(driver_state=DriverState.FAILED, failure=fault())
    facts = job(active=failed, restart=ExponentialDelayRestart(), failures=NO_FAILURES, earlier=runs(fault(), fault()))
    assert isinstance(step_of(facts), ReplaceAttempt)

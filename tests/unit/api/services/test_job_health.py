"""A failure of a job that its driver has started again is shown until a batch is committed after it."""

from __future__ import annotations

from keyscale.api.services.job_health import unsettled_failure
from keyscale.jobs.protocol.messages import DriverMetrics, Failure, FailureHistory

FAILURE = Failure(code="JOB_FUNCTION_FAILED", message="ValueError: no")


def metrics(*times_ms: int, last: Failure | None = FAILURE) -> DriverMetrics:
    history = FailureHistory(count=len(times_ms), times_ms=list(times_ms))
    return DriverMetrics(failures=history, last_failure=last)


def test_a_failure_is_shown_until_a_batch_is_committed_after_it() -> None:
    assert unsettled_failure(metrics(100, 200), None) == FAILURE
    assert unsettled_failure(metrics(100, 200), 199) == FAILURE
    assert unsettled_failure(metrics(100, 200), 200) is None


def test_failures_of_earlier_drivers_are_not_the_drivers_own() -> None:
    assert unsettled_failure(metrics(100, last=None), None) is None
    assert unsettled_failure(metrics(), None) is None

"""A failure of a job that its driver has started again is shown until a batch is committed after it."""

from __future__ import annotations

from keyscale.api.jobs.job_health import health_of, unsettled_failure
from keyscale.jobs.protocol.messages import CleanUp, DriverMetrics, Failure, FailureHistory, SinkOutage

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


def test_each_fault_of_a_running_job_is_an_item_with_its_own_time() -> None:
    assert health_of(DriverMetrics()) == []
    found = health_of(
        DriverMetrics(
            store_away_since_ms=1,
            sink_outage=SinkOutage(uid="counts", since_ms=2, reason="refused"),
            lost_records=7,
            lost_records_since_ms=3,
            clean_up=CleanUp(failing_since_ms=4, failure=Failure(code="X", message="denied", advice="allow it")),
        )
    )
    assert [(item.code, item.since_ms) for item in found] == [
        ("STATE_STORE_UNAVAILABLE", 1),
        ("SINK_UNAVAILABLE", 2),
        ("SOURCE_RECORDS_LOST", 3),
        ("X", 4),
    ]
    assert "counts" in found[1].message
    assert "refused" in found[1].message
    assert " 7 records" in found[2].message
    assert ("denied" in found[3].message, found[3].advice) == (True, "allow it")


def test_a_clean_up_that_works_again_is_no_fault() -> None:
    assert health_of(DriverMetrics(clean_up=CleanUp(passes=1, last_at_ms=5))) == []

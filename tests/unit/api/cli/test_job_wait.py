"""Waiting for a job ends when the status is there, when it cannot come any more, or when the time is over."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.cli.errors import JobEndedError, JobFailedError
from keyscale.api.cli.job_wait import (
    ENDED,
    LASTING,
    STARTED,
    has_reached,
    wait_until,
    wait_until_started,
)
from keyscale.api.cli.root import exit_code_of, show_problem
from keyscale.client.errors import WaitTimeoutError
from keyscale.vocabulary import JobStatus

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale

FAILURE = {"code": "JOB_FUNCTION_FAILED", "message": "ValueError: no", "traceback": "Traceback: line 7 of mine"}


def job(status: str, desired: str = "RUNNING", failure: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "visits", "status": {"state": status, "desired": desired, "failure": failure, "attempt": None}}


class Answers:
    """A control plane that answers with one job after the other, and repeats the last one."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.left = list(jobs)

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/jobs/visits"
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def waited(*jobs: dict[str, Any], wanted: frozenset[str] = STARTED, timeout_s: float | None = None) -> str:
    answer = wait_until(cast("Keyscale", Answers(*jobs)), "visits", wanted, timeout_s)
    return str(answer["status"]["state"])


def test_the_status_that_is_waited_for_ends_the_wait() -> None:
    assert waited(job("SUBMITTING"), job("RUNNING")) == "RUNNING"
    assert waited(job("STOPPING", "CANCELLED"), job("STOPPED", "CANCELLED"), wanted=ENDED) == "STOPPED"


def test_a_started_job_that_has_finished_before_it_was_looked_at_has_been_started() -> None:
    assert waited(job("SUBMITTING"), job("FINISHED", "STOPPED")) == "FINISHED"


def test_a_failure_ends_the_wait_and_is_shown_with_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailedError) as caught:
        waited(job("SUBMITTING"), job("FAILED", "STOPPED", FAILURE))
    assert caught.value.exit_code == 1
    show_problem(caught.value, as_json=False)
    shown = capsys.readouterr().err
    assert "CLI_JOB_FAILED" in shown
    assert "ValueError: no" in shown
    assert "line 7 of mine" in shown
    show_problem(pickle.loads(pickle.dumps(caught.value)), as_json=True)  # noqa: S301 - our own
    assert json.loads(capsys.readouterr().err)["failure"] == FAILURE


def test_a_failed_job_is_what_some_wait_for() -> None:
    assert has_reached(job("FAILED", "STOPPED", FAILURE), {"FAILED"})


@pytest.mark.parametrize("status", ["CREATED", "STOPPED", "FINISHED"])
def test_a_job_that_was_never_started_will_not_run(status: str) -> None:
    with pytest.raises(JobEndedError, match=f"is {status}"):
        has_reached(job(status, "STOPPED"), {"RUNNING"})


def test_a_running_job_may_be_stopped_by_another_user_later() -> None:
    assert not has_reached(job("RUNNING"), ENDED)


def test_after_the_time_the_exit_code_is_another_one() -> None:
    with pytest.raises(WaitTimeoutError, match="SUBMITTING, not FINISHED or RUNNING") as caught:
        waited(job("SUBMITTING"), timeout_s=0)
    assert exit_code_of(caught.value) == 3


def running(**metrics: object) -> dict[str, Any]:
    known = {"waits_for_input": False, "input_batches": 0, **metrics}
    shown = job("RUNNING")
    return {**shown, "status": {**shown["status"], "attempt": {"metrics": known if metrics else None}}}


@pytest.mark.parametrize(
    ("later", "is_started"),
    [
        (running(waits_for_input=True), True),
        (running(input_batches=1), True),
        (running(input_batches=None), True),
        (job("FINISHED", "STOPPED"), True),
        (running(waits_for_input=False), False),
        (running(), False),
    ],
)
def test_a_start_is_over_when_the_first_input_is_processed_or_none_is_there(
    later: dict[str, Any], is_started: bool
) -> None:
    control_plane = cast("Keyscale", Answers(job("SUBMITTING"), running(), later))
    if is_started:
        assert wait_until_started(control_plane, "visits") == later
    else:
        with pytest.raises(WaitTimeoutError, match="visits is RUNNING, and has committed no batch"):
            wait_until_started(control_plane, "visits", timeout_s=0.3)


def test_a_program_that_fails_on_its_first_record_ends_the_wait_for_its_start() -> None:
    control_plane = cast("Keyscale", Answers(running(waits_for_input=False), job("FAILED", "STOPPED", FAILURE)))
    with pytest.raises(JobFailedError):
        wait_until_started(control_plane, "visits")


def test_the_command_line_knows_the_statuses_as_the_control_plane_does() -> None:
    assert set(LASTING) <= set(JobStatus)
    assert set(LASTING) >= ENDED | STARTED


@pytest.mark.parametrize("status", ["CREATED", "STOPPED", "FINISHED"])
def test_a_settled_job_that_is_to_run_is_waited_for(status: str) -> None:
    assert not has_reached(job(status, "RUNNING"), {"RUNNING"})

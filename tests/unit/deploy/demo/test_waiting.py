from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.waiting import wait_for


def _job(status: str) -> dict[str, Any]:
    return {"status": {"state": status, "failure": "its failure" if status == "FAILED" else None}}


def test_a_job_that_ends_between_two_polls_has_ended_in_time() -> None:
    statuses = iter(["STOPPING", "FINISHED"])

    def look() -> dict[str, Any]:
        return _job(next(statuses))

    assert wait_for("the job to finish", lambda: look()["status"]["state"] == "FINISHED", look, timeout_s=60)


def test_the_last_result_of_a_job_is_seen() -> None:
    rows = chain([0], repeat(7))
    assert wait_for("rows", lambda: next(rows), lambda: _job("RUNNING"), timeout_s=60) == 7


def test_a_job_that_ended_without_the_result_is_named_with_its_failure() -> None:
    with pytest.raises(DemoError, match="waited for rows, but the job is FAILED: its failure"):
        wait_for("rows", lambda: 0, lambda: _job("FAILED"), timeout_s=60)


def test_a_job_that_takes_too_long_is_named_with_its_status() -> None:
    with pytest.raises(DemoError, match="waited 0 s for rows; the job is RUNNING"):
        wait_for("rows", lambda: 0, lambda: _job("RUNNING"), timeout_s=0)

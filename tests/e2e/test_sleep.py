"""An idle job sleeps without a JVM, and wakes for each file with exact output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.control_plane.counts_job import SECONDS, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]


def test_an_idle_job_sleeps_without_a_jvm_and_wakes_for_each_file(tmp_path: Path) -> None:
    with running_control_plane({"KEYSCALE_JOB_USERS": "off", "KEYSCALE_SPARE_DRIVERS": "1"}) as control_plane:
        counts = CountsJob(lambda: control_plane.api, tmp_path / "counts")
        counts.create(1, parallelism=2, autoscaler={"mode": "ACTIVE", "sleep_after_ms": 10_000})
        counts.deliver()
        counts.act("start")
        counts.wait_for_all()
        for _ in range(2):
            wait_until(lambda: counts.show()["status"]["state"] == "SLEEPING", SECONDS, what="the sleep")
            driver = psutil.Process(counts.show()["status"]["attempt"]["pid"])
            session = [each for each in psutil.process_iter() if _session_of(each) == _session_of(driver)]
            assert not [each.pid for each in session if "java" in each.name()], "the JVM and its workers are gone"
            counts.deliver()
            counts.wait_for_all()
        status = counts.show()["status"]
        assert (status["restarts"], status["failure"]) == (0, None)
        assert [each["cause"] for each in counts.attempts()] == ["wake", "wake", "start"]
        wakes_ms = [each["first_commit_at_ms"] - each["created_at_ms"] for each in counts.attempts()[:2]]
        print("from the wake to the first commit in ms:", wakes_ms)  # noqa: T201 - a figure for the log

        def sleeps() -> bool:
            return bool(counts.show()["status"]["state"] == "SLEEPING")

        def is_done(operation_id: str) -> bool:
            return bool(counts.show_change(operation_id)["status"] == "COMPLETED")

        wait_until(sleeps, SECONDS, what="the sleep")
        savepoint = counts.act("savepoint")["id"]
        wait_until(lambda: is_done(savepoint), SECONDS, what="a savepoint, for which the job wakes")
        wait_until(sleeps, SECONDS, what="the sleep after a savepoint")
        assert counts.ended(counts.rescale(1))["status"] == "COMPLETED"
        counts.wait_for_all()
        wait_until(sleeps, SECONDS, what="the sleep after a rescale")
        counts.act("stop")
        wait_until(lambda: counts.show()["status"]["state"] == "STOPPED", SECONDS, what="the stop")


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None

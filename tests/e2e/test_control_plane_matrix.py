"""The control plane dies at every moment of every operation, alone or as one of two replicas; the job stays exact.

A named sync point holds the control plane at one moment of one step; there it is killed or stopped by a signal.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from keyscale.state.syncpoint import SYNC_DIRECTORY, SYNC_POINT
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.control_plane.running_control_plane import replicas, running_control_plane
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

START = ["CreateAttempt.decided", "CreateAttempt.taken", "Launch.decided", "Launch.recorded", "Launch.taken"]
RESCALE = [
    "CreateAttempt.decided@2",
    "Launch.recorded@2",
    "BeginSavepoint.decided",
    "BeginSavepoint.taken",
    "AdvanceChange.decided",
    "AdvanceChange.taken",
    "SwitchOver.decided",
    "SwitchOver.taken",
    "AdvanceChange.decided@2",
    "CompleteChange.decided",
    "CompleteChange.taken",
    "MarkReaped.decided",
]
STOP = ["SettleJob.decided", "SettleJob.taken"]
KILLED, STOPPED = "killed", "stopped"
SHORT = {("Launch.recorded", KILLED, 1)}


def cases() -> list[Any]:
    combinations = itertools.product(START + RESCALE + STOP, ((KILLED, 1), (KILLED, 2), (STOPPED, 2)))
    return [
        pytest.param(moment, *how, marks=() if (moment, *how) in SHORT else pytest.mark.exhaustive)
        for moment, how in combinations
    ]


@pytest.mark.parametrize(("moment", "fault", "replicas_count"), cases())
def test_an_operation_ends_and_the_job_is_exact_whenever_the_leader_is_lost(
    moment: str, fault: str, replicas_count: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="keyscale-sync-") as sync:
        held = {SYNC_POINT: moment, SYNC_DIRECTORY: sync}
        name = moment.partition("@")[0]

        def is_held() -> bool:
            return any(Path(sync).glob(f"{name}.*"))

        if replicas_count == 1:
            with running_control_plane(held) as alone:
                job = FlightsJob(alone)

                def lose() -> None:
                    alone.kill()
                    for setting in held:
                        del alone.process.settings[setting]
                    alone.start_again()

                operate(job, is_held, lose, lambda: None)
        else:
            with replicas(held) as (first, second):
                wait_until(first.leads, what="the first one to lead")
                job = FlightsJob(first)

                def lose() -> None:
                    if fault == KILLED:
                        first.kill()
                    else:
                        first.stop_by_signal()
                    job.control_plane = second
                    wait_until(second.leads, 120, what="the second one to lead")

                def come_back() -> None:
                    if fault == STOPPED:  # in the middle of its step
                        (Path(sync) / f"{name}.go").touch()
                        first.go_on()
                        wait_until(lambda: not first.leads(), what="the first one's notice that it leads no more")

                operate(job, is_held, lose, come_back)


def operate(job: FlightsJob, is_held: Any, lose: Any, come_back: Any) -> None:
    """Starts, rescales and ends a job, and loses the leader once, when it is held."""
    lost = []

    def lose_if_held() -> None:
        if is_held() and not lost:
            lost.append(True)
            lose()
            come_back()

    def wait(what: str, condition: Any) -> None:
        def observe() -> bool:
            lose_if_held()
            return bool(condition())

        job.wait(what, observe)
        assert_one_attempt(job)

    job.create(parallelism=1)
    job.control_plane.api.post(f"/jobs/{job.id}/start")
    wait("the job to run", lambda: job.show()["status"] == "RUNNING")
    job.deliver(6)
    wait("rows", lambda: job.rows_in_sink() > 0)
    rescale_id = job.rescale(2)
    wait("the rescale to end", lambda: job.show_rescale(rescale_id)["status"] != "IN_PROGRESS")
    rescale = job.show_rescale(rescale_id)
    assert rescale["status"] in {"COMPLETED", "ROLLED_BACK"}
    wait("the job to run again", lambda: job.show()["status"] == "RUNNING")
    assert job.show()["parallelism"] == (2 if rescale["status"] == "COMPLETED" else 1)
    job.deliver(job.files_left)
    job.control_plane.api.post(f"/jobs/{job.id}/stop", {"drain": True})
    wait("the job to finish", lambda: job.show()["status"] == "FINISHED")
    wait("the leader to be lost", lambda: bool(lost))
    wait("the end of all attempts", lambda: stages(job) == {"ENDED"})
    assert job.wrong_checks() == []


def stages(job: FlightsJob) -> set[str]:
    return {attempt["stage"] for attempt in job.control_plane.api.get(f"/jobs/{job.id}/attempts")["attempts"]}


def assert_one_attempt(job: FlightsJob) -> None:
    attempts = job.control_plane.api.get(f"/jobs/{job.id}/attempts")["attempts"]
    assert sum(attempt["stage"] == "ACTIVE" for attempt in attempts) <= 1

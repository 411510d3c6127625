"""The control plane may die at any moment: running jobs go on, and operations are finished after its restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.control_plane.flights_job import FlightsJob

if TYPE_CHECKING:
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def rescale_until_phase(job: FlightsJob, phase: str) -> str:
    """Requests a rescale to 4 and returns its id once the phase has begun."""
    rescale_id = job.rescale(4)

    def begun() -> bool:
        return phase in {step["phase"] for step in job.show_rescale(rescale_id)["phases"]}

    job.wait(f"the rescale to reach {phase}", begun)
    return rescale_id


@pytest.mark.exhaustive  # its short form is in test_upgrades.py: a leader that is lost during an upgrade
@pytest.mark.parametrize("phase", ["REQUESTED", "SAVEPOINT", "RESTORE"])
def test_a_rescale_completes_although_the_control_plane_is_killed_during_it(
    control_plane: RunningControlPlane, phase: str
) -> None:
    job = FlightsJob(control_plane)
    job.create(parallelism=2)
    job.start()
    job.deliver_and_wait(6)
    rescale_id = rescale_until_phase(job, phase)
    control_plane.kill()
    control_plane.start_again()
    rescale = job.show_rescale(rescale_id)
    assert rescale["status"] == "IN_PROGRESS", "the kill came too late"
    job.deliver(4)
    job.wait("the rescale to end", lambda: job.show_rescale(rescale_id)["status"] != "IN_PROGRESS")
    rescale = job.show_rescale(rescale_id)
    assert rescale["status"] == "COMPLETED", rescale["failure"]
    assert job.show()["spec"]["parallelism"] == 4
    job.deliver_and_wait(6)
    job.finish()
    assert job.wrong_checks() == []


@pytest.mark.exhaustive
def test_a_job_goes_on_without_a_control_plane_and_is_found_again(
    control_plane: RunningControlPlane,
) -> None:
    job = FlightsJob(control_plane)
    job.create(parallelism=2)
    job.start()
    job.deliver_and_wait(4)
    driver = psutil.Process(job.show()["status"]["attempt"]["pid"])
    control_plane.kill()
    job.deliver_and_wait(6)
    control_plane.start_again()
    job.wait("the job to be seen running", lambda: job.show()["status"]["state"] == "RUNNING")
    assert job.show()["status"]["attempt"]["pid"] == driver.pid
    assert driver.is_running()
    job.finish()
    assert job.wrong_checks() == []

"""A job is rescaled live through a real control plane: one driver, exact output, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.client.request_paths import job_path
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.control_plane.single_run import check_commits

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.fixture
def job() -> Iterator[FlightsJob]:
    with running_control_plane() as control_plane:
        job = FlightsJob(control_plane, reports=24_000, files=48)
        job.create(parallelism=2, parallelism_limit=4)
        job.start()
        job.deliver_and_wait(4)
        yield job


def rescaled(job: FlightsJob, parallelism: int) -> Any:
    """Rescales the job while input comes in, and returns the operation at its end."""
    operation = job.rescale(parallelism)

    def ended() -> Any:
        if job.files_left > 12:
            job.deliver(1)
        shown = job.show_rescale(operation)
        return shown if shown["status"] != "IN_PROGRESS" else None

    return job.wait(f"the rescale to {parallelism}", ended)


def test_one_driver_rescales_its_job_from_2_to_4_to_1_to_3_and_every_number_is_right(job: FlightsJob) -> None:
    process = job.show()["status"]["attempt"]["pid"]
    for parallelism in (4, 1, 3):
        operation = rescaled(job, parallelism)
        print(operation)  # noqa: T201 - for whoever looks at the times
        assert (operation["status"], operation["rescale_mode"], operation["failure"]) == ("COMPLETED", "LIVE", None)
        assert [step["phase"] for step in operation["phases"]][:1] == ["PREPARE"]
        shown = job.show()
        assert (shown["spec"]["parallelism"], shown["status"]["attempt"]["pid"]) == (parallelism, process)
    job.finish()
    assert job.wrong_checks() == []
    check_commits((job.control_plane.home / "store").as_uri(), job.id)


def test_more_subtasks_than_slots_take_a_new_driver(job: FlightsJob) -> None:
    process = job.show()["status"]["attempt"]["pid"]
    operation = rescaled(job, 5)
    assert (operation["status"], operation["rescale_mode"]) == ("COMPLETED", "STANDBY")
    assert "4 task slots" in operation["not_live"]["message"]
    assert job.show()["status"]["attempt"]["pid"] != process
    job.control_plane.api.post(job_path(job.id, "stop"))

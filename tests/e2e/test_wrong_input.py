"""Wrong requests give a clear error and leave a running job, and a job without its store, unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.errors import RefusedError
from keyscale.client.request_paths import job_path
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.flights_job import SCRIPT, FlightsJob
from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(600)]


def refusal(call: Callable[[], Any]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        call()
    return caught.value


def assert_is_clear(problem: dict[str, Any], code: str) -> None:
    assert problem["code"] == code
    assert problem["detail"]
    assert len(problem["advice"]) > 10


def test_a_second_rescale_is_refused_while_one_runs_and_the_first_one_is_not_disturbed(
    control_plane: RunningControlPlane,
) -> None:
    running = FlightsJob(control_plane, reports=4_000, files=8)
    running.create(parallelism=1, max_parallelism=8, rescale_mode="STANDBY")  # which takes longer than the questions
    running.start()
    running.deliver_and_wait(2)
    for parallelism in (0, 9):
        before = running.show()["spec"]["parallelism"]
        error = refusal(lambda parallelism=parallelism: running.rescale(parallelism))
        assert_is_clear(error.problem, "PARALLELISM_OUT_OF_RANGE")
        problem = keyscale(control_plane, "rescale", running.id, str(parallelism), "--json").problem
        assert_is_clear(problem, "PARALLELISM_OUT_OF_RANGE")
        assert running.show()["spec"]["parallelism"] == before
    first = running.rescale(2)
    assert_is_clear(refusal(lambda: running.rescale(3)).problem, "OPERATION_IN_PROGRESS")
    assert_is_clear(keyscale(control_plane, "rescale", running.id, "3", "--json").problem, "OPERATION_IN_PROGRESS")
    running.wait("the first rescale to end", lambda: running.show_rescale(first)["status"] != "IN_PROGRESS")
    assert running.show_rescale(first)["status"] == "COMPLETED"
    assert running.show()["spec"]["parallelism"] == 2
    running.finish()
    assert running.wrong_checks() == []


# The API alone refuses it, too: tests/integration/api/test_store_credentials.py
def test_a_job_cannot_be_started_without_its_store_and_is_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_control_plane({"KEYSCALE_STORE_URL": store.as_uri()}) as platform:
        artifact = upload_file(platform.api, SCRIPT)
        name = platform.api.post("/v1/jobs", {"name": "stranded", "spec": {"artifact_id": artifact["id"]}})["name"]
        before = platform.api.get(job_path(name))
        if store.exists():
            store.rename(tmp_path / "unplugged")
        store.write_text("a file where the directory was")
        error = refusal(lambda: platform.api.post(job_path(name, "start")))
        assert error.status == 503
        assert_is_clear(error.problem, "STORE_UNAVAILABLE")
        assert_is_clear(keyscale(platform, "jobs", "start", name, "--json").problem, "STORE_UNAVAILABLE")
        assert platform.api.get(job_path(name)) == before

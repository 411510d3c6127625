"""Wrong input through the API and the command line gives a clear error with a code and leaves the job unchanged."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.client import job_path
from keyscale.api.cli.errors import RefusedError
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.flights_job import SCRIPT, FlightsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("platform"), pytest.mark.timeout(600)]

UNKNOWN = "no-such-job"


@pytest.fixture(scope="module")
def job(platform: RunningControlPlane) -> str:
    """The name of a job that was created and never started."""
    artifact = upload_file(platform.api, SCRIPT)
    body = {"name": "untouched", "artifact_id": artifact["id"], "parallelism": 2, "max_parallelism": 16}
    return str(platform.api.post("/jobs", body)["name"])


def refusal(call: Callable[[], Any]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        call()
    return caught.value


def assert_is_clear(problem: dict[str, Any], code: str) -> None:
    assert problem["code"] == code
    assert problem["detail"]
    assert len(problem["advice"]) > 10


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("GET", (), None),
        ("DELETE", (), None),
        ("POST", ("start",), None),
        ("POST", ("stop",), {}),
        ("POST", ("cancel",), None),
        ("POST", ("savepoints",), {}),
        ("POST", ("checkpoints",), {}),
        ("POST", ("rescale",), {"parallelism": 2}),
        ("GET", ("checkpoints",), None),
        ("GET", ("checkpoints", 1), None),
        ("GET", ("savepoints",), None),
        ("GET", ("rescales",), None),
        ("GET", ("attempts",), None),
        ("GET", ("events",), None),
        ("GET", ("logs",), None),
    ],
)
def test_every_route_of_a_job_reports_that_there_is_no_such_job(
    platform: RunningControlPlane, method: str, rest: tuple[str | int, ...], body: dict[str, Any] | None
) -> None:
    error = refusal(lambda: platform.api.request(method, job_path(UNKNOWN, *rest), json=body))
    assert error.http_status == 404
    assert_is_clear(error.problem, "JOB_NOT_FOUND")


@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "show", UNKNOWN),
        ("jobs", "start", UNKNOWN),
        ("jobs", "stop", UNKNOWN),
        ("jobs", "cancel", UNKNOWN),
        ("jobs", "delete", UNKNOWN),
        ("rescale", UNKNOWN, "2"),
        ("savepoints", "trigger", UNKNOWN),
        ("checkpoints", "list", UNKNOWN),
        ("logs", UNKNOWN),
    ],
    ids=" ".join,
)
def test_every_command_reports_that_there_is_no_such_job(
    platform: RunningControlPlane, command: tuple[str, ...]
) -> None:
    answer = keyscale(platform, *command)
    assert answer.exit_code == 1
    assert "JOB_NOT_FOUND" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert_is_clear(keyscale(platform, *command, "--json").problem, "JOB_NOT_FOUND")


@pytest.mark.parametrize("parallelism", [0, -1, 17, 2**31, 10**12])
def test_a_job_cannot_be_created_beyond_its_max_parallelism(
    platform: RunningControlPlane, job: str, parallelism: int
) -> None:
    artifact_id = platform.api.get(job_path(job))["artifact_id"]
    body = {"name": "never", "artifact_id": artifact_id, "parallelism": parallelism, "max_parallelism": 16}
    error = refusal(lambda: platform.api.post("/jobs", body))
    assert error.http_status == 422
    assert_is_clear(error.problem, "PARALLELISM_OUT_OF_RANGE")
    command = ["jobs", "create", "never", "--artifact", artifact_id, "-p", str(parallelism), "--max-parallelism", "16"]
    assert_is_clear(keyscale(platform, *command, "--json").problem, "PARALLELISM_OUT_OF_RANGE")
    assert {known["name"] for known in platform.api.get("/jobs")["jobs"]}.isdisjoint({"never"})


def test_a_job_that_does_not_run_cannot_be_rescaled_nor_stopped(platform: RunningControlPlane, job: str) -> None:
    before = platform.api.get(job_path(job))
    for rest, body in ((("rescale",), {"parallelism": 4}), (("stop",), {}), (("savepoints",), {})):
        error = refusal(lambda rest=rest, body=body: platform.api.post(job_path(job, *rest), body))
        assert error.http_status == 409
        assert_is_clear(error.problem, "JOB_STATUS_CONFLICT")
    assert platform.api.get(job_path(job)) == before


def zip_without_a_program() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("module.py", "x = 1\n")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("filename", "content"),
    [
        ("notes.txt", b"hello"),
        ("job.py", b"def broken(:\n"),
        ("job.py", b"\xff\xfe\x00binary"),
        ("job.py", b""),
        ("job.zip", b"this is no zip"),
        ("job.jar", b"nor a jar"),
        pytest.param("job.zip", zip_without_a_program()[:-30], id="job.zip-cut off"),
        ("no-ending", b"print(1)"),
    ],
)
def test_a_file_that_is_not_a_python_file_zip_or_jar_is_refused_and_not_stored(
    platform: RunningControlPlane, tmp_path: Path, filename: str, content: bytes
) -> None:
    before = platform.api.get("/artifacts")
    error = refusal(lambda: platform.api.upload("/artifacts", filename=filename, content=content))
    assert error.http_status == 422
    assert_is_clear(error.problem, "ARTIFACT_INVALID")
    file = tmp_path / filename
    file.write_bytes(content)
    answer = keyscale(platform, "artifacts", "upload", str(file), "--json")
    assert answer.exit_code == 1
    assert_is_clear(answer.problem, "ARTIFACT_INVALID")
    assert platform.api.get("/artifacts") == before


def test_a_zip_without_a_main_program_cannot_be_a_job(platform: RunningControlPlane) -> None:
    def create() -> None:
        artifact = platform.api.upload("/artifacts", filename="library.zip", content=zip_without_a_program())
        platform.api.post("/jobs", {"name": "never", "artifact_id": artifact["id"]})

    assert refusal(create).problem["code"] in {"ARTIFACT_INVALID", "ARTIFACT_NOT_RUNNABLE"}


def test_a_missing_file_is_an_error_of_the_command_line(platform: RunningControlPlane, tmp_path: Path) -> None:
    answer = keyscale(platform, "artifacts", "upload", str(tmp_path / "none.py"))
    assert answer.exit_code == 1
    assert "CLI_INVALID_ARGUMENT" in answer.stderr


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "artifact_id"),
        ({"name": "../etc", "artifact_id": "a"}, "name"),
        ({"name": "x", "artifact_id": "a", "paralelism": 2}, "paralelism"),
        ({"name": "x", "artifact_id": "a", "parallelism": "many"}, "parallelism"),
        ({"name": "x", "artifact_id": "a", "checkpoints": {"interval_ms": 1}}, "interval_ms"),
    ],
)
def test_the_error_of_an_invalid_request_names_the_wrong_field(
    platform: RunningControlPlane, body: dict[str, Any], field: str
) -> None:
    error = refusal(lambda: platform.api.post("/jobs", body))
    assert_is_clear(error.problem, "REQUEST_INVALID")
    assert any(field in wrong["field"] for wrong in error.problem["errors"])


def test_a_wrong_token_is_refused_everywhere_except_for_health(platform: RunningControlPlane) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    for path in ("/jobs", "/artifacts", "/events", job_path(UNKNOWN)):
        error = refusal(lambda path=path: platform.api.request("GET", path, headers=wrong))
        assert error.http_status == 401
        assert_is_clear(error.problem, "TOKEN_INVALID")
    assert platform.api.request("GET", "/health", headers=wrong).is_success


def test_a_job_whose_script_raises_at_once_fails_with_the_scripts_message(platform: RunningControlPlane) -> None:
    script = b'raise ValueError("there is no such topic")\n'
    artifact = platform.api.upload("/artifacts", filename="raises.py", content=script)
    name = platform.api.post("/jobs", {"name": "raises", "artifact_id": artifact["id"]})["name"]
    platform.api.post(job_path(name, "start"))
    wait_until(lambda: platform.api.get(job_path(name))["status"] == "FAILED", 120, what="the job to fail")
    failed = platform.api.get(job_path(name))
    assert failed["failure"]["code"]
    shown = f"{failed['failure']['message']} {failed['failure']['traceback']}"
    assert "there is no such topic" in shown
    assert keyscale(platform, "jobs", "show", name).exit_code == 0
    assert keyscale(platform, "jobs", "delete", name).exit_code == 0


@pytest.mark.exhaustive
def test_a_second_rescale_is_refused_while_one_runs_and_the_first_one_is_not_disturbed(
    platform: RunningControlPlane,
) -> None:
    running = FlightsJob(platform, reports=4_000, files=8)
    running.create(parallelism=1, max_parallelism=8)
    running.start()
    running.deliver_and_wait(2)
    for parallelism in (0, 9):
        before = running.show()["parallelism"]
        error = refusal(lambda parallelism=parallelism: running.rescale(parallelism))
        assert_is_clear(error.problem, "PARALLELISM_OUT_OF_RANGE")
        problem = keyscale(platform, "rescale", running.id, str(parallelism), "--json").problem
        assert_is_clear(problem, "PARALLELISM_OUT_OF_RANGE")
        assert running.show()["parallelism"] == before
    first = running.rescale(2)
    assert_is_clear(refusal(lambda: running.rescale(3)).problem, "RESCALE_IN_PROGRESS")
    assert_is_clear(keyscale(platform, "rescale", running.id, "3", "--json").problem, "RESCALE_IN_PROGRESS")
    running.wait("the first rescale to end", lambda: running.show_rescale(first)["status"] != "IN_PROGRESS")
    assert running.show_rescale(first)["status"] == "COMPLETED"
    assert running.show()["parallelism"] == 2
    running.finish()
    assert running.wrong_checks() == []


@pytest.mark.exhaustive  # the API alone refuses it, too: tests/integration/api/test_store_credentials.py
def test_a_job_cannot_be_started_without_its_store_and_is_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_control_plane({"KEYSCALE_STORE_URL": store.as_uri()}) as platform:
        artifact = upload_file(platform.api, SCRIPT)
        name = platform.api.post("/jobs", {"name": "stranded", "artifact_id": artifact["id"]})["name"]
        before = platform.api.get(job_path(name))
        if store.exists():
            store.rename(tmp_path / "unplugged")
        store.write_text("a file where the directory was")
        error = refusal(lambda: platform.api.post(job_path(name, "start")))
        assert error.http_status == 503
        assert_is_clear(error.problem, "STORE_UNAVAILABLE")
        assert_is_clear(keyscale(platform, "jobs", "start", name, "--json").problem, "STORE_UNAVAILABLE")
        assert platform.api.get(job_path(name)) == before

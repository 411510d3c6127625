"""Wrong input through the API and the command line gives a clear error with a code and leaves the job unchanged."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.client.errors import RefusedError
from keyscale.client.keyscale import Keyscale
from keyscale.client.request_paths import job_path
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.driverless_platform import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

UNKNOWN = "no-such-job"


@pytest.fixture(scope="module")
def job(platform: Platform) -> str:
    """The name of a job that was created and never started."""
    artifact = platform.api.upload("/v1/artifacts", filename="job.py", content=SCRIPT)
    body = {"name": "untouched", "spec": {"artifact_id": artifact["id"], "parallelism": 2, "max_parallelism": 16}}
    return str(platform.api.post("/v1/jobs", body)["name"])


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
        ("POST", ("savepoint",), {}),
        ("POST", ("checkpoint",), {}),
        ("POST", ("operations",), {"kind": "STOP"}),
        ("POST", ("rescale",), {"parallelism": 2}),
        ("GET", ("checkpoints",), None),
        ("GET", ("checkpoints", 1), None),
        ("GET", ("savepoints",), None),
        ("GET", ("operations",), None),
        ("GET", ("attempts",), None),
        ("GET", ("events",), None),
        ("GET", ("logs",), None),
    ],
)
def test_every_route_of_a_job_reports_that_there_is_no_such_job(
    platform: Platform, method: str, rest: tuple[str | int, ...], body: dict[str, Any] | None
) -> None:
    error = refusal(lambda: platform.api.request(method, job_path(UNKNOWN, *rest), body))
    assert error.status == 404
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
def test_every_command_reports_that_there_is_no_such_job(platform: Platform, command: tuple[str, ...]) -> None:
    answer = keyscale(platform, *command)
    assert answer.exit_code == 1
    assert "JOB_NOT_FOUND" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert_is_clear(keyscale(platform, *command, "--json").problem, "JOB_NOT_FOUND")


@pytest.mark.parametrize("parallelism", [0, -1, 17, 2**31, 10**12])
def test_a_job_cannot_be_created_beyond_its_max_parallelism(platform: Platform, job: str, parallelism: int) -> None:
    code = "PARALLELISM_OUT_OF_RANGE" if parallelism == 17 else "REQUEST_INVALID"
    artifact_id = platform.api.get(job_path(job))["spec"]["artifact_id"]
    body = {"name": "never", "spec": {"artifact_id": artifact_id, "parallelism": parallelism, "max_parallelism": 16}}
    error = refusal(lambda: platform.api.post("/v1/jobs", body))
    assert error.status == 422
    assert_is_clear(error.problem, code)
    command = [
        "jobs",
        "create",
        "never",
        "--artifact",
        artifact_id,
        "-p",
        str(parallelism),
        "--set",
        "max_parallelism=16",
    ]
    assert_is_clear(keyscale(platform, *command, "--json").problem, code)
    assert {known["name"] for known in platform.api.get("/v1/jobs")["jobs"]}.isdisjoint({"never"})


def test_a_job_that_does_not_run_cannot_be_rescaled_nor_stopped(platform: Platform, job: str) -> None:
    before = platform.api.get(job_path(job))
    for rest, body in ((("rescale",), {"parallelism": 4}), (("stop",), {}), (("savepoint",), {})):
        error = refusal(lambda rest=rest, body=body: platform.api.post(job_path(job, *rest), body))
        assert error.status == 409
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
        ("job.py", b"def broken(:\n"),
        ("job.zip", b"this is no zip"),
        ("job.jar", b"nor a jar"),
        ("no-ending", b"print(1)"),
    ],
)
def test_a_file_that_is_not_a_python_file_zip_or_jar_is_refused_and_not_stored(
    platform: Platform, tmp_path: Path, filename: str, content: bytes
) -> None:
    before = platform.api.get("/v1/artifacts")
    error = refusal(lambda: platform.api.upload("/v1/artifacts", filename=filename, content=content))
    assert error.status == 422
    assert_is_clear(error.problem, "ARTIFACT_INVALID")
    file = tmp_path / filename
    file.write_bytes(content)
    answer = keyscale(platform, "artifacts", "upload", str(file), "--json")
    assert answer.exit_code == 1
    assert_is_clear(answer.problem, "ARTIFACT_INVALID")
    assert platform.api.get("/v1/artifacts") == before


def test_a_zip_without_a_main_program_cannot_be_a_job(platform: Platform) -> None:
    def create() -> None:
        artifact = platform.api.upload("/v1/artifacts", filename="library.zip", content=zip_without_a_program())
        platform.api.post("/v1/jobs", {"name": "never", "spec": {"artifact_id": artifact["id"]}})

    assert refusal(create).problem["code"] in {"ARTIFACT_INVALID", "ARTIFACT_NOT_RUNNABLE"}


def test_a_missing_file_is_an_error_of_the_command_line(platform: Platform, tmp_path: Path) -> None:
    answer = keyscale(platform, "artifacts", "upload", str(tmp_path / "none.py"))
    assert answer.exit_code == 1
    assert "CLI_INVALID_ARGUMENT" in answer.stderr


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "spec"),
        ({"name": "x", "spec": {}}, "artifact_id"),
        ({"name": "../etc", "spec": {"artifact_id": "a"}}, "name"),
        ({"name": "x", "paralelism": 2, "spec": {"artifact_id": "a"}}, "paralelism"),
        ({"name": "x", "spec": {"artifact_id": "a", "parallelism": "many"}}, "parallelism"),
        ({"name": "x", "spec": {"artifact_id": "a", "checkpoints": {"interval_ms": 1}}}, "interval_ms"),
    ],
)
def test_the_error_of_an_invalid_request_names_the_wrong_field(
    platform: Platform, body: dict[str, Any], field: str
) -> None:
    error = refusal(lambda: platform.api.post("/v1/jobs", body))
    assert_is_clear(error.problem, "REQUEST_INVALID")
    assert any(field in wrong["field"] for wrong in error.problem["errors"])


@pytest.mark.parametrize("misspelt", ["keep-objects", "dry_run"])
def test_a_deletion_with_an_unknown_query_parameter_is_refused(platform: Platform, job: str, misspelt: str) -> None:
    error = refusal(lambda: platform.api.delete(job_path(job), **{misspelt: True}))
    assert_is_clear(error.problem, "REQUEST_INVALID")
    assert error.problem["errors"] == [
        {"field": f"query.{misspelt}", "message": "The query parameters are: keep_objects"}
    ]
    assert platform.api.get(job_path(job))["name"] == job


def test_a_deletion_with_an_unknown_query_parameter_and_a_wrong_token_is_refused_for_the_token(
    platform: Platform, job: str
) -> None:
    with Keyscale(platform.url, "wrong") as stranger:
        error = refusal(lambda: stranger.delete(job_path(job), dry_run=True))
    assert (error.status, error.problem["code"]) == (401, "TOKEN_INVALID")


def test_a_list_with_an_unknown_filter_is_refused_rather_than_shown_whole(platform: Platform) -> None:
    error = refusal(lambda: platform.api.get("/v1/jobs", status="FAILED"))
    assert_is_clear(error.problem, "REQUEST_INVALID")
    assert platform.api.get("/v1/jobs", limit=1)["jobs"], "the known parameters are accepted"


def test_a_wrong_token_is_refused_everywhere_except_for_health(platform: Platform) -> None:
    with Keyscale(platform.url, "wrong") as stranger:
        for path in ("/v1/jobs", "/v1/artifacts", "/v1/events", job_path(UNKNOWN)):
            error = refusal(lambda path=path: stranger.get(path))
            assert error.status == 401
            assert_is_clear(error.problem, "TOKEN_INVALID")
        error = refusal(lambda: stranger.get("/health"))
    assert error.status == 503, "nothing is reconciled here, which the health says whatever the token is"

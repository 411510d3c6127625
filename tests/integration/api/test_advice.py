"""The advice of the most common errors works when it is followed, one error after the other."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.errors import RefusedError
from keyscale.client.keyscale import Keyscale
from tests.support.control_plane.command_line import done, keyscale, refused
from tests.support.control_plane.driverless_platform import SCRIPT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.command_line import CommandAnswer
    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_bytes(SCRIPT)
    return path


def create(platform: Platform, name: str, program: Path, *more: str) -> CommandAnswer:
    return keyscale(platform, "jobs", "create", name, "--file", str(program), *more)


def test_a_program_is_accepted_when_python_can_compile_it(platform: Platform, program: Path) -> None:
    program.write_text("def broken(:\n")
    assert "Python can compile" in refused(keyscale(platform, "artifacts", "upload", str(program)), "ARTIFACT_INVALID")
    program.write_bytes(SCRIPT)
    done(keyscale(platform, "artifacts", "upload", str(program)))


def test_a_zip_can_be_a_job_once_it_has_a_main(platform: Platform, tmp_path: Path) -> None:
    def zipped(name: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, SCRIPT)
        return buffer.getvalue()

    path = tmp_path / "packed.zip"
    path.write_bytes(zipped("program.py"))
    assert "main.py" in refused(create(platform, "packed", path), "ARTIFACT_")
    path.write_bytes(zipped("main.py"))
    done(create(platform, "packed", path))


def test_an_artifact_can_be_deleted_once_its_job_is(platform: Platform, program: Path) -> None:
    artifact = upload_file(platform.api, program)["id"]
    done(keyscale(platform, "jobs", "create", "user-of-it", "--artifact", artifact))
    refused(keyscale(platform, "artifacts", "delete", artifact), "ARTIFACT_IN_USE")
    done(keyscale(platform, "jobs", "delete", "user-of-it"))
    for job in platform.api.get("/v1/jobs")["jobs"]:  # the same bytes are the same artifact
        if job["spec"]["artifact_id"] == artifact:
            done(keyscale(platform, "jobs", "delete", job["name"]))
    done(keyscale(platform, "artifacts", "delete", artifact))


def test_a_job_is_found_by_a_name_of_the_list_and_gets_another_name_where_one_is_taken(
    platform: Platform, program: Path
) -> None:
    done(create(platform, "taken", program))
    refused(create(platform, "taken", program), "JOB_NAME_TAKEN")
    done(create(platform, "taken-2", program))
    refused(keyscale(platform, "jobs", "show", "take"), "JOB_NOT_FOUND")
    listed = done(keyscale(platform, "jobs", "list", "--json")).json["jobs"]
    assert {"taken", "taken-2"} <= {job["name"] for job in listed}
    for name in ("taken", "taken-2"):
        done(keyscale(platform, "jobs", "show", name))
        done(keyscale(platform, "jobs", "delete", name))


def test_a_job_is_created_with_values_that_the_advice_allows(platform: Platform, program: Path) -> None:
    bound = ("--set", "max_parallelism=16", "-p")
    assert "from 1 to" in refused(create(platform, "bounded", program, *bound, "17"), "PARALLELISM_OUT_OF_RANGE")
    done(create(platform, "bounded", program, *bound, "16"))
    setting = ("--set", "spark_conf.spark.driver.extraJavaOptions=-Dx=1")
    advice = refused(create(platform, "settled", program, *setting), "SPARK_CONF_NOT_ALLOWED")
    assert "docs/configuration.md" in advice
    done(create(platform, "settled", program, "--set", "spark_conf.spark.executor.memory=1g"))
    for name in ("bounded", "settled"):
        done(keyscale(platform, "jobs", "delete", name))


def test_the_token_is_in_the_file_that_the_advice_names(platform: Platform) -> None:
    with pytest.raises(RefusedError) as caught, Keyscale(platform.url, "wrong") as stranger:
        stranger.get("/v1/jobs")
    assert "`token`" in caught.value.problem["advice"]
    token = platform.context.settings.token_file.read_text().strip()
    with Keyscale(platform.url, token) as user:
        assert user.get("/v1/jobs")["jobs"]

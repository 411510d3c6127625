"""The advice of the most common errors works when it is followed, one error after the other."""

from __future__ import annotations

import io
import json
import re
import shlex
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.client import job_path
from keyscale.api.cli.errors import RefusedError
from tests.support.control_plane.command_line import keyscale

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.command_line import CommandAnswer
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("platform"), pytest.mark.timeout(1200)]

PROGRAM = """
from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment


class Halves(KeyedProcessFunction):
    def process_element(self, row, context):
        yield {"user": row.user, "half": HALF}


def build(env):
    amounts = env.stream(env.spark.readStream.schema("user string, amount bigint").json(env.parameters["input"]))
    halves = amounts.key_by("user").process(Halves(), output={"user": "string", "half": "bigint"})
    halves.uid("halves").sink_to(FileSink(env.parameters["output"], format="json"))UID


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
"""
RIGHT = PROGRAM.replace("HALF", "row.amount // 2").replace("UID", '.uid("files")')
WITHOUT_UID = PROGRAM.replace("HALF", "row.amount // 2").replace("UID", "")
FAILING = PROGRAM.replace("HALF", "row.amount // 0").replace("UID", '.uid("files")')


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that works, with input for it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"user": "ada", "amount": 6}\n')
    path = tmp_path / "halves.py"
    path.write_text(RIGHT)
    return path


def refused(answer: CommandAnswer, code: str) -> str:
    """The text of a refusal: its detail, then its advice."""
    assert answer.exit_code == 1, answer.stdout
    assert code in answer.stderr
    return answer.stderr


def done(answer: CommandAnswer) -> CommandAnswer:
    assert answer.exit_code == 0, answer.stderr
    return answer


def follow(platform: RunningControlPlane, text: str) -> None:
    """Runs the first command that a refusal names."""
    named = re.search(r"`\./keyscale ([^`]+)`", text)
    assert named, text
    done(keyscale(platform, *shlex.split(named[1])))


def follow_update(platform: RunningControlPlane, advice: str, program: Path) -> CommandAnswer:
    """Runs all commands of an advice to correct the job; returns the answer of the last one, which starts it."""
    commands = re.findall(r"`\./keyscale ([^`]+)`", advice)
    assert [line.split()[1] for line in commands] == ["update", "start"]
    values = {"JOB": "corrected", "FILE": str(program), "NAME": "STOCK"}
    update, start = ([values.get(word, word) for word in shlex.split(line)] for line in commands)
    done(keyscale(platform, *update))
    return keyscale(platform, *start)


def create(platform: RunningControlPlane, name: str, program: Path, *more: str) -> CommandAnswer:
    parameters = ("-P", f"input={program.parent / 'in'}", "-P", f"output={program.parent / name}")
    return keyscale(platform, "jobs", "create", name, "--file", str(program), *parameters, *more)


def test_a_program_is_accepted_when_python_can_compile_it(platform: RunningControlPlane, program: Path) -> None:
    program.write_text("def broken(:\n")
    assert "Python can compile" in refused(keyscale(platform, "artifacts", "upload", str(program)), "ARTIFACT_INVALID")
    program.write_text(RIGHT)
    done(keyscale(platform, "artifacts", "upload", str(program)))


def test_a_zip_can_be_a_job_once_it_has_a_main(platform: RunningControlPlane, tmp_path: Path) -> None:
    def zipped(name: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, RIGHT)
        return buffer.getvalue()

    path = tmp_path / "packed.zip"
    path.write_bytes(zipped("halves.py"))
    assert "main.py" in refused(create(platform, "packed", path), "ARTIFACT_")
    path.write_bytes(zipped("main.py"))
    done(create(platform, "packed", path))


def test_an_artifact_can_be_deleted_once_its_job_is(platform: RunningControlPlane, program: Path) -> None:
    artifact = upload_file(platform.api, program)["id"]
    done(keyscale(platform, "jobs", "create", "user-of-it", "--artifact", artifact))
    refused(keyscale(platform, "artifacts", "delete", artifact), "ARTIFACT_IN_USE")
    done(keyscale(platform, "jobs", "delete", "user-of-it"))
    for job in platform.api.get("/jobs")["jobs"]:  # the same bytes are the same artifact
        if job["artifact_id"] == artifact:
            done(keyscale(platform, "jobs", "delete", job["name"]))
    done(keyscale(platform, "artifacts", "delete", artifact))


def test_a_job_is_found_by_a_name_of_the_list_and_gets_another_name_where_one_is_taken(
    platform: RunningControlPlane, program: Path
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


def test_a_job_is_created_with_values_that_the_advice_allows(platform: RunningControlPlane, program: Path) -> None:
    bound = ("--max-parallelism", "16", "-p")
    assert "from 1 to" in refused(create(platform, "bounded", program, *bound, "17"), "PARALLELISM_OUT_OF_RANGE")
    done(create(platform, "bounded", program, *bound, "16"))
    setting = ("--spark-conf", "spark.driver.extraJavaOptions=-Dx=1")
    advice = refused(create(platform, "settled", program, *setting), "SPARK_CONF_NOT_ALLOWED")
    assert "docs/configuration.md" in advice
    done(create(platform, "settled", program, "--spark-conf", "spark.executor.memory=1g"))
    for name in ("bounded", "settled"):
        done(keyscale(platform, "jobs", "delete", name))


def test_the_token_is_in_the_file_that_the_advice_names(platform: RunningControlPlane) -> None:
    with pytest.raises(RefusedError) as caught:
        platform.api.request("GET", "/jobs", headers={"Authorization": "Bearer wrong"})
    assert "`token`" in caught.value.problem["advice"]
    token = (platform.home / "token").read_text().strip()
    assert platform.api.request("GET", "/jobs", headers={"Authorization": f"Bearer {token}"}).is_success


def test_the_command_that_a_status_conflict_names_makes_the_request_possible(
    platform: RunningControlPlane, program: Path
) -> None:
    done(create(platform, "halves", program))
    follow(platform, refused(keyscale(platform, "savepoints", "trigger", "halves"), "JOB_STATUS_CONFLICT"))
    done(keyscale(platform, "savepoints", "trigger", "halves"))
    follow(platform, refused(keyscale(platform, "jobs", "start", "halves"), "JOB_STATUS_CONFLICT"))
    follow(platform, refused(keyscale(platform, "jobs", "delete", "halves"), "JOB_STATUS_CONFLICT"))
    assert platform.api.get(job_path("halves"))["status"] == "STOPPED", "`jobs stop` returns when the list says so"
    done(keyscale(platform, "jobs", "delete", "halves"))


@pytest.mark.exhaustive
def test_a_program_that_fails_is_corrected_by_its_failure(platform: RunningControlPlane, program: Path) -> None:
    """A fault of the code is given up the third time, is shown all the while, and is gone with the next program."""
    program.write_text(WITHOUT_UID)
    shown = refused(create(platform, "corrected", program, "--start", "--wait"), "CLI_JOB_FAILED")
    assert "JOB_UID_MISSING" in shown
    assert ".uid(" in shown
    program.write_text(f"from keyscale import Secret\nSecret('STOCK').reveal()\n{FAILING}")
    done(keyscale(platform, "jobs", "update", "corrected", "--file", str(program)))
    refused(keyscale(platform, "jobs", "start", "corrected", "--wait"), "JOB_SECRET_NOT_NAMED")
    events = platform.api.get(job_path("corrected", "events"))["events"]
    assert "ATTEMPT_REPLACED" not in [event["kind"] for event in events], "no restart helps"
    started = follow_update(platform, platform.api.get(job_path("corrected"))["failure"]["advice"], program)
    if started.exit_code == 0:  # it runs until its first batch fails
        done(keyscale(platform, "jobs", "wait", "corrected", "--for", "FAILED", "--timeout", "500"))
    failed = platform.api.get(job_path("corrected"))
    assert failed["failure"]["code"] == "JOB_FUNCTION_FAILED"
    assert "3 times in a row" in failed["failure"]["message"]
    events = platform.api.get(job_path("corrected", "events"))["events"]
    assert [event["kind"] for event in events].count("ATTEMPT_REPLACED") == 2
    log = done(keyscale(platform, "logs", "corrected")).stdout
    assert 'yield {"user": row.user, "half": row.amount // 0}' in log.partition("the job's last failure")[2]

    program.write_text(RIGHT)
    done(follow_update(platform, failed["failure"]["advice"], program))
    done(keyscale(platform, "jobs", "stop", "corrected", "--drain"))
    parts = (program.parent / "corrected").glob("batch=*/*.json")
    rows: list[Any] = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert rows == [{"user": "ada", "half": 3}]
    assert platform.api.get(job_path("corrected"))["failure"] is None

"""The advice of failed programs works when it is followed, one failure after the other."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.client.request_paths import job_path
from tests.support.control_plane.command_line import done, keyscale, refused
from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.control_plane.command_line import CommandAnswer
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(1200)]

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


def create(control_plane: RunningControlPlane, name: str, program: Path, *more: str) -> CommandAnswer:
    parameters = ("-P", f"input={program.parent / 'in'}", "-P", f"output={program.parent / name}")
    return keyscale(control_plane, "jobs", "create", name, "--file", str(program), *parameters, *more)


def follow_update(control_plane: RunningControlPlane, advice: str, program: Path) -> CommandAnswer:
    """Runs all commands of an advice to correct the job; returns the answer of the last one, which starts it."""
    commands = re.findall(r"`\./keyscale ([^`]+)`", advice)
    assert [line.split()[1] for line in commands] == ["update", "start"]
    values = {"JOB": "corrected", "FILE": str(program), "NAME": "STOCK"}
    update, start = ([values.get(word, word) for word in shlex.split(line)] for line in commands)
    done(keyscale(control_plane, *update))
    return keyscale(control_plane, *start)


@pytest.fixture
def control_plane() -> Iterator[RunningControlPlane]:
    with running_control_plane({"KEYSCALE_JOB_SECRET_STOCK": "hunter2hunter2"}) as running:
        yield running


def test_a_program_that_fails_is_corrected_by_its_failure(control_plane: RunningControlPlane, program: Path) -> None:
    """A fault of the code is given up the third time, is shown all the while, and is gone with the next program."""
    program.write_text(WITHOUT_UID)
    shown = refused(create(control_plane, "corrected", program, "--start", "--wait"), "CLI_JOB_FAILED")
    assert "JOB_UID_MISSING" in shown
    assert ".uid(" in shown
    program.write_text(f"from keyscale import Secret\nSecret('STOCK').reveal()\n{FAILING}")
    done(keyscale(control_plane, "jobs", "update", "corrected", "--file", str(program)))
    refused(keyscale(control_plane, "jobs", "start", "corrected", "--wait"), "JOB_SECRET_NOT_NAMED")
    events = control_plane.api.get(job_path("corrected", "events"))["events"]
    assert "ATTEMPT_REPLACED" not in [event["kind"] for event in events], "no restart helps"
    started = follow_update(
        control_plane, control_plane.api.get(job_path("corrected"))["status"]["failure"]["advice"], program
    )
    if started.exit_code == 0:  # it runs until its first batch fails
        done(keyscale(control_plane, "jobs", "wait", "corrected", "--for", "FAILED", "--timeout", "500"))
    failed = control_plane.api.get(job_path("corrected"))
    assert failed["status"]["failure"]["code"] == "JOB_FUNCTION_FAILED"
    assert "3 times in a row" in failed["status"]["failure"]["message"]
    events = control_plane.api.get(job_path("corrected", "events"))["events"]
    assert [event["kind"] for event in events].count("ATTEMPT_REPLACED") == 2
    log = done(keyscale(control_plane, "logs", "corrected")).stdout
    assert 'yield {"user": row.user, "half": row.amount // 0}' in log.partition("the job's last failure")[2]

    program.write_text(RIGHT)
    done(follow_update(control_plane, failed["status"]["failure"]["advice"], program))
    done(keyscale(control_plane, "jobs", "stop", "corrected", "--drain"))
    parts = (program.parent / "corrected").glob("batch=*/*.json")
    rows: list[Any] = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert rows == [{"user": "ada", "half": 3}]
    assert control_plane.api.get(job_path("corrected"))["status"]["failure"] is None

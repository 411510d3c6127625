"""What files of jobs may say, and where the message of a wrong file points."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from keyscale.client.declarations.job_file import Content, read_declarations
from keyscale.client.errors import JobFileError

if TYPE_CHECKING:
    from pathlib import Path

DEPARTURES = """\
name: departures
labels: {team: travel}
state: RUNNING
program: programs/departures.py
libraries:
  - programs/times.whl
  - package:kafka
platform_owns: [parallelism]
spec:
  parallelism: 2
  parameters:
    output: /data/out
    database: {secret: DATABASE}
  checkpoints: {interval_ms: 5000}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "programs").mkdir()
    for name in ("departures.py", "times.whl"):
        (tmp_path / "programs" / name).write_text(name)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "other.yaml").write_text("unreadable: [")
    return tmp_path


def test_a_file_declares_jobs(directory: Path) -> None:
    other = "---\nname: arrivals\nprogram: programs/departures.py\n---\n"
    (directory / "jobs.yaml").write_text(DEPARTURES + other)
    departures, arrivals = read_declarations([directory / "jobs.yaml"])
    assert (departures.name, departures.labels, departures.state) == ("departures", {"team": "travel"}, "RUNNING")
    assert departures.program == Content(directory / "programs" / "departures.py")
    assert departures.libraries == (Content(directory / "programs" / "times.whl"), "package:kafka")
    assert departures.owned == {"parallelism"}
    assert departures.given == {
        "parallelism": 2,
        "parameters": {"output": "/data/out", "database": {"secret": "DATABASE"}},
        "checkpoints": {
            "interval_ms": 5000,
            "min_pause_ms": 0,
            "timeout_ms": 600_000,
            "retained_count": 3,
            "tolerable_failed_checkpoints": 10,
            "store_outage_max_ms": 300_000,
        },
    }
    assert (arrivals.name, arrivals.state, arrivals.given) == ("arrivals", None, {})
    assert arrivals.place == f"{directory}/jobs.yaml:16"


def test_a_directory_declares_the_jobs_of_all_its_files(directory: Path) -> None:
    (directory / "departures.yaml").write_text(DEPARTURES)
    (directory / "more").mkdir()
    (directory / "more" / "arrivals.yml").write_text("name: arrivals\nprogram: ../programs/departures.py\n")
    (directory / "more" / "notes.txt").write_text("nonsense: [")
    (directory / "more" / ".draft.yaml").write_text("nonsense: [")
    (directory / "folder.yaml").mkdir()
    assert [each.name for each in read_declarations([directory])] == ["departures", "arrivals"]


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("state: RUNNING", "stat: RUNNING", ":3: stat: the field is unknown; do you mean state?"),
        ("state: RUNNING", "state: FINISHED", ":3: state: Input should be 'RUNNING' or 'STOPPED'"),
        ("  parallelism: 2", "  paralelism: 2", ":10: spec.paralelism: the field is unknown; do you mean parallelism?"),
        ("  parallelism: 2", "  parallelism: two", ":10: spec.parallelism: Input should be a valid integer"),
        ("  parallelism: 2", "  parallelism: 2\n  parallelism: 3", ":11: the field parallelism is given twice"),
        ("  parallelism: 2", "  artifact_id: x", ":10: give `program` and `libraries` instead of spec.artifact_id"),
        (
            "  checkpoints: {interval_ms: 5000}",
            "  checkpoints: {interval: 5000}",
            ":14: spec.checkpoints.interval: the field is unknown; do you mean interval_ms?",
        ),
        (
            "  checkpoints: {interval_ms: 5000}",
            "  restart:\n    type: fixed-delay\n    attempt: 3",
            ":16: spec.restart.fixed-delay.attempt: the field is unknown; do you mean attempts?",
        ),
        (
            "  checkpoints: {interval_ms: 5000}",
            "  restart:\n    type: fixed-delay\n    attempts: none",
            ":16: spec.restart.fixed-delay.attempts: Input should be a valid integer",
        ),
        ("    output: /data/out", "    output: yes", ":12: spec.parameters.output"),
        ("    output: /data/out", "    password: hunter2", ":12: the parameter password looks like a secret"),
        ("name: departures", "labels: {}", ":2: the field labels is given twice"),
        ("program: programs/departures.py", "program: nowhere.py", ":4: "),
        ("  - programs/times.whl", "  - nowhere.whl", ":6: "),
        ("platform_owns: [parallelism]", "platform_owns: [name]", ":8: platform_owns.0: "),
        ("spec:", "spec: [", ":"),
        ("labels: {team: travel}", "labels: &a [*a]", ":2: the value holds itself"),
    ],
)
def test_the_message_of_a_wrong_file_has_the_line(directory: Path, line: str, instead: str, message: str) -> None:
    file = directory / "jobs.yaml"
    file.write_text(DEPARTURES.replace(line, instead, 1))
    with pytest.raises(JobFileError) as wrong:
        read_declarations([file])
    assert str(wrong.value).startswith(f"{file}{message}"), wrong.value


def test_every_wrong_field_is_named_at_once(directory: Path) -> None:
    file = directory / "jobs.yaml"
    file.write_text("nam: departures\nprogram: 5\n")
    with pytest.raises(JobFileError) as wrong:
        read_declarations([file])
    assert len(str(wrong.value).splitlines()) == 3, "name is missing, program is no text, nam is unknown"


def test_a_job_is_declared_once(directory: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (directory / name).write_text(DEPARTURES)
    with pytest.raises(JobFileError, match=r"b\.yaml:1: .*a\.yaml:1 declares the job departures already"):
        read_declarations([directory])


def test_a_directory_without_files_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.yaml"):
        with pytest.raises(JobFileError, match=str(path)):
            read_declarations([path])


def test_a_file_cannot_make_objects_of_python(directory: Path) -> None:
    (directory / "jobs.yaml").write_text(
        dedent(
            """\
            name: !!python/object/apply:os.system [ls]
            program: programs/departures.py
            """
        )
    )
    with pytest.raises(JobFileError):
        read_declarations([directory])

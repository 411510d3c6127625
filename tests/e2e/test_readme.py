"""The README's own job, by the README's own commands: its blocks work when they are pasted as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.installation import IMPORT_PATH
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = pytest.mark.real

README = ROOT / "README.md"
DIRECTORY = "/tmp/visits"  # noqa: S108 - the README's, which the test replaces by its own


def block(language: str) -> str:
    """The README's first block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, language
    return found[1]


def paste(commands: str, control_plane: RunningControlPlane, directory: Path) -> str:
    """Pastes commands whole into a shell whose `./keyscale` talks to the control plane; returns what they print.

    They are the shell's input, as in a terminal: a command that reads its input would swallow the rest.
    """
    launcher = directory / "keyscale"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m keyscale.api.cli "$@"\n')
    launcher.chmod(0o755)
    connection = control_plane.process.connection
    done = subprocess.run(
        ["bash"],
        input=commands,
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(IMPORT_PATH),
            "KEYSCALE_URL": connection.url,
            "KEYSCALE_TOKEN": connection.token,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    return done.stdout


def rows(output: Path) -> list[dict[str, Any]]:
    parts = sorted(output.glob("batch=*/*.json"))
    return [json.loads(line) for part in parts if part.name[0] not in "_." for line in part.read_text().splitlines()]


@pytest.fixture
def control_plane() -> Iterator[RunningControlPlane]:
    """A control plane as the README's reader starts it: as root, jobs run as users of their own."""
    with running_control_plane({"KEYSCALE_JOB_USERS": "50000-59999" if os.geteuid() == 0 else "off"}) as running:
        yield running


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the users of jobs may enter; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(prefix="keyscale-readme-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.timeout(1200)
def test_the_readmes_blocks_work_and_the_job_goes_on_counting_after_a_rescale_and_a_stop(
    control_plane: RunningControlPlane, place: Path
) -> None:
    directory = place / "visits"
    clicks, output = directory / "in", directory / "out"
    (place / "visits.py").write_text(block("python"))

    def run(*arguments: str) -> None:
        answer = keyscale(control_plane, *arguments)
        assert answer.exit_code == 0, answer.stderr

    def click_and_expect(number: int) -> None:
        (clicks / f".{number}.json").write_text('{"user": "ada", "page": "/"}\n')
        (clicks / f".{number}.json").rename(clicks / f"{number}.json")
        wait_until(lambda: {"user": "ada", "visits": number} in rows(output), 300, what=f"visit {number}")

    printed = paste(block("bash").replace(DIRECTORY, str(directory)), control_plane, place)
    assert "COMPLETED: 2 -> 4" in printed
    assert '{"user":"ada","visits":1}' in printed
    assert control_plane.api.get("/jobs/visits")["status"] == "STOPPED"
    run("jobs", "start", "visits")
    click_and_expect(2)
    run("rescale", "visits", "2")
    click_and_expect(3)
    run("checkpoints", "list", "visits")
    run("logs", "visits")
    run("jobs", "list")
    assert [row["visits"] for row in rows(output)] == [1, 2, 3]

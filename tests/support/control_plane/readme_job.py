"""The README's own job, by the README's own commands, on a control plane whose jobs have users of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.installation import IMPORT_PATH
from tests.support.control_plane.command_line import done, follow, keyscale, refused
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from tests.support.control_plane.running_control_plane import RunningControlPlane

README = ROOT / "README.md"
DIRECTORY = "/tmp/visits"  # noqa: S108 - the README's, which the tests replace by their own
SECONDS = 300.0


class ReadmeJob:
    """The job `visits`, after the README's commands: rescaled, and stopped with a savepoint.

    Args:
        control_plane: Runs the job.
        place: A directory that the users of jobs may enter; pytest's own are root's alone.
    """

    def __init__(self, control_plane: RunningControlPlane, place: Path) -> None:
        self.control_plane = control_plane
        self._directory = place / "visits"
        (place / "visits.py").write_text(block("python"))
        self.printed = paste(block("bash").replace(DIRECTORY, str(self._directory)), control_plane, place)
        self.clicks = 1
        self.id = str(self.show()["id"])

    def show(self) -> Any:
        return self.control_plane.api.get("/v1/jobs/visits")

    def ensure_running(self) -> None:
        """Starts the stopped job by the command that a refused savepoint advises; from now on without checkpoints."""
        if self.show()["status"]["state"] == "STOPPED":
            done(keyscale(self.control_plane, "jobs", "update", "visits", "--set", "checkpoints.interval_ms=3600000"))
            taken = keyscale(self.control_plane, "savepoints", "trigger", "visits")
            follow(self.control_plane, refused(taken, "JOB_STATUS_CONFLICT"))

    def click(self) -> None:
        """Adds a visit, and waits until it is counted."""
        self.clicks += 1
        clicks = self._directory / "in"
        (clicks / f".{self.clicks}.json").write_text('{"user": "ada", "page": "/"}\n')
        (clicks / f".{self.clicks}.json").rename(clicks / f"{self.clicks}.json")
        wait_until(lambda: self.clicks in self.visits(), SECONDS, what=f"visit {self.clicks}", poll=0.2)

    def visits(self) -> list[int]:
        """Returns the published counts, in the order of their batches."""
        parts = [part for part in sorted(self._directory.glob("out/batch=*/*.json")) if part.name[0] not in "_."]
        return [json.loads(line)["visits"] for part in parts for line in part.read_text().splitlines()]

    def newest_checkpoint(self) -> int:
        return int(self.control_plane.api.get(job_path(self.id, "checkpoints"))["latest"]["completed"]["id"])

    def directory(self) -> Path:
        return self.control_plane.home / "runs" / self.id

    def processes(self) -> list[psutil.Process]:
        """Returns the driver's processes, without the control plane's supervisor of them."""
        mine = str(self.directory())
        found = processes_of(self.control_plane.home)
        of_driver = [each for each in found if each.environ().get("KEYSCALE_WORK_DIR", "").startswith(mine)]
        return [each for each in of_driver if not any(part.endswith("supervisor.py") for part in each.cmdline())]


def block(language: str, page: Path = README) -> str:
    """The first block in a language, on the README or another page."""
    found = re.search(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, language
    return found[1]


def paste(commands: str, control_plane: RunningControlPlane, directory: Path, **variables: str) -> str:
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
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    return done.stdout

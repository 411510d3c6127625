"""The command line as a user's shell runs it: a process, its exit code and what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.installation import IMPORT_PATH

if TYPE_CHECKING:
    from tests.support.control_plane.running_control_plane import RunningControlPlane


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def problem(self) -> Any:
        """The error of a command that was run with --json."""
        return json.loads(self.stderr)

    @property
    def json(self) -> Any:
        """The answer of a command that was run with --json."""
        return json.loads(self.stdout)


def keyscale(control_plane: RunningControlPlane, *arguments: str) -> CommandAnswer:
    """Runs a command against a control plane."""
    connection = control_plane.process.connection
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "keyscale.api.cli", *arguments],
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
    return CommandAnswer(finished.returncode, finished.stdout, finished.stderr)

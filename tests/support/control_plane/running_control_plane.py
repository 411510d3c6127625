"""A real control plane for tests: the process that users start, on a directory that vanishes afterwards."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.api.cli.client import ControlPlane
from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RunningControlPlane:
    """A control plane that a test may talk to, kill and start again."""

    def __init__(self, process: ControlPlaneProcess) -> None:
        self.process = process
        self.home = process.home
        self.api = ControlPlane(process.connection)

    def kill(self) -> None:
        """Kills it as a crash would; drivers and the database go on."""
        self.process.kill()

    def start_again(self) -> None:
        """Starts another one on the same home and port."""
        self.process.start()


@contextmanager
def running_control_plane(settings: Mapping[str, str] | None = None) -> Iterator[RunningControlPlane]:
    """Starts a control plane on a fresh home; ends it and everything that it has started afterwards.

    As root, jobs do not run as users of their own unless the settings say so: tests' directories are root's alone.
    """
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-home-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "home"
        process = ControlPlaneProcess(home, free_port(), {"KEYSCALE_JOB_USERS": "off", **(settings or {})})
        try:
            process.start()
            running = RunningControlPlane(process)
            yield running
            running.api.close()
        finally:
            process.stop()
            end_processes(processes_of(home))

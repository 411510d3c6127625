"""A whole demo, from its own control plane to the verdict.

It ends every process that it started.
"""

from __future__ import annotations

import shutil
import signal
import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from keyscale.api.cli.process import ControlPlaneProcess
from keyscale.client.keyscale import Keyscale

from .home_processes import end_processes, processes_of
from .progress import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from .verdict import Verdict

# The jobs are trusted, and read and write in the directory of the user who runs the demo.
_TRUSTED = MappingProxyType({"KEYSCALE_JOB_USERS": "off"})


class Play(Protocol):
    """A demo's actions on its control plane, through the public API only."""

    @property
    def page(self) -> str:
        """The page of the dashboard to open first, below `/ui/`."""

    def totals(self) -> Mapping[str, int]:
        """Returns the counts of its progress, with their final values."""

    def perform(self, control_plane: Keyscale, directory: Path, display: ProgressDisplay) -> Verdict:
        """Performs the play, and compares the result with the plain computation.

        Args:
            control_plane: A running control plane without jobs.
            directory: For input and output; it does not exist yet.
            display: Shows each step.

        Raises:
            DemoError: A step took too long, or a job ended early.
        """


@dataclass(frozen=True, slots=True)
class Demo:
    """One run of a demo.

    Attributes:
        home: Its own directory, emptied at the start.
        port: The port of its control plane.
        play: The actions.
        console: The console to print on.
        stay: Whether the control plane keeps running after the verdict, until it is interrupted.
        settings: Further environment variables of the control plane.
    """

    home: Path
    port: int
    play: Play
    console: Console
    stay: bool
    settings: Mapping[str, str]

    def run(self) -> Verdict:
        """Runs the demo, shows the verdict, and ends its processes.

        Raises:
            DemoError: The demo did not complete.
        """
        self._clear()
        control_plane = ControlPlaneProcess(self.home, self.port, {**_TRUSTED, **self.settings})
        try:
            verdict = self._run_on(control_plane)
            verdict.show(self.console)
            self.console.print(f"\nDashboard  {control_plane.connection.dashboard_url}")
            self.console.print(f"Open first {control_plane.connection.dashboard_url}{self.play.page}")
            if self.stay:
                self._stay(control_plane)
        finally:
            control_plane.stop()
            left = processes_of(self.home)
            end_processes(left)
        return verdict

    def _clear(self) -> None:
        """Ends the processes of an interrupted run, and empties the directory."""
        end_processes(processes_of(self.home))
        if self.home.exists():
            shutil.rmtree(self.home)
        self.home.mkdir(parents=True)

    def _run_on(self, process: ControlPlaneProcess) -> Verdict:
        with ProgressDisplay(self.console, self.play.totals()) as display:
            process.start()
            display.step(f"control plane and PostgreSQL are up, dashboard at {process.connection.dashboard_url}")
            with Keyscale(connection=process.connection) as control_plane:
                return self.play.perform(control_plane, self.home / "data", display)

    def _stay(self, control_plane: ControlPlaneProcess) -> None:
        self.console.print(f"Token      {control_plane.connection.token}")
        self.console.print("The control plane stays up until you press Ctrl-C.")
        interrupted = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: interrupted.set())
        interrupted.wait()

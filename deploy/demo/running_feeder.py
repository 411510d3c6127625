"""The demo's feeder as a running process with an allowance."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from keyscale.installation import IMPORT_PATH

from .feeder import file_count

if TYPE_CHECKING:
    from pathlib import Path

    from .scenario import Scenario


class RunningFeeder:
    """Delivers the reports into a directory, within an allowance of files.

    It ends with its `with` block.
    """

    def __init__(self, directory: Path, scenario: Scenario, reports: int) -> None:
        """Starts the process, which then waits for its first allowance.

        Args:
            directory: The directory of the files; it is created.
            scenario: The pace of the delivery.
            reports: The number of reports.
        """
        self._directory = directory
        self._files = scenario.files
        self._seconds_per_file = scenario.seconds / scenario.files
        self._next_file_at = 0.0
        self._allowed = -1
        self._allowance = directory.with_name("allowance")
        directory.mkdir(parents=True)
        self._allow(0)
        command = [sys.executable, "-P", "-m", "keyscale.deploy.demo.feeder", "--input", str(directory)]
        command += ["--files", str(scenario.files), "--seconds", str(scenario.seconds)]
        command += ["--seed", str(scenario.seed), "--reports", str(reports)]
        command += ["--allowance", str(self._allowance)]
        environment = {**os.environ, "PYTHONPATH": str(IMPORT_PATH)}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603 - our program

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether all reports have been delivered."""
        return self._process.poll() is not None

    def delivered(self) -> int:
        """Returns how many files have been delivered so far."""
        return file_count(self._directory)

    def allow(self, share: float) -> None:
        """Allows a share of all files.

        1.0 includes the file with the last repeats.
        """
        self._allow(self._files + 1 if share >= 1.0 else int(share * self._files))

    def allow_more(self, files: int) -> None:
        """Allows a number of files beyond the delivered files."""
        self._allow(self.delivered() + files)

    def allow_next(self, share: float) -> None:
        """Allows the next due file, up to a share of files."""
        now = time.monotonic()
        if now >= self._next_file_at and self._allowed < int(share * self._files):
            self._next_file_at = now + self._seconds_per_file
            self._allow(self._allowed + 1)

    def _allow(self, files: int) -> None:
        if files > self._allowed:
            self._allowed = files
            fresh = self._allowance.with_suffix(".new")
            fresh.write_text(str(files))
            fresh.rename(self._allowance)

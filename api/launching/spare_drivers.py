"""The spare drivers of this host.

A spare has a directory below `<home>/spares`, which has the layout of a run's directory. A run that has taken a spare
names it in its registration, and the spare's directory is deleted with the run's files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.directory_tree import remove_tree

from .driver_command import temporary_directory
from .driver_log import LOG_FILE
from .isolation import JobUser, make_directory
from .processes import kill_all, processes_below, start_spare
from .run_files import read_text
from .spare_supervisor import READY_FILE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection
    from pathlib import Path

    from .driver_start import DriverStart, StartPattern
    from .enclosures import Enclosures

logger = logging.getLogger(__name__)

_NAME = re.compile("[0-9a-f]{32}")
_LOG_CHARACTERS = 2000


@dataclass(slots=True)
class Spare:
    """A spare driver.

    Attributes:
        name: Its name, and the name of its directory.
        directory: Its directory.
        pattern: What a run must share with it.
        process: Its supervisor.
        started_s: Monotonic time of its start.
    """

    name: str
    directory: Path
    pattern: StartPattern
    process: subprocess.Popen[bytes]
    started_s: float

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it is warm."""
        return (self.directory / READY_FILE).exists()

    def give(self, start: DriverStart) -> bool:
        """Gives the run to its supervisor; returns whether it lives.

        From then on the supervisor is the run's, and starts the run's own command if the spare's driver does not
        answer.
        """
        assignment = {
            "run": str(start.directory),
            "command": start.command,
            "variables": dict(start.variables),
            "of_spare": start.in_spare(self.directory),
        }
        stream = self.process.stdin
        if stream is None or not self.is_alive:
            return False
        try:
            stream.write(json.dumps(assignment).encode() + b"\n")
            stream.close()
        except OSError:
            return False
        return True


class SpareDrivers:
    """Starts, gives away and ends spare drivers. Several threads use it.

    Args:
        directory: The directory with a directory for each spare.
        enclosures: What holds the quotas of drivers.

    Attributes:
        failures: How many spares in a row have ended by themselves.
        failed_at_s: Monotonic time at which the last one was found.
    """

    def __init__(self, directory: Path, enclosures: Enclosures) -> None:
        self._directory = directory
        self._enclosures = enclosures
        self._spares: list[Spare] = []
        self._lock = threading.Lock()
        self.failures = 0
        self.failed_at_s = 0.0

    def work_of(self, name: str) -> Path:
        """Returns the work directory of a spare."""
        return self._directory / name / "work"

    def living(self) -> list[Spare]:
        """Returns the spares that wait or warm up; cleans up after others."""
        with self._lock:
            ended = [spare for spare in self._spares if not spare.is_alive]
            self._spares = [spare for spare in self._spares if spare.is_alive]
            living = list(self._spares)
        if any(spare.is_ready for spare in living):
            self.failures = 0
        for spare in ended:
            self.failures, self.failed_at_s = self.failures + 1, time.monotonic()
            log = (read_text(spare.directory / LOG_FILE) or "")[-_LOG_CHARACTERS:]
            logger.warning("a spare driver has ended with exit code %s:\n%s", spare.process.returncode, log)
            self._end(spare)
        return living

    def take(self, start: DriverStart) -> subprocess.Popen[bytes] | None:
        """Gives a run to a spare that fits; returns the run's supervisor.

        Returns None if none fits: then the run needs a driver of its own.
        """
        pattern = start.pattern
        while pattern is not None:
            with self._lock:
                fitting = [spare for spare in self._spares if spare.pattern == pattern and spare.is_alive]
                if not fitting:
                    return None
                spare = min(fitting, key=lambda each: (not each.is_ready, each.started_s))
                self._spares.remove(spare)
            if spare.give(start):
                return spare.process
            self._end(spare)
        return None

    def start(self, pattern: StartPattern) -> None:
        """Starts a spare.

        Raises:
            OSError: It cannot be started.
            JobUserError: Its directory cannot be made.
        """
        name = uuid.uuid4().hex
        directory = self._directory / name
        start = pattern.of_spare(directory)
        owner = None if pattern.user is None else JobUser(*pattern.user)
        for part in (self._directory, directory):
            make_directory(part, enter=owner is not None)
        for part in (directory / "work", temporary_directory(directory / "work")):
            make_directory(part, owner=owner)
        variables = {**start.variables, **self._enclosures.variables(name)}
        process = start_spare(directory, start.command, variables, self._enclosures.command(name))
        with self._lock:
            self._spares.append(Spare(name, directory, pattern, process, time.monotonic()))

    def end(self, name: str) -> None:
        """Ends a spare, unless a run has taken it."""
        with self._lock:
            found = [spare for spare in self._spares if spare.name == name]
            self._spares = [spare for spare in self._spares if spare.name != name]
        for spare in found:
            self._end(spare)

    def end_of_user(self, uid: int) -> None:
        """Ends the spares of a job's user."""
        for spare in self.living():
            if spare.pattern.user is not None and spare.pattern.user[0] == uid:
                self.end(spare.name)

    def end_all(self) -> None:
        """Ends all spares that wait."""
        with self._lock:
            found, self._spares = self._spares, []
        for spare in found:
            self._end(spare)

    def remove(self, name: str) -> None:
        """Ends what is left of a spare, and deletes its files."""
        if _NAME.fullmatch(name) is None:
            return
        kill_all(processes_below(self.work_of(name)))
        self._enclosures.remove(name)
        try:
            remove_tree(self._directory / name)
        except OSError as error:
            logger.warning("the files of the spare %s stay: %s", name, error)

    @property
    def has_directories(self) -> bool:
        """Whether there are directories of spares, also of earlier ones."""
        return any(self._directory.glob("*/"))

    def sweep(self, in_use: Collection[str]) -> None:
        """Removes what an earlier control plane has left.

        `in_use` are the spares that runs have taken.
        """
        for directory in self._directory.glob("*/"):
            if directory.name not in in_use:
                self.remove(directory.name)

    def _end(self, spare: Spare) -> None:
        spare.process.kill()
        spare.process.wait()
        if spare.process.stdin is not None:
            with contextlib.suppress(OSError):  # a line that did not get through
                spare.process.stdin.close()
        self.remove(spare.name)

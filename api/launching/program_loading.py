"""Loading of a job's program in a process of its own, with limits, to see what it declares."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import uuid
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from keyscale.directory_tree import remove_tree
from keyscale.jobs.protocol.program import ANSWER_FILE, QUESTION_FILE, ProgramAnswer

from ..errors import PlanTimeoutError, ProgramUnloadableError, TooManyInFlightError
from ..libraries.job_libraries import NO_JOB_LIBRARIES
from .driver_command import loader_command, loader_environment
from .driver_log import open_log
from .isolation import make_directory, owner_of
from .launcher import PLANS
from .processes import kill_all, processes_of, start_supervised, strays_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from keyscale.jobs.protocol.program import ProgramQuestion

    from ..libraries.job_libraries import JobLibraries
    from ..settings import Settings
    from .isolation import JobUser
    from .launcher import Launcher

logger = logging.getLogger(__name__)

LOADS_MAX = 2
"""Programs that are loaded at once: each takes a processor and a gigabyte of memory."""

REMEMBERED_MAX = 16
"""Declarations that are kept: a change is often applied right after it was planned."""

_WAIT_S = 30.0
_ANSWER_BYTES_MAX = 16 << 20
_LAST_LINE_BYTES_MAX = 2000


class ProgramLoading:
    """Loads programs, a limited number at a time; each in a directory that is removed afterwards."""

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._slots = threading.BoundedSemaphore(LOADS_MAX)
        self._remembered: OrderedDict[str, ProgramAnswer] = OrderedDict()
        self._lock = threading.Lock()

    def sweep(self) -> None:
        """Ends the loads that a control plane on this home has left when it was killed, and deletes their directories.

        Call it before the first load.
        """
        for directory in (self._settings.runs_directory / PLANS).glob("*/"):
            try:
                uid = owner_of(directory / "work")
                kill_all(processes_of(directory, uid))
                if uid is not None:
                    kill_all(strays_of(uid))
            except Exception:  # a program has run there; whatever it has left, the control plane starts
                logger.warning("the processes of %s are not ended", directory, exc_info=True)
            _remove(directory)

    def remember(self, key: str, answer: ProgramAnswer) -> None:
        """Keeps what a program declares, by a key that says all that it depends on; the oldest is forgotten."""
        with self._lock:
            self._remembered[key] = answer
            self._remembered.move_to_end(key)
            while len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)

    def recall(self, key: str) -> ProgramAnswer | None:
        """Returns what was kept for a key; None if nothing is."""
        with self._lock:
            return self._remembered.get(key)

    def load(
        self,
        question: ProgramQuestion,
        content: Iterable[bytes],
        *,
        spark_conf: Mapping[str, str],
        secrets: Collection[str] | None,
        user_number: int,
        brought: JobLibraries = NO_JOB_LIBRARIES,
    ) -> ProgramAnswer:
        """Runs a program up to where it would process records, and returns what it declares, or why it cannot.

        Args:
            question: What to load.
            content: The bytes of the program's file.
            spark_conf: The job's Spark settings.
            secrets: The names of the job's secrets; None: all.
            user_number: Chooses the user that the job runs as.
            brought: The libraries of the program.

        Raises:
            TooManyInFlightError: As many programs as allowed are being loaded.
            PlanTimeoutError: It takes too long.
            ProgramUnloadableError: The process ended without an answer.
            LibraryUnavailableError, LibraryInvalidError: A library cannot be had.
        """
        if not self._slots.acquire(timeout=_WAIT_S):
            raise TooManyInFlightError(f"{LOADS_MAX} programs are being loaded")
        try:
            user = self._launcher.isolation.user(user_number)
            with self._directory(user) as directory:
                work = directory / "work"
                (work / QUESTION_FILE).write_bytes(msgspec.json.encode(question))
                with (work / question.artifact_file).open("wb") as file:
                    file.writelines(content)
                variables = self._settings.job_secrets.environment_of(secrets)
                libraries = self._launcher.place_libraries(brought, directory)
                environment = loader_environment(work, os.environ, variables, user=user, libraries=libraries)
                command = loader_command(self._settings, spark_conf, work, libraries)
                return self._run(directory, command, environment, user)
        finally:
            self._slots.release()

    def _run(
        self, directory: Path, command: list[str], environment: dict[str, str], user: JobUser | None
    ) -> ProgramAnswer:
        process = start_supervised(directory, command, environment)
        try:
            process.wait(self._settings.plan_timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            raise PlanTimeoutError(f"the program was not loaded within {self._settings.plan_timeout_ms} ms") from None
        finally:
            process.kill()  # first, so that nothing is started any more
            process.wait()
            kill_all(processes_of(directory, None if user is None else user.uid))
            if user is not None:
                kill_all(strays_of(user.uid))
        return _answer(directory)

    @contextmanager
    def _directory(self, user: JobUser | None) -> Iterator[Path]:
        root = self._settings.runs_directory / PLANS  # where the launcher looks for libraries that are in use
        directory = root / uuid.uuid4().hex
        try:
            for part in (root.parent, root, directory):
                make_directory(part, enter=user is not None)
            make_directory(directory / "work", owner=user)
            yield directory
        finally:
            _remove(directory)


def _remove(directory: Path) -> None:
    """Deletes what a load has left, as far as it can: a program has run there, and may have made anything."""
    try:
        remove_tree(directory)
    except OSError as error:
        logger.warning("%s stays until the next start: %s", directory, error)


def _answer(directory: Path) -> ProgramAnswer:
    """Reads what the loader has written. The job's user could have replaced it by a link, or by anything else."""
    try:
        descriptor = os.open(directory / "work" / ANSWER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return msgspec.json.decode(os.read(descriptor, _ANSWER_BYTES_MAX), type=ProgramAnswer)
        finally:
            os.close(descriptor)
    except (OSError, msgspec.MsgspecError, RecursionError):
        with open_log(directory) as log:
            said = log.read(max(log.begin, log.end - _LAST_LINE_BYTES_MAX), _LAST_LINE_BYTES_MAX)
        [*_, last] = ["", *said.decode(errors="replace").strip().splitlines()]
        raise ProgramUnloadableError(f"the process ended without an answer; its last line: {last}") from None

"""Loads a job's program in a separate process to read its declaration.

The process has limits.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import uuid
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec

from keyscale.directory_tree import remove_tree
from keyscale.jobs.protocol.messages import Failure
from keyscale.jobs.protocol.program import ANSWER_FILE, QUESTION_FILE, ProgramAnswer
from keyscale.state.doors.planning import operator_changes

from ..errors import PlanTimeoutError, ProgramUnloadableError, TooManyInFlightError
from ..libraries.job_libraries import NO_JOB_LIBRARIES
from .driver_command import loader_command, loader_environment, temporary_directory
from .driver_log import open_log
from .isolation import UserHolder, make_directory, owner_of
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
"""Maximum number of programs loaded at once: each takes a processor and a gigabyte of memory."""

LOADS_WITHOUT_JOB_MAX = LOADS_MAX - 1
"""Maximum number of programs loaded at once without a job: a change of a job is planned before it is applied."""

REMEMBERED_MAX = 16
"""Number of remembered declarations: a change is often applied right after it was planned."""

_WAIT_S = 30.0
_ANSWER_BYTES_MAX = 16 << 20
_LAST_LINE_BYTES_MAX = 2000


class ProgramLoading:
    """Loads programs, a limited number at a time.

    Each load has a directory that is removed afterwards.
    """

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._slots = threading.BoundedSemaphore(LOADS_MAX)
        self._check_slots = threading.BoundedSemaphore(LOADS_WITHOUT_JOB_MAX)
        self._remembered: OrderedDict[str, ProgramAnswer] = OrderedDict()
        self._lock = threading.Lock()

    def sweep(self) -> None:
        """Ends the loads of a control plane that was killed.

        Also deletes their directories. The control plane had the same home.

        Call it before the first load.
        """
        for directory in (self._settings.runs_directory / PLANS).glob("*/"):
            try:
                uid = owner_of(directory / "work")
                kill_all(processes_of(directory, uid))
                if uid is not None:
                    kill_all(strays_of(uid))
            except Exception:  # a program has run there; the control plane starts whatever it has left
                logger.warning("the processes of %s are not ended", directory, exc_info=True)
            _remove(directory)

    def remember(self, key: str, answer: ProgramAnswer) -> None:
        """Remembers a program's declaration by a key of all its inputs.

        The oldest declaration is forgotten.
        """
        with self._lock:
            self._remembered[key] = answer
            self._remembered.move_to_end(key)
            while len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)

    def recall(self, key: str) -> ProgramAnswer | None:
        """Returns the declaration remembered for a key, if any."""
        with self._lock:
            return self._remembered.get(key)

    def load(
        self,
        question: ProgramQuestion,
        content: Iterable[bytes],
        *,
        spark_conf: Mapping[str, str],
        secrets: Collection[str] | None,
        holder: UserHolder | None,
        brought: JobLibraries = NO_JOB_LIBRARIES,
    ) -> ProgramAnswer:
        """Runs a program up to its first record; returns its declaration.

        Returns the failure if the program has no declaration.

        Args:
            question: The program to load.
            content: The bytes of the program's file.
            spark_conf: The job's Spark settings.
            secrets: The names of the job's secrets; None: all secrets.
            holder: The job whose user runs it; None: a user of its own, whom no job and no other load has.
            brought: The libraries of the program.

        Raises:
            TooManyInFlightError: As many programs as allowed are being loaded.
            PlanTimeoutError: The load takes too long.
            JobUserError: The load cannot have a user.
            ProgramUnloadableError: The process ended without an answer.
            LibraryUnavailableError, LibraryInvalidError: A library is not available.
        """
        with self._slot(is_check=holder is None), self._place(holder) as (directory, user):
            work = directory / "work"
            (work / QUESTION_FILE).write_bytes(msgspec.json.encode(question))
            with (work / question.artifact_file).open("wb") as file:
                file.writelines(content)
            variables = self._settings.job_secrets.environment_of(secrets)
            libraries = self._launcher.place_libraries(brought, directory)
            environment = loader_environment(work, os.environ, variables, user=user, libraries=libraries)
            command = loader_command(self._settings, spark_conf, work, libraries)
            return self._run(directory, command, environment, user)

    @contextmanager
    def _slot(self, *, is_check: bool) -> Iterator[None]:
        """Holds one of the places for loads.

        A load without a job also holds one of fewer places, so that changes of jobs can always be planned.
        """
        with ExitStack() as held:
            for slots, refusal in (
                *(
                    [(self._check_slots, f"{LOADS_WITHOUT_JOB_MAX} program is checked without a job")]
                    if is_check
                    else []
                ),
                (self._slots, f"{LOADS_MAX} programs are being loaded"),
            ):
                if not slots.acquire(timeout=_WAIT_S):
                    raise TooManyInFlightError(refusal)
                held.callback(slots.release)
            yield

    def _run(
        self, directory: Path, command: list[str], environment: dict[str, str], user: JobUser | None
    ) -> ProgramAnswer:
        enclosures, run = self._launcher.enclosures, f"plan-{directory.name}"
        environment |= enclosures.variables(run)
        process = start_supervised(directory, command, environment, enclosures.command(run))
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
            enclosures.remove(run)
        return _answer(directory)

    @contextmanager
    def _place(self, holder: UserHolder | None) -> Iterator[tuple[Path, JobUser | None]]:
        """Yields the directory and the user of a load."""
        root = self._settings.runs_directory / PLANS  # where the launcher looks for used libraries
        load, isolation = uuid.uuid4(), self._launcher.isolation
        directory = root / load.hex
        # A random number, so that files which a load leaves in /tmp seldom belong to the user of the next load.
        own = UserHolder(load.hex, load.int, (directory,))
        try:
            user = isolation.user(holder or own)
            for part in (root.parent, root, directory):
                make_directory(part, enter=user is not None)
            for part in (directory / "work", temporary_directory(directory / "work")):
                make_directory(part, owner=user)
            yield directory, user
        finally:
            _remove(directory)
            if holder is None:
                isolation.give_back(own)


def _remove(directory: Path) -> None:
    """Deletes the files of a load, as far as it can.

    A program has run there, and may have made any files.
    """
    try:
        remove_tree(directory)
    except OSError as error:
        logger.warning("%s stays until the next start: %s", directory, error)


def _answer(directory: Path) -> ProgramAnswer:
    """Reads the loader's answer.

    The job's user could have replaced the answer by a link or another object, or written it.
    """
    try:
        descriptor = os.open(directory / "work" / ANSWER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            answer = msgspec.json.decode(os.read(descriptor, _ANSWER_BYTES_MAX), type=ProgramAnswer)
            if answer.declaration is None:
                Failure.model_validate(answer.failure)
            else:
                operator_changes({}, {}, answer.declaration.operators)  # describes each declared state
            return answer
        finally:
            os.close(descriptor)
    except Exception:  # noqa: BLE001 - the program may have written anything
        with open_log(directory) as log:
            said = log.read(max(log.begin, log.end - _LAST_LINE_BYTES_MAX), _LAST_LINE_BYTES_MAX)
        [*_, last] = ["", *said.decode(errors="replace").strip().splitlines()]
        raise ProgramUnloadableError(f"the process ended without an answer; its last line: {last}") from None

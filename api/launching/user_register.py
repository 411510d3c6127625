"""The register of a host: which job has which user number.

Several control planes on one host share its user numbers. Each number has a file in the register's directory, which
names its job and the directories that the job's user owns. A number is free again when none of them is left. The load
of a program without a job has a number like a job.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import JobUserError
from .processes import strays_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DIRECTORY = Path("/var/lib/keyscale/job-users")
FORMAT_VERSION = 1
KEPT_S = 600.0
"""How long a number stays taken without a directory: a job takes it before its directories are made."""


@dataclass(frozen=True, slots=True)
class UserRegister:
    """The user numbers of jobs on one host.

    Attributes:
        directory: Its files; only root may change them.
    """

    directory: Path = DIRECTORY

    def take(
        self,
        job_id: str,
        places: Sequence[Path],
        *,
        numbers: range,
        preferred: int,
        is_usable: Callable[[int], bool] = lambda _: True,
    ) -> int:
        """Returns the number of a job, which no other job has.

        A job keeps its number. A new job gets the preferred number if it is free, else the next free one.

        Args:
            job_id: The job.
            places: The directories that its user owns, present or not.
            numbers: The range of numbers.
            preferred: A number of the range.
            is_usable: Whether a number may belong to a job at all.

        Raises:
            JobUserError: All numbers of the range are taken.
        """
        with self._alone():
            entries = self._entries(numbers)
            own = next((number for number, entry in entries.items() if entry["job_id"] == job_id), None)
            offsets = range(len(numbers))
            candidates = (numbers[(numbers.index(preferred) + offset) % len(numbers)] for offset in offsets)
            number = (
                own
                if own is not None
                else next(
                    (each for each in candidates if self._is_free(each, entries.get(each)) and is_usable(each)), None
                )
            )
            if number is None:
                raise JobUserError(
                    f"each of the users {numbers[0]} to {numbers[-1]} belongs to another job on this host"
                )
            known = [] if own is None else entries[own]["places"]
            self._write(number, job_id, sorted({*known, *map(str, places)}))
            return number

    def give_back(self, holder_id: str, numbers: range) -> None:
        """Frees the number of a holder at once.

        The number stays taken as long as its user has a directory or a process.

        Raises:
            JobUserError: The register cannot be used.
        """
        with self._alone():
            for number, entry in self._entries(numbers).items():
                if entry["job_id"] == holder_id and not _is_used(number, entry):
                    (self.directory / str(number)).unlink()

    def why_unusable(self) -> str | None:
        """Returns why the register cannot be used, if so."""
        try:
            with self._alone():
                return None
        except JobUserError as error:
            return error.detail

    @staticmethod
    def _is_free(number: int, entry: dict[str, Any] | None) -> bool:
        if entry is None:
            return True
        is_recent = time.time() - entry["used_at_s"] < KEPT_S
        return not (is_recent or _is_used(number, entry))

    def _entries(self, numbers: range) -> dict[int, dict[str, Any]]:
        named = [name for name in os.listdir(self.directory) if name.isdecimal() and int(name) in numbers]  # noqa: PTH208
        try:
            return {int(name): json.loads((self.directory / name).read_bytes()) for name in named}
        except ValueError as error:
            raise JobUserError(f"a file of {self.directory} cannot be read") from error

    def _write(self, number: int, job_id: str, places: Sequence[str]) -> None:
        entry = {"version": FORMAT_VERSION, "job_id": job_id, "places": places, "used_at_s": time.time()}
        new = self.directory / f"{number}.new"
        new.write_text(json.dumps(entry))
        new.replace(self.directory / str(number))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JobUserError(f"{self.directory} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _is_used(number: int, entry: dict[str, Any]) -> bool:
    """Returns whether a user has a directory or a process."""
    return any(map(os.path.lexists, entry["places"])) or bool(strays_of(number))

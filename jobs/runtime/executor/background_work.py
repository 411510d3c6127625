"""Work that outlives the task that started it.

It takes no task slot from batches.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LOCK, _RESULT = "work.lock", "work.result"
# Outcomes that this process could not write because the disk was full; a later task in this process still gets them.
_unwritten: dict[Path, bytes | Exception] = {}


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """Work with a result that any task on this host can fetch.

    The work runs in a thread of the process that first asks for the result. If that process dies, its lock is released
    and the next process starts the work again: so it must be safe to do twice.

    Attributes:
        directory: A directory on this host, for this work alone; it holds the lock and the result.
        work: The function to run.
    """

    directory: Path
    work: Callable[[], bytes]

    def result(self, wait_seconds: float) -> bytes | None:
        """Starts the work unless it runs or is done.

        Returns:
            Its result; None if it is not done after `wait_seconds`.

        Raises:
            FileNotFoundError: The directory is not on this host.
            Exception: The exception that the work raised, once; the next call starts it again.
        """
        ended = threading.Event()
        if self._outcome() is None and (lock := self._taken_lock()) is not None:
            thread = threading.Thread(target=self._run, args=(lock, ended), name="background-work", daemon=True)
            thread.start()
            ended.wait(wait_seconds)
        outcome = self._outcome()
        if isinstance(outcome, Exception):
            _unwritten.pop(self.directory, None)
            (self.directory / _RESULT).unlink(missing_ok=True)
            raise outcome
        return outcome

    def _taken_lock(self) -> int | None:
        """Returns the descriptor that holds the lock.

        Returns None if the work runs, or is done.
        """
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if self._outcome() is not None:  # the lock's last holder has just left it
            os.close(lock)
            return None
        return lock

    def _run(self, lock: int, ended: threading.Event) -> None:
        try:
            try:
                outcome: bytes | Exception = self.work()
            except Exception as error:  # noqa: BLE001 - raised where the result is fetched
                outcome = error
            self._leave(outcome)
        finally:
            os.close(lock)
            ended.set()

    def _leave(self, outcome: bytes | Exception) -> None:
        written = self.directory / f"{_RESULT}.new"
        try:
            written.write_bytes(_pickled(outcome))
            written.rename(self.directory / _RESULT)
        except OSError:
            if self.directory.exists():  # otherwise the result is no longer needed
                _unwritten[self.directory] = outcome

    def _outcome(self) -> bytes | Exception | None:
        try:
            written = (self.directory / _RESULT).read_bytes()
        except FileNotFoundError:
            return _unwritten.get(self.directory)
        outcome: bytes | Exception = pickle.loads(written)  # noqa: S301 - a thread of ours wrote it
        return outcome


def _pickled(outcome: bytes | Exception) -> bytes:
    """Pickles an outcome.

    An error that cannot be unpickled is replaced by a RuntimeError.
    """
    try:
        pickled = pickle.dumps(outcome)
        pickle.loads(pickled)  # noqa: S301 - ours
    except Exception:  # noqa: BLE001 - a user's exception may fail in any way
        return pickle.dumps(RuntimeError(repr(outcome)))
    return pickled

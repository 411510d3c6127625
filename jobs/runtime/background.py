"""Work that outlives the task which began it, for what takes so long that batches would miss the task's slot."""

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
# What this process could not write down, as the disk was full: it must be told what became of the work.
_unwritten: dict[Path, bytes | Exception] = {}


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """Work of which any task on this host picks up the result, whichever worker process began it.

    It runs in a thread of the process that found it not begun. A process that dies lets go of the lock, and the next one begins
    anew: so the work must be safe to do twice.

    Attributes:
        directory: On this host, of this work alone; its lock and its result are left there.
        work: What is to be done.
    """

    directory: Path
    work: Callable[[], bytes]

    def result(self, patience_seconds: float) -> bytes | None:
        """Begin the work unless it runs or is done; its result, or None if that takes longer than the patience.

        Raises:
            FileNotFoundError: The directory is not on this host.
            Exception: What the work raised, once; who asks again begins it anew.
        """
        ended = threading.Event()
        if self._outcome() is None and (lock := self._taken_lock()) is not None:
            thread = threading.Thread(target=self._run, args=(lock, ended), name="background-work", daemon=True)
            thread.start()
            ended.wait(patience_seconds)
        outcome = self._outcome()
        if isinstance(outcome, Exception):
            _unwritten.pop(self.directory, None)
            (self.directory / _RESULT).unlink(missing_ok=True)
            raise outcome
        return outcome

    def _taken_lock(self) -> int | None:
        """The descriptor that holds the lock; None if the work runs, or is done."""
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if self._outcome() is not None:  # of who held the lock until now
            os.close(lock)
            return None
        return lock

    def _run(self, lock: int, ended: threading.Event) -> None:
        try:
            try:
                outcome: bytes | Exception = self.work()
            except Exception as error:  # noqa: BLE001 (raised by who picks the result up)
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
            if self.directory.exists():  # else nobody waits for it any more
                _unwritten[self.directory] = outcome

    def _outcome(self) -> bytes | Exception | None:
        try:
            outcome: bytes | Exception = pickle.loads((self.directory / _RESULT).read_bytes())  # noqa: S301 - our own thread's
        except FileNotFoundError:
            return _unwritten.get(self.directory)
        return outcome


def _pickled(outcome: bytes | Exception) -> bytes:
    """An error that cannot be read back is replaced by one that can."""
    try:
        pickled = pickle.dumps(outcome)
        pickle.loads(pickled)  # noqa: S301 - ours
    except Exception:  # noqa: BLE001 - whatever makes it unfit
        return pickle.dumps(RuntimeError(repr(outcome)))
    return pickled

"""Processes that read the latest state of keys.

They keep what they have fetched for the next read.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import StateReadError, StateReadTimeoutError
from .reading_command import COMMAND, SECONDS_MAX, environment_of

if TYPE_CHECKING:
    from collections.abc import Iterator

READERS_MAX = 4
"""So many jobs have a process; more than reads can be in progress."""
_CHUNK_BYTES = 1 << 16


class KeyReaders:
    """One process per job, the last used jobs.

    A process ends by itself after some minutes without a read.
    """

    def __init__(self) -> None:
        self._readers: dict[str, _KeyReader] = {}  # the last used one is the last
        self._lock = threading.Lock()

    def ask(self, job_id: str, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of a job's process, or its problem.

        Raises:
            StateReadTimeoutError: The read takes too long.
            StateReadError: The process ended.
        """
        line = json.dumps(request).encode() + b"\n"
        until_s = time.monotonic() + SECONDS_MAX
        with self._lent(job_id) as reader:
            answer: dict[str, Any] = json.loads(reader.ask(line, until_s))
            return answer

    def close(self) -> None:
        """Ends all processes, and removes their files."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    @contextmanager
    def _lent(self, job_id: str) -> Iterator[_KeyReader]:
        with self._lock:
            reader = self._readers.pop(job_id, None) or _KeyReader()
            reader.users += 1
            self._readers[job_id] = reader
            for each in self._unneeded():
                self._readers.pop(each).close()
        try:
            yield reader
        finally:
            with self._lock:
                reader.users -= 1

    def _unneeded(self) -> list[str]:
        idle = [each for each, reader in self._readers.items() if not reader.users]
        surplus = idle[: max(0, len(self._readers) - READERS_MAX)]
        return surplus + [each for each in idle[len(surplus) :] if self._readers[each].has_ended]


class _KeyReader:
    """A process that reads one job's keys, started when needed."""

    def __init__(self) -> None:
        self.users = 0
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, line: bytes, until_s: float) -> bytes:
        """Returns the process's answer to a line.

        Raises as `KeyReaders.ask`.
        """
        if not self._turn.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise StateReadTimeoutError(f"other reads of the job take longer than {SECONDS_MAX:g} seconds")
        found = None
        try:
            if (found := self._exchange(line, until_s)) is None:
                self.close()  # it has ended, as it had nothing to do
                found = self._exchange(line, until_s)
        finally:
            if found is None:
                self.close()
            self._turn.release()
        if found is None:
            raise StateReadError("the process that reads the state ended without an answer")
        return found

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        """Ends the process, and removes its files; closing twice is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _exchange(self, line: bytes, until_s: float) -> bytes | None:
        """Returns the answer; None: the process has ended."""
        if self._process is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="keyscale-keys-")
            self._process = subprocess.Popen(  # noqa: S603 - our module
                [*COMMAND, "--latest-keys"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment_of(self._scratch.name),
            )
        assert self._process.stdin is not None  # noqa: S101 - piped
        assert self._process.stdout is not None  # noqa: S101 - piped
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        found, output = bytearray(), select.poll()
        output.register(self._process.stdout, select.POLLIN)
        while not found.endswith(b"\n"):
            if not output.poll(max(0.0, until_s - time.monotonic()) * 1000):
                raise StateReadTimeoutError(f"the read takes longer than {SECONDS_MAX:g} seconds")
            if not (chunk := os.read(self._process.stdout.fileno(), _CHUNK_BYTES)):
                return None
            found += chunk
        return bytes(found)

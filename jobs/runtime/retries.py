"""Retries of operations on a system that does not answer.

The system is the object store or a sink's system. Meanwhile nothing is committed or published.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from keyscale.state.doors.objects import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from keyscale.errors import KeyscaleError
    from keyscale.state.doors.objects import ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_FIRST_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 5.0


def _never() -> bool:
    return False


def _to_nobody(_outage: KeyscaleError | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Retries:
    """How long an operation is retried.

    Attributes:
        limit_ms: Time from the first failure of the operation to the last try.
        has_ended: Whether the operation is no longer needed: then its next failure is final.
        sleep: Waits between two tries; gets the seconds.
        awaited: The error that says that the system does not answer. Any other error is final.
    """

    limit_ms: int
    has_ended: Callable[[], bool] = _never
    sleep: Callable[[float], None] = time.sleep
    awaited: type[KeyscaleError] = StoreUnavailableError

    def run(
        self, operation: Callable[[], _Result], report: Callable[[KeyscaleError | None], None] = _to_nobody
    ) -> _Result:
        """Runs an operation until it succeeds and returns its result.

        The operation must be safe to run twice: a try with a lost answer may have succeeded.

        Args:
            operation: The operation.
            report: Called with each failure that is retried, and with None when retrying has ended.

        Raises:
            KeyscaleError: The awaited error, if the system has not answered for longer than the limit; or any other
                error.
        """
        pause_seconds, waited_ms, is_waiting = _FIRST_PAUSE_SECONDS, 0.0, False
        try:
            while True:
                began = time.monotonic()
                try:
                    return operation()
                except self.awaited as error:
                    if is_waiting:
                        waited_ms += (time.monotonic() - began) * 1000
                    if waited_ms >= self.limit_ms or self.has_ended():
                        raise
                    if not is_waiting:
                        logger.warning("%s: %s; retrying for up to %d ms", error.code, error, self.limit_ms)
                    is_waiting = True
                    report(error)
                pause_seconds = min(pause_seconds, (self.limit_ms - waited_ms) / 1000)
                self.sleep(pause_seconds)
                waited_ms += pause_seconds * 1000
                pause_seconds = min(pause_seconds * 2, _PAUSE_SECONDS_MAX)
        finally:
            if is_waiting:
                report(None)


@dataclass(frozen=True, slots=True)
class RetryingStore:
    """An object store that retries its operations.

    Listing is not retried, as its results arrive one by one. `create` may find the object that its own earlier try has
    written: its caller reads it back, as with any store.
    """

    store: ObjectStore
    retries: Retries

    @property
    def get_bytes_max(self) -> int | None:
        return self.store.get_bytes_max

    @property
    def url(self) -> str:
        return self.store.url

    def put(self, path: str, data: bytes) -> None:
        self.retries.run(lambda: self.store.put(path, data))

    def create(self, path: str, data: bytes) -> None:
        self.retries.run(lambda: self.store.create(path, data))

    def get(self, path: str) -> bytes:
        return self.retries.run(lambda: self.store.get(path))

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        self.retries.run(lambda: self.store.upload(source, path, immutable=immutable))

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        self.retries.run(lambda: self.store.download(path, target, size_bytes=size_bytes, sha256=sha256))

    def check(self, path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]) -> None:
        self.retries.run(lambda: self.store.check(path, size_bytes=size_bytes, sha256=sha256, on_read=on_read))

    def copy(self, source: str, target: str) -> None:
        self.retries.run(lambda: self.store.copy(source, target))

    def head(self, path: str) -> ObjectInfo | None:
        return self.retries.run(lambda: self.store.head(path))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.store.list(prefix, start_after=start_after)

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)  # the tries read it more than once
        self.retries.run(lambda: self.store.delete(doomed))

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:
        return self.retries.run(lambda: self.store.remove_unfinished(prefix, before_ms))

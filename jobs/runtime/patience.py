"""Waiting for an object store that is away: nothing is committed meanwhile, and nothing is given up too soon."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from state.objects import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from state.objects import ObjectInfo, ObjectStore

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_FIRST_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 5.0


def _goes_on() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long an operation on the object store is tried again.

    Attributes:
        limit_ms: Since the first failure of the operation.
        has_ended: Whether nobody needs the operation any more: then its next failure is final.
        sleep: Passes the time between two tries, in seconds.
    """

    limit_ms: int
    has_ended: Callable[[], bool] = _goes_on
    sleep: Callable[[float], None] = time.sleep

    def wait_out(self, operation: Callable[[], _Result]) -> _Result:
        """The operation's result. It must be safe to run twice, as a lost answer may belong to one that took effect.

        Raises:
            StoreUnavailableError: The store has been away for longer than the limit.
        """
        pause_seconds, waited_ms = _FIRST_PAUSE_SECONDS, 0.0
        while True:
            began = time.monotonic()
            try:
                result = operation()
            except StoreUnavailableError as error:
                waited_ms += (time.monotonic() - began) * 1000
                if waited_ms >= self.limit_ms or self.has_ended():
                    raise
                if pause_seconds == _FIRST_PAUSE_SECONDS:
                    _log.warning("the object store is away (%s); it is waited for up to %d ms", error, self.limit_ms)
                pause_seconds = min(pause_seconds, (self.limit_ms - waited_ms) / 1000)
                self.sleep(pause_seconds)
                waited_ms += pause_seconds * 1000
                pause_seconds = min(pause_seconds * 2, _PAUSE_SECONDS_MAX)
            else:
                return result


@dataclass(frozen=True, slots=True)
class PatientStore:
    """An object store whose operations wait while it is away, all but listing, whose answers come one by one.

    `create` may find what its own lost try has written: its caller reads it back, as with any store.
    """

    store: ObjectStore
    patience: Patience

    @property
    def url(self) -> str:
        return self.store.url

    def put(self, path: str, data: bytes) -> None:
        self.patience.wait_out(lambda: self.store.put(path, data))

    def create(self, path: str, data: bytes) -> None:
        self.patience.wait_out(lambda: self.store.create(path, data))

    def get(self, path: str) -> bytes:
        return self.patience.wait_out(lambda: self.store.get(path))

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        self.patience.wait_out(lambda: self.store.upload(source, path, immutable=immutable))

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        self.patience.wait_out(lambda: self.store.download(path, target, size_bytes=size_bytes, sha256=sha256))

    def copy(self, source: str, target: str) -> None:
        self.patience.wait_out(lambda: self.store.copy(source, target))

    def head(self, path: str) -> ObjectInfo | None:
        return self.patience.wait_out(lambda: self.store.head(path))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.store.list(prefix, start_after=start_after)

    def delete(self, paths: Iterable[str]) -> None:
        every = list(paths)
        self.patience.wait_out(lambda: self.store.delete(every))

"""A local store whose writes fail as told: before they take effect, or after it with the response lost."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Fault(Enum):
    """The fate of one write."""

    NONE = "none"
    NOT_APPLIED = "not applied"
    ANSWER_LOST = "answer lost"


class FaultyStore(LocalObjectStore):
    """Applies one fault after the other to its writes, then none; while it is away, no operation succeeds."""

    def __init__(self, root: Path, faults: Iterable[Fault] = ()) -> None:
        super().__init__(root)
        self.faults = deque(faults)
        self.fired = 0
        self.away = False

    def put(self, path: str, data: bytes) -> None:
        fault = self._before(path)
        super().put(path, data)
        self._after(path, fault)

    def create(self, path: str, data: bytes) -> None:
        fault = self._before(path)
        super().create(path, data)
        self._after(path, fault)

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        fault = self._before(path)
        super().upload(source, path, immutable=immutable)
        self._after(path, fault)

    def get(self, path: str) -> bytes:
        if self.away:
            self._fail(path)
        return super().get(path)

    def _before(self, path: str) -> Fault:
        if self.away:
            self._fail(path)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.NOT_APPLIED:
            self._fail(path)
        return fault

    def _after(self, path: str, fault: Fault) -> None:
        if fault is Fault.ANSWER_LOST:
            self._fail(path)

    def _fail(self, path: str) -> None:
        self.fired += 1
        message = f"no answer to the write of {path}"
        raise StoreUnavailableError(message)

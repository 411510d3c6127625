"""The sources among many that have something to read."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Source(Protocol):
    def fileno(self) -> int: ...


S = TypeVar("S", bound=Source)


def readable(sources: Sequence[S], seconds: float) -> list[S]:
    """Returns the sources with something to read or at their end, within a time."""
    poller = select.poll()
    for source in sources:
        poller.register(source, select.POLLIN)
    found = {descriptor for descriptor, _ in poller.poll(seconds * 1000)}
    return [source for source in sources if source.fileno() in found]

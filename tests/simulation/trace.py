"""The trace of a history: what happened, when and in which process, as lines of text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


class Trace:
    """Takes what happens.

    Args:
        keeps: Whether lines are kept; otherwise only their digest is.
        prints: Whether lines are printed at once.
    """

    def __init__(self, *, keeps: bool = False, prints: bool = False) -> None:
        self.lines: list[str] = []
        self._keeps = keeps
        self._prints = prints
        self._digest = hashlib.sha256()
        self.directory = ""
        """The directory of the hosts' disks, whose name differs from run to run."""

    def note(self, world: World, what: str) -> None:
        """Adds a line."""
        line = f"{world.now:10.3f} {world.process.name:<12} {what}"
        if self.directory:
            line = line.replace(self.directory, "DISKS")
        self._digest.update(line.encode())
        if self._keeps:
            self.lines.append(line)
        if self._prints:
            print(line, flush=True)  # noqa: T201 - a command's output

    @property
    def digest(self) -> str:
        """A hash of all lines: of the same history it is the same."""
        return self._digest.hexdigest()

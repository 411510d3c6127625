"""Chooses the named step at which processes are held, while they run; see `keyscale.failpoints`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.failpoints import CHOSEN_LATER, FAILPOINT, FAILPOINT_DIRECTORY, POINT_FILE

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Moment:
    """A step at which processes are held until they are released.

    Attributes:
        directory: Its own.
        step: Its name.
    """

    directory: Path
    step: str

    def held(self) -> set[int]:
        """The ids of the processes that have reached it."""
        return {int(file.suffix[1:]) for file in self.directory.glob(f"{self.step}.*") if file.suffix[1:].isdecimal()}

    def release(self) -> None:
        (self.directory / f"{self.step}.go").touch()


class NamedMoments:
    """The one step at which the processes that were started with its settings are held.

    Args:
        directory: A new one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._chosen = 0
        directory.mkdir()
        self.hold_nobody()

    @property
    def settings(self) -> dict[str, str]:
        """Variables for the processes."""
        return {FAILPOINT: CHOSEN_LATER, FAILPOINT_DIRECTORY: str(self._directory / "now")}

    def hold_at(self, point: str) -> Moment:
        """Holds processes at a step, `name` or `name@n`. A process that is held elsewhere stays held."""
        chosen = self._choose(point)
        return Moment(chosen, point.partition("@")[0])

    def hold_nobody(self) -> None:
        """Lets processes pass. One that is held stays held."""
        self._choose("")

    def _choose(self, point: str) -> Path:
        self._chosen += 1
        chosen = self._directory / str(self._chosen)
        chosen.mkdir()
        (chosen / POINT_FILE).write_text(point)
        link = self._directory / "next"
        link.symlink_to(chosen)
        link.replace(self._directory / "now")
        return chosen

"""Shows the demo's progress: steps as lines, counts as bars.

Without a terminal, counts are occasional lines.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from rich.console import Console

LINE_EVERY_S = 10.0


class ProgressDisplay:
    """Shows steps and counts, such as delivered files."""

    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        """Prepares the display.

        Args:
            console: The console to print on.
            totals: The names of the counts, with their final values.
        """
        self.console = console
        self._began = time.monotonic()
        self._line_due = self._began + LINE_EVERY_S
        self._totals = totals
        self._shown: dict[str, int] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bars = {name: self._progress.add_task(name, total=total, visible=False) for name, total in totals.items()}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def elapsed_s(self) -> float:
        """Returns the seconds since the demo began."""
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """Prints a completed step."""
        self.console.print(f"[dim]{self.elapsed_s():6.1f} s[/]  {text}", markup=True)

    def update(self, counts: Mapping[str, int]) -> None:
        """Shows the current counts; a count never given is not shown."""
        for name, count in counts.items():
            self._progress.update(self._bars[name], completed=count, visible=True)
        if self.console.is_terminal or time.monotonic() < self._line_due or counts == self._shown:
            return
        self._shown = {**counts}
        self._line_due = time.monotonic() + LINE_EVERY_S
        counted = ", ".join(f"{count:,} of {self._totals[name]:,} {name}" for name, count in counts.items())
        self.step(f"[dim]{counted}[/]")

"""Shows the demo's progress: steps as lines, and two counts as bars on a terminal or as occasional lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console

LINE_EVERY_S = 10.0


class ProgressDisplay:
    """Shows steps and two counts: files delivered, reports in the sink."""

    def __init__(self, console: Console, reports: int, files: int) -> None:
        """Prepares the display.

        Args:
            console: The console to print on.
            reports: The number of different reports.
            files: The number of files in which they are delivered.
        """
        self._console = console
        self._began = time.monotonic()
        self._line_due = self._began + LINE_EVERY_S
        self._counts = (0, 0)
        self._totals = (files, reports)
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
        self._files = self._progress.add_task("files delivered", total=files)
        self._rows = self._progress.add_task("reports in the sink", total=reports)

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
        """Prints a step that has happened."""
        self._console.print(f"[dim]{self.elapsed_s():6.1f} s[/]  {text}", markup=True)

    def update(self, files: int, rows: int) -> None:
        """Shows the counts as they are now."""
        self._progress.update(self._files, completed=files)
        self._progress.update(self._rows, completed=rows)
        if self._console.is_terminal or time.monotonic() < self._line_due or (files, rows) == self._counts:
            return
        self._counts = (files, rows)
        self._line_due = time.monotonic() + LINE_EVERY_S
        total_files, total_rows = self._totals
        self.step(
            f"[dim]{files:,} of {total_files:,} files delivered, {rows:,} of {total_rows:,} reports in the sink[/]"
        )

"""The verdict of a demo: its comparisons, and the job's course."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from keyscale.api.cli.checkpoints import CHECKPOINT_COLUMNS
from keyscale.api.cli.output import make_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from .reference import Check

CHECKPOINTS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Verdict(ABC):
    """The result of a complete demo.

    Attributes:
        checks: The comparisons with the reference, and the checks that the disturbances happened.
        elapsed_s: The seconds from the start of the control plane to the finished job.
    """

    checks: list[Check]
    elapsed_s: float

    @property
    def exact(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def show(self, console: Console) -> None:
        """Prints the verdict."""
        self.show_course(console)
        show_checks(console, self.checks)
        if self.exact:
            console.print(f"\n[bold green]EXACT[/]: all {len(self.checks)} checks hold, after {self.elapsed_s:.0f} s")
        else:
            wrong = sum(not check.holds for check in self.checks)
            console.print(f"\n[bold red]WRONG[/]: {wrong} of {len(self.checks)} checks do not hold")

    @abstractmethod
    def show_course(self, console: Console) -> None:
        """Prints the course of the job."""


def show_checkpoints(console: Console, checkpoints: dict[str, Any]) -> None:
    """Prints the API's statistics of a job's checkpoints."""
    history = checkpoints["history"]
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in checkpoints["counts"].items())
    console.print(f"\n[bold]Checkpoints[/] ({counts})")
    console.print(make_table(history[:CHECKPOINTS_SHOWN], CHECKPOINT_COLUMNS))
    if len(history) > CHECKPOINTS_SHOWN:
        console.print(f"… and {len(history) - CHECKPOINTS_SHOWN} before them")


def show_phases(console: Console, heading: str, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Prints the time of each phase of changes.

    Args:
        console: The console to print on.
        heading: The heading of the first column.
        changes: The name of each change, and the API's answer for it.
    """
    phases = list(dict.fromkeys(phase["phase"] for _, change in changes for phase in change["phases"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (heading, *phases, "TOTAL", "DOWNTIME"):
        table.add_column(name, justify="left" if name == heading else "right")
    for what, change in changes:
        times = {phase["phase"]: phase["duration_ms"] for phase in change["phases"]}
        figures = [*(times.get(phase) for phase in phases), change["duration_ms"], change["downtime_ms"]]
        table.add_row(what, *("-" if figure is None else f"{figure:,}" for figure in figures))
    console.print(table)


def show_checks(console: Console, checks: list[Check]) -> None:
    """Prints checks as a table."""
    console.print("\n[bold]Compared with the plain computation[/]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "EXPECTED", "FOUND", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for check in checks:
        table.add_row(check.name, check.expected, check.found, "[green]✓[/]" if check.holds else "[bold red]✗[/]")
    console.print(table)

"""The verdict of the demo: every comparison, the checkpoints, the rescales, and their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from keyscale.api.cli.checkpoints import CHECKPOINT_COLUMNS
from keyscale.api.cli.output import format_duration_ms, make_table

if TYPE_CHECKING:
    from rich.console import Console

    from keyscale.deploy.demo.course import Recovery
    from keyscale.deploy.demo.reference import Check

CHECKPOINTS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a complete demo.

    Attributes:
        checks: The comparisons with the reference, and the checks that the faults happened.
        checkpoints: The API's statistics of the job's checkpoints.
        rescales: The API's answer for each rescale.
        recovery: How the job recovered from the kill of its driver.
        elapsed_s: The seconds from the start of the control plane to the finished job.
    """

    checks: list[Check]
    checkpoints: dict[str, Any]
    rescales: list[dict[str, Any]]
    recovery: Recovery
    elapsed_s: float

    @property
    def exact(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Prints a verdict."""
    _show_checkpoints(console, verdict.checkpoints)
    _show_rescales(console, verdict)
    _show_checks(console, verdict.checks)
    if verdict.exact:
        console.print(f"\n[bold green]EXACT[/]: all {len(verdict.checks)} checks hold, after {verdict.elapsed_s:.0f} s")
    else:
        wrong = sum(not check.holds for check in verdict.checks)
        console.print(f"\n[bold red]WRONG[/]: {wrong} of {len(verdict.checks)} checks do not hold")


def _show_checkpoints(console: Console, checkpoints: dict[str, Any]) -> None:
    history = checkpoints["history"]
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in checkpoints["counts"].items())
    console.print(f"\n[bold]Checkpoints[/] ({counts})")
    console.print(make_table(history[:CHECKPOINTS_SHOWN], CHECKPOINT_COLUMNS))
    if len(history) > CHECKPOINTS_SHOWN:
        console.print(f"… and {len(history) - CHECKPOINTS_SHOWN} before them")


def _show_rescales(console: Console, verdict: Verdict) -> None:
    console.print("\n[bold]Rescales[/] (milliseconds per phase)")
    phases = list(dict.fromkeys(phase["phase"] for rescale in verdict.rescales for phase in rescale["phases"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("PARALLELISM", *phases, "TOTAL", "DOWNTIME"):
        table.add_column(heading, justify="left" if heading == "PARALLELISM" else "right")
    for rescale in verdict.rescales:
        times = {phase["phase"]: phase["duration_ms"] for phase in rescale["phases"]}
        figures = [*(times.get(phase) for phase in phases), rescale["duration_ms"], rescale["downtime_ms"]]
        change = f"{rescale['from_parallelism']} → {rescale['to_parallelism']}"
        table.add_row(change, *("-" if figure is None else f"{figure:,}" for figure in figures))
    console.print(table)
    recovery = verdict.recovery
    console.print(
        f"\n[bold]Recovery[/] attempt {recovery.killed_attempt} was killed, attempt {recovery.new_attempt} committed"
        f" {format_duration_ms(recovery.downtime_ms)} later",
        f"\n  restored from {recovery.restored_from}",
    )


def _show_checks(console: Console, checks: list[Check]) -> None:
    console.print("\n[bold]Compared with the plain computation[/]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "EXPECTED", "FOUND", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for check in checks:
        table.add_row(check.name, check.expected, check.found, "[green]✓[/]" if check.holds else "[bold red]✗[/]")
    console.print(table)

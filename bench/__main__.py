"""`python -m bench`: side-by-side measurements, each printing its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.dedup import DedupSizes, run_dedup
from bench.machine import describe, load
from bench.measure import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.table import Table

LOAD_MAX = 0.5

cores_option = click.option("--cores", default=2, show_default=True, help="Cores that each contender may use.")
rounds_option = click.option("--rounds", default=3, show_default=True, help="How often each contender runs.")
only_option = click.option("--only", multiple=True, help="Only contenders or measurements with this in their name.")


@click.group()
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=CHECKOUT / ".keyscale" / "bench",
    help="Where inputs, environments and outputs are kept.",
)
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the tables to this file, too.")
@click.pass_context
def main(context: click.Context, root: Path, markdown: Path | None) -> None:
    """Measures Keyscale beside its peers."""
    root.mkdir(parents=True, exist_ok=True)
    context.obj = (root, markdown)
    if load() > LOAD_MAX:
        click.echo(f"The machine is busy (load {load():.1f}): figures will be noisy.", err=True)


@main.command()
@click.option("--events", default=4_000_000, show_default=True, help="Input of the fast contenders.")
@click.option("--batches", default=20, show_default=True, help="Micro-batches of it.")
@click.option("--slow-events", default=200_000, show_default=True, help="Input of the Python contenders.")
@click.option("--slow-batches", default=4, show_default=True, help="Micro-batches of it.")
@click.option(
    "--checkpoint-interval-ms",
    default=2000,
    show_default=True,
    help="For Flink, and for our checkpoints beside each batch's changelog.",
)
@rounds_option
@cores_option
@only_option
@click.pass_obj
def dedup(
    place: tuple[Path, Path | None],
    *,
    events: int,
    batches: int,
    slow_events: int,
    slow_batches: int,
    checkpoint_interval_ms: int,
    rounds: int,
    cores: int,
    only: Sequence[str],
) -> None:
    """Deduplication by UUID beside Spark and Flink."""
    root, markdown = place
    sizes = DedupSizes(events, batches, slow_events, slow_batches, checkpoint_interval_ms, rounds, cores)
    show(run_dedup(root, sizes, only, _say), cores, markdown)


def show(tables: Sequence[Table], cores: int, markdown: Path | None) -> None:
    """Print the tables and the machine that they are of, and write them to a file if asked."""
    text = "\n".join([*(table.render() for table in tables), f"Measured: {describe(cores)}"])
    click.echo(text)
    if markdown is not None:
        markdown.write_text(text + "\n", encoding="utf-8")


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()

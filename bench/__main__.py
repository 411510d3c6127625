"""`./keyscale bench`: side-by-side measurements, each printing its table."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.api import ApiSizes, run_api
from bench.autoscaler import run_autoscaler
from bench.dedup import DedupSizes, run_dedup
from bench.environments import PackageError
from bench.keyed_state import StateSizes, run_state
from bench.latency import LatencySizes, run_intervals, run_latency
from bench.machine import describe
from bench.machine_load import MachineLoad
from bench.measure import CHECKOUT, ContenderFailedError
from bench.pages import PageSizes, run_pages
from bench.recovery import RecoverySizes, run_recovery
from bench.rescale import RescaleSizes, run_rescale
from bench.running_jobs import RunningJobSizes, run_running_jobs
from bench.scale import ScaleSizes, run_scale
from bench.small_batches import SmallBatchSizes, run_small_batches
from bench.state_io import StateIoSizes, run_state_io
from bench.timers import TimerSizes, run_timers
from bench.upgrade import UpgradeSizes, run_upgrade
from tests.suite.reaper import continue_below_reaper

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.table import Table

LOAD_MAX = 0.5

cores_option = click.option("--cores", default=2, show_default=True, help="Cores that each contender may use.")
rounds_option = click.option("--rounds", default=3, show_default=True, help="How often each contender runs.")
only_option = click.option("--only", multiple=True, help="Only contenders or measurements with this in their name.")

keys_option = click.option(
    "--keys",
    multiple=True,
    type=int,
    default=(1_000_000, 10_000_000, 100_000_000),
    show_default=True,
    help="Keys in state; may be repeated.",
)


@dataclass(frozen=True, slots=True)
class Report:
    """The tables of a run, on the terminal and in a file.

    Attributes:
        root: The folder of inputs, environments and outputs.
        markdown: The file for a copy of the tables.
        load: The machine's load since the run's start.
    """

    root: Path
    markdown: Path | None
    load: MachineLoad

    def show(self, tables: Iterable[Table], cores: int) -> None:
        """Prints each table when it is ready, with the machine's load.

        The description of the machine comes at the end.
        """
        texts: list[str] = []
        for table in tables:
            table.notes.append(self.load.note())
            texts.append(table.render())
            click.echo(texts[-1])
            if self.markdown is not None:
                self.markdown.write_text("\n".join([*texts, f"Measured: {describe(cores)}\n"]), encoding="utf-8")
        click.echo(f"Measured: {describe(cores)}")


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the child processes, too
    root.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    if busy > LOAD_MAX:
        _say(f"The machine is busy (load average {busy:.1f}): figures will be noisy.")
    load = MachineLoad()
    load.start()
    context.obj = Report(root, markdown, load)


@main.command()
@click.option("--events", default=4_000_000, show_default=True, help="Input of the fast contenders.")
@click.option("--batches", default=20, show_default=True, help="Micro-batches of it.")
@click.option("--slow-events", default=200_000, show_default=True, help="Input of the Python contenders.")
@click.option("--slow-batches", default=4, show_default=True, help="Micro-batches of it.")
@click.option(
    "--checkpoint-interval-ms",
    default=10_000,
    show_default=True,
    help="For Flink, and for our checkpoints beside each batch's changelog.",
)
@rounds_option
@cores_option
@only_option
@click.pass_obj
def dedup(report: Report, /, *, only: Sequence[str], **sizes: int) -> None:
    """Measure deduplication by UUID beside Spark and Flink."""
    report.show(run_dedup(report.root, DedupSizes(**sizes), only, _say), sizes["cores"])


@main.command()
@click.option(
    "--insert-keys", default=4_000_000, show_default=True, help="Keys inserted beside the plain loop and the heap."
)
@click.option(
    "--large-keys",
    default=0,
    type=click.IntRange(min=0),
    show_default=True,
    help="Grow a store to so many keys, 10,000,000 or more (100,000,000 takes 12 minutes); 0 leaves it out.",
)
@click.option(
    "--large-memory-mib",
    default=2048,
    show_default=True,
    help="Memory budget of those stores and of the small ones beside them; 100,000,000 keys take about as much.",
)
@click.option("--sized-keys", default=4_000_000, show_default=True, help="Keys whose bytes on disk are counted.")
@click.option("--records", default=1_000_000, show_default=True, help="Records of the per-record measurements.")
@click.option("--memory-mib", default=256, show_default=True, help="Size of the values of a batch with little memory.")
@click.option("--rescale-keys", default=20_000_000, show_default=True, help="The larger state that is rescaled.")
@click.option("--checkpoint-keys", default=10_000_000, show_default=True, help="Keys of which 1 % change.")
@click.option("--merge-keys", default=4_000_000, show_default=True, help="Keys of the two shards that are merged.")
@rounds_option
@cores_option
@only_option
@click.pass_obj
def state(report: Report, /, *, only: Sequence[str], **sizes: int) -> None:
    """Measure the state library beside a plain rocksdict loop and the heap.

    Parts: insert, large, record, small, bytes, map, memory, rescale, checkpoint, consolidate.
    """
    report.show(run_state(report.root, StateSizes(**sizes), only, _say), sizes["cores"])


@main.command("state-io")
@click.option("--keys", default=100_000_000, show_default=True, help="Keys in state.")
@click.option("--spark-keys", default=10_000_000, show_default=True, help="Keys of the read beside Spark.")
@rounds_option
@cores_option
@click.pass_obj
def state_io(report: Report, /, **sizes: int) -> None:
    """Measure a bootstrap and reads of state, beside plain files and Spark."""
    report.show(run_state_io(report.root, StateIoSizes(**sizes), _say), sizes["cores"])


@main.command()
@click.option("--batches", default=60, show_default=True, help="Micro-batches of each kind.")
@click.option("--records", default=100, show_default=True, help="Records of a small batch.")
@rounds_option
@cores_option
@click.pass_obj
def batches(report: Report, /, **sizes: int) -> None:
    """Measure small and empty batches, beside Spark's dropDuplicates.

    Stores are open or closed between batches.
    """
    report.show(run_small_batches(report.root, SmallBatchSizes(**sizes), _say), sizes["cores"])


@main.command()
@click.option("--rate", default=1000, show_default=True, help="Records per second.")
@click.option("--seconds", default=90, show_default=True, help="How long they are sent.")
@click.option("--warm-up-seconds", default=30, show_default=True, help="How long at the start they are not counted.")
@rounds_option
@cores_option
@only_option
@click.pass_obj
def latency(report: Report, /, *, only: Sequence[str], **sizes: int) -> None:
    """Measure latency from Kafka to files, beside Spark's dropDuplicates."""
    report.show(run_latency(report.root, LatencySizes(**sizes), only, _say), sizes["cores"])


@main.command()
@click.option("--interval-ms", multiple=True, type=int, default=(0, 500, 1000, 5000), show_default=True)
@click.option("--rate", default=1000, show_default=True, help="Records per second.")
@click.option("--seconds", default=90, show_default=True, help="How long they are sent.")
@click.option("--warm-up-seconds", default=30, show_default=True, help="How long at the start they are not counted.")
@rounds_option
@cores_option
@click.pass_obj
def intervals(report: Report, /, *, interval_ms: Sequence[int], **sizes: int) -> None:
    """Measure latency from Kafka to files at several batch intervals.

    Also the processor time, and the number of output directories.
    """
    report.show(run_intervals(report.root, LatencySizes(**sizes), interval_ms, _say), sizes["cores"])


@main.command()
@click.option("--timers", default=300, show_default=True, help="Keys with a timer each.")
@click.option("--apart-ms", default=100, show_default=True, help="From one timer's moment to the next one's.")
@rounds_option
@cores_option
@click.pass_obj
def timers(report: Report, /, **sizes: int) -> None:
    """Measure the delay of timers' output on idle input."""
    report.show(run_timers(report.root, TimerSizes(**sizes), _say), sizes["cores"])


@main.command()
@click.pass_obj
def autoscaler(report: Report) -> None:
    """Play loads under the autoscaler and under two other rules."""
    report.show([run_autoscaler()], cores=1)


@main.command()
@keys_option
@click.option("--events", default=2_000_000, show_default=True, help="Read on top of that state.")
@click.option("--batches", default=10, show_default=True, help="Micro-batches of them.")
@rounds_option
@cores_option
@click.pass_obj
def scale(report: Report, /, *, keys: Sequence[int], **sizes: int) -> None:
    """Measure deduplication on top of a large state, from a savepoint."""
    report.show(run_scale(report.root, ScaleSizes(keys, **sizes), _say), sizes["cores"])


@main.command()
@keys_option
@click.option("--changes", default=5, show_default=True, help="How often each job gets a new program.")
@rounds_option
@cores_option
@click.pass_obj
def upgrade(report: Report, /, *, keys: Sequence[int], **sizes: int) -> None:
    """Measure the downtime of a program change, by the size of state."""
    report.show(run_upgrade(report.root, UpgradeSizes(keys, **sizes), _say), sizes["cores"])


@main.command()
@click.option(
    "--keys",
    multiple=True,
    type=int,
    default=(1_000_000, 10_000_000),
    show_default=True,
    help="Keys in state; may be repeated.",
)
@click.option("--faults", default=3, show_default=True, help="How often the fault befalls each job.")
@only_option
@rounds_option
@cores_option
@click.pass_obj
def recovery(report: Report, /, *, keys: Sequence[int], only: Sequence[str], **sizes: int) -> None:
    """Measure the longest wait for a commit after a fault, beside peers."""
    report.show(run_recovery(report.root, RecoverySizes(keys, **sizes), only, _say), sizes["cores"])


@main.command()
@click.option("--keys", default=0, type=click.IntRange(min=0), show_default=True, help="Keys in state at first.")
@only_option
@rounds_option
@cores_option
@click.pass_obj
def rescale(report: Report, /, *, only: Sequence[str], **sizes: int) -> None:
    """Measure the pause of live rescales beside new drivers and peers."""
    report.show(run_rescale(report.root, RescaleSizes(**sizes), only, _say), sizes["cores"])


@main.command()
@click.option("--jobs", default=1000, show_default=True, help="Jobs in the database.")
@click.option("--checkpoints", default=1_000_000, show_default=True, help="Checkpoints in the database.")
@click.option("--rate", default=100, show_default=True, help="Requests per second.")
@click.option("--seconds", default=60, show_default=True, help="How long they are sent.")
@click.option(
    "--replicas", default=2, show_default=True, help="Control planes that get them in turn; each uses a core."
)
@cores_option
@click.pass_obj
def api(report: Report, /, **sizes: int) -> None:
    """Measure reads of the REST API with a long history."""
    report.show(run_api(ApiSizes(**sizes), _say), sizes["cores"])


@main.command("control-plane")
@click.option(
    "--jobs",
    multiple=True,
    type=int,
    default=(100, 300, 1000),
    show_default=True,
    help="Idle running jobs; may be repeated.",
)
@click.option("--seconds", default=30, show_default=True, help="How long the load is measured.")
@cores_option
@click.pass_obj
def control_plane(report: Report, /, *, jobs: Sequence[int], **sizes: int) -> None:
    """Measure what running jobs cost the control plane while nothing happens."""
    report.show(run_running_jobs(jobs, RunningJobSizes(**sizes), _say), sizes["cores"])


@main.command()
@click.option("--jobs", default=50, show_default=True, help="Jobs in the database.")
@click.option("--checkpoints", default=5000, show_default=True, help="Checkpoints of each.")
@click.option("--rounds", default=5, show_default=True, help="How often each page is opened.")
@cores_option
@click.pass_obj
def pages(report: Report, /, **sizes: int) -> None:
    """Measure the load time and size of each page of the dashboard."""
    report.show(run_pages(PageSizes(**sizes), _say), sizes["cores"])


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    continue_below_reaper()  # which ends control planes, drivers and databases even if a benchmark is killed
    try:
        main(prog_name="./keyscale bench")
    except (PackageError, ContenderFailedError) as failure:
        sys.exit(str(failure))

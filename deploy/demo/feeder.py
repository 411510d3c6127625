"""The source of the demo: writes departure reports as files over time.

It writes JSON-lines files, each atomically, in a separate process (`python -m keyscale.deploy.demo.feeder`), like a
real source. It knows nothing of the job, and ends when all reports have been delivered.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from .reports import delivered, departure_reports, plan_deliveries

STAGING = ".staging"  # Spark's file source ignores names with a leading dot
FILES = "reports-*.json"
ALLOWANCE_POLL_S = 0.1


def file_count(directory: Path) -> int:
    """Returns how many files have been delivered so far."""
    return sum(1 for _ in directory.glob(FILES))


def write_atomically(directory: Path, name: str, records: list[dict[str, Any]]) -> None:
    """Writes a file atomically: under a hidden name first, then renamed."""
    staged = directory / f"{STAGING}-{name}"
    with staged.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, separators=(",", ":")))
            file.write("\n")
    staged.rename(directory / name)


def wait_for_allowance(allowance: Path | None, number: int) -> None:
    """Waits until the file with this number may be written."""
    while allowance is not None and number >= int(allowance.read_text()):
        time.sleep(ALLOWANCE_POLL_S)


@click.command()
@click.option("--input", "directory", type=click.Path(path_type=Path), required=True, help="Directory of the files.")
@click.option("--files", default=60, show_default=True, help="Number of files to deliver the reports in.")
@click.option("--seconds", default=65.0, show_default=True, help="Duration of the delivery.")
@click.option(
    "--seed", default=7, show_default=True, help="Selects the tenth of the reports that is delivered again, and where."
)
@click.option("--reports", type=int, default=None, help="Use only this many reports, the earliest ones.")
@click.option(
    "--allowance", type=click.Path(path_type=Path), help="A file that holds the number of files that may be delivered."
)
def feed(**options: Any) -> None:
    """Delivers departure reports into a directory."""
    deliver(**options)


def deliver(
    directory: Path, *, files: int, seconds: float, seed: int, reports: int | None, allowance: Path | None
) -> None:
    """Writes all files, each when due and allowed; options as for `feed`."""
    directory.mkdir(parents=True, exist_ok=True)
    every = departure_reports(reports)
    deliveries = plan_deliveries(len(every), files, seed)
    wait_for_allowance(allowance, 0)  # the preparation is done; the delivery begins when the first file is allowed
    began = time.monotonic()
    for number, delivery in enumerate(deliveries):
        due = began + seconds * number / len(deliveries)
        time.sleep(max(0.0, due - time.monotonic()))
        wait_for_allowance(allowance, number)
        write_atomically(directory, f"reports-{number:04d}.json", delivered(every, delivery, seed))


if __name__ == "__main__":
    feed()

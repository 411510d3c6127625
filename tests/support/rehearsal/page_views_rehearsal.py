"""The page views example as a rehearsal; run as a program it works until it is killed.

Usage: page_views_rehearsal.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from keyscale.jobs.examples import page_views
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.streams.streams import DataStream
from tests.support.examples.page_views import View, deliveries
from tests.support.rehearsal.rehearsal import Rehearsal

FILES = deliveries(seed=5, files=8, records=40)
PARALLELISM = 2
_SCHEMA = pa.schema([("view_id", pa.string()), ("page", pa.string())])


def page_views_rehearsal(directory: Path, attempt: int = 0, files: list[list[View]] = FILES) -> Rehearsal:
    """The job after some attempts, with files as its input."""
    builder = TopologyBuilder()
    views = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), _SCHEMA), None)
    page_views.declare(views).sink_to(cast("Any", None)).uid("files")
    tables = [
        pa.Table.from_pylist([{"view_id": view.view_id, "page": view.page} for view in file], _SCHEMA) for file in files
    ]
    return Rehearsal(directory, builder.build(), tables, cast("Any", None), attempt)


def main(directory: str) -> None:
    job = page_views_rehearsal(Path(directory))
    job.start(PARALLELISM)
    while not job.is_at_end:
        job.run_batches(1)
        job.checkpoint()


if __name__ == "__main__":
    main(*sys.argv[1:])

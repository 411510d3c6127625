"""A rehearsal of one function over records with a key and an event time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from keyscale.jobs.graph.nodes import Timestamps
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.runtime.executor.worker import warm_stores
from keyscale.jobs.streams.streams import DataStream
from tests.support.rehearsal.rehearsal import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keyscale.jobs.functions.process_function import KeyedProcessFunction

OPERATOR, SINK = "operator", "out"
_SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])


def keyed_rehearsal(
    directory: Path, function: KeyedProcessFunction, output: pa.Schema, batches: Sequence[Sequence[tuple[str, int]]]
) -> Rehearsal:
    """Returns the job before its first attempt; `batches` are records of a key and an event time."""
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), _SCHEMA)
    timestamps = Timestamps("at")
    timed = builder.add_timestamps(source, timestamps)
    stream = DataStream(cast("Any", None), builder, timed, timestamps)
    stream.key_by("key").process(function, output=output).uid(OPERATOR).sink_to(cast("Any", None)).uid(SINK)
    tables = [pa.Table.from_pylist([{"key": key, "at": at} for key, at in batch], _SCHEMA) for batch in batches]
    return Rehearsal(directory, builder.build(), tables, cast("Any", None))


def lose_the_host(job: Rehearsal) -> None:
    """Loses the local files of all subtasks: the next batch runs them elsewhere."""
    warm_stores().close()
    shutil.rmtree(job.directory / "local")

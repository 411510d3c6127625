"""A rehearsal of one function over records with a key and an event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.runtime.executor.worker import open_stores
from keyscale.jobs.streams.streams import DataStream
from tests.support.lost_directories import lose_directory
from tests.support.rehearsal.rehearsal import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from keyscale.jobs.functions.process_function import KeyedProcessFunction
    from keyscale.jobs.streams.streams import KeyedStream

OPERATOR, SINK = "operator", "out"
SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])


def keyed_rehearsal(
    directory: Path, function: KeyedProcessFunction, output: pa.Schema, batches: Sequence[Sequence[tuple[str, int]]]
) -> Rehearsal:
    """Returns the job before its first attempt; `batches` are records of a key and an event time."""
    return declared_rehearsal(directory, lambda keyed: keyed.process(function, output=output), batches)


def declared_rehearsal(
    directory: Path,
    declare: Callable[[KeyedStream], DataStream],
    batches: Sequence[Sequence[tuple[str, int]]],
    **times: Any,
) -> Rehearsal:
    """As `keyed_rehearsal`, with any operator; `times` are options of `with_timestamps`."""
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    stream = DataStream(cast("Any", None), builder, source, None).with_timestamps("at", **times)
    declare(stream.key_by("key")).uid(OPERATOR).sink_to(cast("Any", None)).uid(SINK)
    tables = [pa.Table.from_pylist([{"key": key, "at": at} for key, at in batch], SCHEMA) for batch in batches]
    return Rehearsal(directory, builder.build(), tables, cast("Any", None))


def lose_the_host(job: Rehearsal) -> None:
    """Loses the local files of all subtasks: the next batch runs them elsewhere."""
    open_stores().close()
    lose_directory(job.directory / "local")

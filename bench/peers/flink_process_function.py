"""Deduplication as a PyFlink KeyedProcessFunction with a ValueState on RocksDB.

This is PyFlink's own way to keep state.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflink.common import Types  # type: ignore[import-not-found] # lives in the Flink environment
from pyflink.datastream import KeyedProcessFunction, RuntimeContext  # type: ignore[import-not-found]
from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]

from bench.peers import flink
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Deduplicate(KeyedProcessFunction):  # type: ignore[misc] # untyped here
    """Passes a key's first row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:  # noqa: ARG002 - Flink's signature
        if self._seen.value() is None:
            self._seen.update(True)
            yield value


def run(*, jars: Sequence[str], **options: Any) -> Mapping[str, Any]:
    """Deduplicates with a KeyedProcessFunction."""
    # The JVM's own Python is by far the faster mode: with worker processes each read of state is a network call. It
    # does not know virtual environments.
    checkout = Path(__file__).resolve().parents[2]
    path = os.pathsep.join((sysconfig.get_path("purelib"), str(checkout / "src"), str(checkout)))
    os.environ["PYTHONPATH"] = path
    task = DedupTask(**options)
    tables, rest = flink.table_environment(task, jars, {"python.execution-mode": "thread", "python.pythonpath": path})
    row = Types.ROW_NAMED(["id", "ts_ms", "payload"], [Types.STRING(), Types.LONG(), Types.STRING()])
    events = tables.to_data_stream(tables.sql_query("SELECT id, ts_ms, payload FROM events"))
    kept = events.key_by(lambda event: event[0], key_type=Types.STRING()).process(Deduplicate(), output_type=row)
    return flink.run(task, rest, lambda: tables.from_data_stream(kept).execute_insert("kept"))

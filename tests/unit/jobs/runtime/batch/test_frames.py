"""A sink gets frames that it may cache and drop, beside the other readers of the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.batch.frames import BatchFrames
from tests.support.rehearsal.rehearsed_sink import RehearsedSink

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.string())])


@dataclass(eq=False)
class Frame:
    """A frame that notes whether it is cached."""

    is_cached: bool = False

    def persist(self, _level: object = None) -> Frame:
        self.is_cached = True
        return self

    def unpersist(self) -> None:
        self.is_cached = False

    def where(self, _condition: str) -> Frame:
        return Frame()


def test_a_sink_that_caches_and_drops_its_frame_leaves_the_kept_frame_cached(tmp_path: Path) -> None:
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    operator = builder.add_operator(
        source, key_columns=("id",), logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None
    )
    builder.name(operator, "once")
    later = builder.add_transform(operator, lambda frame: frame, SCHEMA)
    for name, node in {"all": operator, "later": later}.items():
        builder.name(builder.add_sink(node, RehearsedSink(tmp_path / name)), name)
    emitted = Frame()
    frames = BatchFrames(builder.build(), lambda _node, _inputs: cast("Any", emitted))
    given = frames.build({source: cast("Any", Frame())})
    assert emitted.is_cached
    for frame in given.values():
        frame.persist()
        frame.unpersist()
        assert emitted.is_cached
    frames.release()
    assert not emitted.is_cached

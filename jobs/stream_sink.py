"""Where a branch of a job's graph ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from jobs.nodes import NodeId
    from jobs.topology import TopologyBuilder


class StreamSink:
    """A sink in the graph, to be named."""

    def __init__(self, builder: TopologyBuilder, node: NodeId) -> None:
        self._builder = builder
        self._node = node

    def uid(self, uid: str) -> Self:
        """Names the sink: with the batch's number it is the key under which output is written once."""
        self._builder.name(self._node, uid)
        return self

"""The graph of a job as the control plane shows it.

It has sources, operators and sinks, without the steps between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.messages import GraphNode
from .nodes import ONLY_SOURCE_UID, OperatorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from .topology import Topology


def describe(topology: Topology) -> list[GraphNode]:
    """Returns the sources, operators and sinks of a graph, upstream nodes first."""
    return [
        GraphNode(
            uid=node.uid or ONLY_SOURCE_UID,
            kind="SOURCE" if isinstance(node, SourceNode) else "SINK" if isinstance(node, SinkNode) else "OPERATOR",
            inputs=sorted(
                {origin.node.uid or ONLY_SOURCE_UID for each in node.inputs for origin in topology.origins(each)}
            ),
        )
        for node in topology.nodes
        if isinstance(node, SourceNode | OperatorNode | SinkNode)
    ]

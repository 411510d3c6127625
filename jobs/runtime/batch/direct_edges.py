"""Edges from operators to sinks that subtasks write to directly.

Rows of such an edge do not pass through Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graph.nodes import OperatorNode
from ...sinks.sink import DirectSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.nodes import SinkNode
    from ...graph.topology import Topology
    from ...sinks.sink import DirectStaging
    from ..executor.task_reports import TaskReport


@dataclass(frozen=True, slots=True)
class DirectEdge:
    """An operator and its sink, if the subtasks write to the sink."""

    operator: OperatorNode
    sink: SinkNode
    staging: DirectStaging

    def gather(self, token: str, reports: Sequence[TaskReport]) -> None:
        """Stages the parts that the subtasks have reported.

        Each subtask has one report.
        """
        self.staging.gather(token, [report.part for report in reports if report.part is not None])


def direct_edges(topology: Topology) -> tuple[DirectEdge, ...]:
    """Returns the edges to sinks that can take rows from subtasks.

    The sink must be the only reader of the operator's only output.

    Call it once per run, in the driver, so that all batches are written in the same way.
    """
    return tuple(
        DirectEdge(operator, node, staging)
        for node in topology.sinks
        if isinstance(operator := topology.nodes[node.input], OperatorNode)
        and not operator.side_outputs
        and topology.consumers(operator.id) == (node,)
        and isinstance(node.sink, DirectSink)
        and (staging := node.sink.direct(operator.schema)) is not None
    )


def carries_no_rows(topology: Topology, edges: Sequence[DirectEdge]) -> bool:
    """Returns whether a batch without input needs no frames.

    That is so if subtasks write to all sinks, and operators before the sinks read only sources.
    """
    written = {edge.sink.uid for edge in edges}
    return all(node.uid in written for node in topology.sinks) and all(
        topology.follows_sources_alone(edge.operator) for edge in edges
    )

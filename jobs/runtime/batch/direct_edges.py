"""Edges from an operator to a sink that its subtasks write to themselves, so that no rows pass through Spark."""

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
    """An operator whose subtasks write to the sink after it."""

    operator: OperatorNode
    sink: SinkNode
    staging: DirectStaging

    def gather(self, token: str, reports: Sequence[TaskReport]) -> None:
        """Stages the parts that the subtasks have reported, one report per subtask."""
        self.staging.gather(token, [report.part for report in reports if report.part is not None])


def direct_edges(topology: Topology) -> tuple[DirectEdge, ...]:
    """Returns the edges to a sink that alone reads an operator's only output, and that can take rows from subtasks.

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
    """Whether a batch without input needs no frames: subtasks write to all sinks, and read sources alone."""
    written = {edge.sink.uid for edge in edges}
    return all(node.uid in written for node in topology.sinks) and all(
        topology.follows_sources_alone(edge.operator) for edge in edges
    )

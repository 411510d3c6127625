"""Sinks that an operator's subtasks write to themselves, so that Spark does not have to carry the rows there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.nodes import OperatorNode
from jobs.sinks import DirectSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.nodes import SinkNode
    from jobs.runtime.reports import TaskReport
    from jobs.sinks import DirectStaging
    from jobs.topology import Topology


@dataclass(frozen=True, slots=True)
class DirectEdge:
    """An operator whose subtasks write to the sink behind it."""

    operator: OperatorNode
    sink: SinkNode
    staging: DirectStaging

    def gather(self, token: str, reports: Sequence[TaskReport]) -> None:
        """Stages what the subtasks have reported, one report of each."""
        self.staging.gather(token, [report.part for report in reports if report.part is not None])


def direct_edges(topology: Topology) -> tuple[DirectEdge, ...]:
    """Where a sink alone reads the only output of an operator, and takes its rows from subtasks.

    To be chosen once a run, on the driver: all its batches are then written in one way.
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
    """Whether Spark has no rows to carry in a batch without input: subtasks write to all sinks, and what they write comes from sources."""
    written = {edge.sink.uid for edge in edges}
    return all(node.uid in written for node in topology.sinks) and all(
        topology.follows_sources_alone(edge.operator) for edge in edges
    )

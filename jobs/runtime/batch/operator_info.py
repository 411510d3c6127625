"""The values that an operator's functions can ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...functions.subtask_info import SplitInfo
from ...operators.operator_contract import SPLIT_COLUMN
from ..executor.task import subtask_info
from .frames import tags_of

if TYPE_CHECKING:
    from keyscale.state.doors.subtasks import SubtaskSpec

    from ...functions.subtask_info import SubtaskInfo
    from ...graph.nodes import OperatorNode
    from ...graph.topology import Topology


def operator_info(topology: Topology, node: OperatorNode, spec: SubtaskSpec) -> SubtaskInfo:
    """Returns the values for an operator's functions, without the subtask."""
    arrivals = topology.arrivals(node)
    splits = {
        each.name: SplitInfo(each.splits_name, (SPLIT_COLUMN,) if each.carries_split else each.split_columns)
        for each in arrivals
        if each.split_columns
    }
    return subtask_info(node, spec, tags_of(arrivals), splits)

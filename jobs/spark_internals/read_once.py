"""Whether a step reads each partition of its input exactly once.

Each partition must stay a separate partition.

It relies on `DataFrame._jdf`, PySpark's private reference to the frame in the JVM (since Spark 1.3), and there on the
names of the nodes of Spark's optimised plan. A step with an unlisted node counts as a step that does not, so another
Spark version only makes some steps slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it publishes no types
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_LEAF = "LogicalRDD"
_READ_ALL_ONCE = frozenset(
    {
        _LEAF,
        "Aggregate",
        "ArrowEvalPython",
        "BatchEvalPython",
        "DeserializeToObject",
        "Expand",
        "Filter",
        "FlatMapGroupsInArrow",
        "FlatMapGroupsInPandas",
        "Generate",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "RebalancePartitions",
        "SerializeFromObject",
        "TypedFilter",
        "Window",
    }
)


def reads_once(step: DataFrame) -> bool:
    """Returns whether Spark computes each partition of a step's input once.

    Each partition must be computed in a separate task.

    With a limit, a sort, a join, or fewer partitions without a shuffle, it does not.

    Args:
        step: The result of the step for a frame of `SparkSession.createDataFrame` with unknown rows.
    """
    try:
        nodes = list(_nodes(step._jdf.queryExecution().optimizedPlan()))
        names = [node.nodeName() for node in nodes]
        return names.count(_LEAF) == 1 and all(map(_is_harmless, nodes, names))
    except (AttributeError, Py4JError, PySparkException):  # also raised by a plan that fails
        return False


def _is_harmless(node: Any, name: str) -> bool:
    if name == "Sort":
        return not getattr(node, "global")()  # a Python keyword
    if name == "Repartition":
        return bool(node.shuffle())
    if name == "RepartitionByExpression":
        return bool(node.partitioning().getClass().getSimpleName() != "RangePartitioning")
    return name in _READ_ALL_ONCE


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))

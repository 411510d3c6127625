"""Carries a column through the steps of a frame that drop it.

It relies on `DataFrame._jdf` and `SparkSession._jvm`, PySpark's private references into the JVM (since Spark 1.3), and
there on Spark's analysed plan: the names of its nodes, that a `Project` is made of its columns and its input, that the
other nodes pass on their inputs' columns, and that `Dataset.ofRows` makes a frame of a plan. A plan with any other node
carries no column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it publishes no types
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_PASS_ON = frozenset({"Filter", "Generate", "Repartition", "RepartitionByExpression", "SubqueryAlias"})


def carried(frame: DataFrame, name: str, step_with_column: Callable[[DataFrame], DataFrame | None]) -> DataFrame | None:
    """Returns a frame with a column of one of its earlier steps.

    Args:
        frame: The frame.
        name: The name of the column.
        step_with_column: Returns a step of the frame with the column, or None for a step that cannot have it. It is
            asked for the last step first.

    Returns:
        The frame and the column; None if no step has it, or if a later step cannot carry it.
    """
    try:
        found = _carried(frame, frame._jdf.queryExecution().analyzed(), name, step_with_column)
        return None if found is None else _frame_of(frame, found[0])
    except (AttributeError, Py4JError):  # another Spark
        return None


def _carried(
    frame: DataFrame, plan: Any, name: str, step_with_column: Callable[[DataFrame], DataFrame | None]
) -> tuple[Any, Any] | None:
    """Returns a plan with the column, and the column."""
    step = step_with_column(_frame_of(frame, plan))
    if step is not None:
        changed = step._jdf.queryExecution().analyzed()
        columns = changed.output()
        at = next(at for at in range(columns.size()) if columns.apply(at).name() == name)
        return changed, columns.apply(at)
    kind, inputs = plan.nodeName(), plan.children()
    if inputs.size() != 1 or (kind != "Project" and kind not in _PASS_ON):
        return None
    found = _carried(frame, inputs.apply(0), name, step_with_column)
    if found is None:
        return None
    below, column = found
    jvm: Any = frame.sparkSession._jvm
    if kind == "Project":
        with_column = plan.projectList().appended(column)
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(with_column, below), column
    return plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq([below])), column


def _frame_of(frame: DataFrame, plan: Any) -> DataFrame:
    session: Any = frame.sparkSession
    rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicDataFrame(rows, session)

"""The hidden column with a record's split.

It carries the split through steps that drop the split columns.

It holds the name of the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import IntegralType, StringType

from ..errors import InvalidTopologyError
from ..operators.operator_contract import SPLIT_COLUMN
from ..operators.split_name import ESCAPES
from ..spark_internals.carried_column import carried
from .source_reader import split_columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_NULL: Final = "None"


def with_split_of_source(frame: DataFrame) -> tuple[DataFrame, tuple[str, ...]] | None:
    """Adds the column to a frame that lacks its source's split columns.

    Returns:
        The frame, and the names of the split columns; None if the source has none, or the frame cannot carry them.
    """
    found: list[tuple[str, ...]] = []

    def step_with_split(step: DataFrame) -> DataFrame | None:
        names = split_columns_of(step.schema)
        if not names or not can_name_splits(step.schema, names):
            return None
        found.append(names)
        return with_split(step, names)

    result = carried(frame, SPLIT_COLUMN, step_with_split)
    return None if result is None else (result, found[0])


def with_split(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Adds the column, from the columns of the split."""
    values = [F.coalesce(F.col("`" + name.replace("`", "``") + "`").cast("string"), F.lit(_NULL)) for name in columns]
    return frame.withColumn(SPLIT_COLUMN, F.concat_ws("/", *map(_escaped, values[:-1]), *values[-1:]))


def _escaped(value: Column) -> Column:
    """Escapes as `split_name` does."""
    for text, escape in ESCAPES:
        value = F.replace(value, F.lit(text), F.lit(escape))
    return value


def can_name_splits(schema: StructType, columns: Sequence[str]) -> bool:
    """Returns whether Spark writes the values of these columns as Python does."""
    return all(isinstance(schema[name].dataType, StringType | IntegralType) for name in columns)


def carrying(function: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """Returns a step that carries the column past a user's function.

    The function does not see the column.

    Raises:
        InvalidTopologyError: By the step: the function's plan cannot carry it.
    """

    def step(frame: DataFrame) -> DataFrame:
        result = carried(
            function(frame.drop(SPLIT_COLUMN)),
            SPLIT_COLUMN,
            lambda each: each if SPLIT_COLUMN in each.columns else None,
        )
        if result is None:
            raise InvalidTopologyError("a transform loses the split of its records")
        return result

    return step

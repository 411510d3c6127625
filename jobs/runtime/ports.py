"""The records of an operator's two keyed inputs in one Spark frame; see `two_inputs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from jobs.runtime.two_inputs import BESIDE, PORT_COLUMN, struct_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def packed(first: DataFrame, second: DataFrame) -> DataFrame:
    """The routed records of both inputs in one frame."""
    return _packed(first, 0).unionByName(_packed(second, 1), allowMissingColumns=True)


def _packed(frame: DataFrame, port: int) -> DataFrame:
    beside = [name for name in BESIDE if name in frame.columns]
    columns = ["`" + name.replace("`", "``") + "`" for name in frame.columns if name not in beside]
    return frame.select(F.lit(port).alias(PORT_COLUMN), F.struct(*columns).alias(struct_column(port)), *beside)

"""An operator's several outputs in the single schema of a Spark task.

A record is in one of several struct columns, one per output, the main output first; `__output` says in which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.state.doors.values import column_over

from ...operators.operator_contract import SideBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from ...functions.subtask_info import SubtaskInfo
    from ...operators.operator_contract import OutputBatch

_OUTPUT = "__output"


def wire_schema(main: pa.Schema, side_outputs: Mapping[str, pa.Schema]) -> pa.Schema:
    """Returns the schema that a task emits.

    It is the main output's schema if there are no side outputs.
    """
    if not side_outputs:
        return main
    outputs = [main, *side_outputs.values()]
    columns = [pa.field(_column(at), pa.struct(list(schema))) for at, schema in enumerate(outputs)]
    return pa.schema([pa.field(_OUTPUT, pa.int32()), *columns])


def to_wire(outputs: Iterator[OutputBatch], info: SubtaskInfo) -> Iterator[pa.RecordBatch]:
    """Converts batches of any output to the schema of `wire_schema`."""
    schema = wire_schema(info.output_schema, info.side_outputs)
    places = {tag: at for at, tag in enumerate(info.side_outputs, 1)}
    for output in outputs:
        place, records = (places[output.tag], output.records) if isinstance(output, SideBatch) else (0, output)
        if not info.side_outputs:
            yield records
            continue
        arrays = [column_over(np.full(records.num_rows, place, np.int32))]
        for at, field in enumerate(list(schema)[1:]):
            if at == place:
                arrays.append(pa.StructArray.from_arrays(records.columns, fields=list(field.type)))
            else:
                arrays.append(pa.nulls(records.num_rows, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def main_output(frame: DataFrame) -> DataFrame:
    """Returns the main output's records of a frame with several outputs."""
    return _records_of(frame, 0)


def side_output(frame: DataFrame, tag: str, side_outputs: Mapping[str, pa.Schema]) -> DataFrame:
    """Returns a side output's records of a frame with several outputs."""
    return _records_of(frame, list(side_outputs).index(tag) + 1)


def _records_of(frame: DataFrame, place: int) -> DataFrame:
    return frame.where(F.col(_OUTPUT) == place).select(F.col(_column(place) + ".*"))


def _column(place: int) -> str:
    return f"__output_{place}"

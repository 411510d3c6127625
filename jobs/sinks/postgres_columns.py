"""The PostgreSQL types that keep the values of a stream's column.

PostgreSQL rounds values to other types silently.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXACT_IN_A_FLOAT: Final = {
    "float8": {"tinyint", "smallint", "int", "float", "double"},
    "float4": {"tinyint", "smallint", "float"},
}
_NUMBERS: Final = {"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"}
_TIMES: Final = {"timestamp", "timestamp_ntz"}
_TYPE: Final = re.compile(r"(?P<name>\w+)(\((?P<digits>\d+)(,\s*(?P<scale>-?\d+))?\))?")


def loses(spark: str, postgres: str) -> bool:
    """Returns whether PostgreSQL would silently round or cut values of a type.

    Args:
        spark: The type of the stream's column, as Spark names it: `decimal(10,2)`.
        postgres: The type of the table's column, as psycopg displays it: `numeric(10, 1)`.
    """
    written, kept = _TYPE.match(spark), _TYPE.match(postgres)
    if written is None or kept is None:
        return False
    source, target = written["name"], kept["name"]
    if target in _EXACT_IN_A_FLOAT:
        return source in _NUMBERS - _EXACT_IN_A_FLOAT[target]
    if target == "numeric" and kept["digits"] is not None:
        return source in {"float", "double"} or int(written["scale"] or 0) > int(kept["scale"] or 0)
    if source in _TIMES:
        return target == "date" or (target in {"timestamp", "timestamptz"} and int(kept["digits"] or 6) < 6)
    return False


def columns_that_lose(stream: Mapping[str, str], table: Mapping[str, str]) -> list[str]:
    """Describes each column of the table that would lose precision."""
    return [
        f"{name} ({kind} into {table[name]})"
        for name, kind in stream.items()
        if name in table and loses(kind, table[name])
    ]

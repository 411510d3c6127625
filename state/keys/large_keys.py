"""Keys that are too large to store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import KeyTooLargeError
from ..serializers.conversions import Kind, kind_of_type
from .stored_key import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

_NARROW: Final[dict[pa.DataType, pa.DataType]] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_ENCODED_BYTES_EACH: Final = 2  # a byte of text takes at most two bytes in a stored key


def large_keys(
    columns: Sequence[pa.Array], schema: pa.Schema, sizes_of: Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]]
) -> list[tuple[int, KeyTooLargeError]]:
    """Returns the rows whose keys are too large, with errors.

    Args:
        columns: The keys, an array per column. Types other than the schema's are not stored: a hash of them is.
        schema: The stored key.
        sizes_of: Returns the bytes of each row's stored key. Called only if a key can be too large.
    """
    if [_NARROW.get(column.type, column.type) for column in columns] != list(schema.types):
        return []
    if sum(map(_bytes_max, columns)) <= KEY_BYTES_MAX:
        return []
    sizes = sizes_of(columns)
    return [
        (
            row,
            KeyTooLargeError(
                f"a key with its namespace and map key takes {sizes[row]} bytes; {KEY_BYTES_MAX} are allowed"
            ),
        )
        for row in np.flatnonzero(sizes > KEY_BYTES_MAX).tolist()
    ]


def _bytes_max(column: pa.Array) -> int:
    """Returns an upper bound of a key column's bytes when stored.

    A nested key has no cheap bound: its sizes must be computed.
    """
    if kind_of_type(column.type) in {Kind.TEXT, Kind.BYTES}:
        return _ENCODED_BYTES_EACH * (pc.max(pc.binary_length(column)).as_py() or 0) + 16
    return KEY_BYTES_MAX + 1 if pa.types.is_nested(column.type) else 32

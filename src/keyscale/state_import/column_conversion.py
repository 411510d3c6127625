"""Converts columns to the types that a program declares; pure."""

from __future__ import annotations

import re

import pyarrow as pa

from .errors import ImportUnmappedError

_PLACE = re.compile(r"f\d+")


def converted(column: pa.Array, of_type: pa.DataType) -> pa.Array:
    """Returns a column as another type that holds the same values.

    The fields of a struct are found by their names, and the fields of a tuple by their places. A number may become a
    wider number.

    Raises:
        ImportUnmappedError: The type cannot hold the values.
    """
    found = column.type
    if found == of_type:
        return column
    if pa.types.is_struct(found) and pa.types.is_struct(of_type):
        return _struct(column, of_type)
    if pa.types.is_list(found) and pa.types.is_list(of_type):
        values = converted(column.values, of_type.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=of_type, mask=_mask(column))
    if pa.types.is_map(found) and pa.types.is_map(of_type):
        keys, items = converted(column.keys, of_type.key_type), converted(column.items, of_type.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=of_type, mask=_mask(column))
    if not _is_wider(found, of_type):
        raise ImportUnmappedError(f"a column of type {found} cannot become {of_type}")
    try:
        return column.cast(of_type)
    except pa.ArrowInvalid:
        raise ImportUnmappedError(f"a value of type {found} is beyond {of_type}") from None


def columns_of_key(keys: pa.Array, wanted: pa.Schema) -> list[pa.Array]:
    """Returns the columns of a program's key from a column of keys.

    Raises:
        ImportUnmappedError: The keys have other columns.
    """
    if not pa.types.is_struct(keys.type):
        if len(wanted) != 1:
            raise ImportUnmappedError(
                f"the key has the columns {', '.join(wanted.names)}, and is a {keys.type} in Flink"
            )
        return [converted(keys, wanted.field(0).type)]
    return list(converted(keys, pa.struct(list(wanted))).flatten())


def _struct(column: pa.Array, of_type: pa.StructType) -> pa.Array:
    names = [each.name for each in column.type]
    wanted = [each.name for each in of_type]
    if sorted(names) == sorted(wanted):
        places = [names.index(name) for name in wanted]
    elif len(names) == len(wanted) and all(map(_PLACE.fullmatch, names)):
        places = [*range(len(names))]
    else:
        raise ImportUnmappedError(f"the fields {', '.join(names)} are not {', '.join(wanted)}")
    fields = [converted(column.field(place), each.type) for place, each in zip(places, of_type, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=list(of_type), mask=_mask(column))


def _mask(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _is_wider(found: pa.DataType, wanted: pa.DataType) -> bool:
    is_integer, is_float = pa.types.is_integer, pa.types.is_floating
    if is_integer(found) and is_integer(wanted):
        return bool(found.bit_width <= wanted.bit_width and pa.types.is_signed_integer(wanted))
    if is_float(found) and is_float(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    texts = (pa.types.is_string, pa.types.is_large_string), (pa.types.is_binary, pa.types.is_large_binary)
    if any(any(each(found) for each in kind) and any(each(wanted) for each in kind) for kind in texts):
        return True
    return bool(pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted) and wanted.tz is not None)

"""Structs of numbers and strings, which msgspec handles in one step.

It checks and splits their dicts as a whole instead of field by field.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NULL = msgspec.msgpack.encode(None)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[list[Any] | None]).decode
_as_dict = msgspec.structs.asdict


@lru_cache
def simple_row(of_type: pa.DataType) -> type[msgspec.Struct] | None:
    """Returns a class with a struct's fields, in their order.

    `msgspec.convert` converts the struct's dicts to it. It accepts only valid dicts of the struct, but rejects some of
    them: dicts with numbers of other classes than Python's own. Returns None for structs with fields other than
    booleans, integers within a signed 64-bit range, doubles and strings.
    """
    fields: list[tuple[str, Any, Any]] = []
    for number, field in enumerate(of_type):
        simple = _simple_type(field.type)
        if simple is None:
            return None
        # Under a made-up name, because the field's own may not be an identifier.
        fields.append((f"f{number}", simple | None, msgspec.field(name=field.name)))
    if len({field.name for field in of_type}) < max(1, len(fields)):
        return None
    return msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False)


def row_decoder(of_type: pa.DataType) -> Callable[[bytes, int], dict[str, Any]]:
    """Returns a function that decodes a row's MessagePack array.

    It takes the bytes and the position of the array. Only for a type that has a `simple_row`. The function raises
    ValueError or msgspec.MsgspecError if the bytes are not a row of the type.
    """
    names = [field.name for field in of_type]
    simple = [(f"f{number}", _simple_type(field.type) | None) for number, field in enumerate(of_type)]
    named = all(name.isidentifier() and not name.startswith("__") for name in names)
    if named:  # then msgspec can also build the dicts
        simple = [(name, kind) for name, (_, kind) in zip(names, simple, strict=True)]
    stored = msgspec.defstruct("Stored", simple, array_like=True, forbid_unknown_fields=True, gc=False)
    unpack = msgspec.msgpack.Decoder(stored).decode
    if named:
        return lambda raw, at: _as_dict(unpack(raw[at:]))
    parts = msgspec.structs.astuple
    return lambda raw, at: dict(zip(names, parts(unpack(raw[at:])), strict=True))


def encode_rows(array: pa.StructArray) -> list[bytes]:
    """Returns the MessagePack array of each row's fields.

    Null rows are undefined. The type must have a `simple_row`.
    """
    columns = [column.to_pylist() for column in array.flatten()]
    return [_pack(parts) for parts in zip(*columns, strict=True)]


def decode_rows(payloads: Sequence[bytes | None], of_type: pa.StructType) -> pa.StructArray:
    """Returns a column of rows from results of `encode_rows`.

    None becomes null.

    Raises:
        ValueError, msgspec.MsgspecError, pa.ArrowInvalid: A payload is not a row of the type.
    """
    head = b"\xdd" + len(payloads).to_bytes(4, "big")  # of an array of all rows, which is decoded in one call
    rows = _unpack(b"".join([head, *[_NULL if payload is None else payload for payload in payloads]]))
    nulls = [row is None for row in rows]
    blank = [None] * of_type.num_fields
    columns = list(zip(*[blank if row is None else row for row in rows], strict=True)) or [()] * len(blank)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, of_type, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(of_type), mask=pa.array(nulls, pa.bool_()))


def _simple_type(of_type: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(of_type):
        return bool
    if types.is_integer(of_type):
        signed = types.is_signed_integer(of_type)
        bits = of_type.bit_width - (1 if signed else 0)
        if bits > 63:  # msgspec has no bounds for larger numbers
            return None
        return Annotated[int, msgspec.Meta(ge=-(1 << bits) if signed else 0, le=(1 << bits) - 1)]
    if types.is_float64(of_type):
        return float
    return str if types.is_string(of_type) or types.is_large_string(of_type) else None

"""The stored form of a key column: injective, self-delimiting and ordered.

Every value begins with a tag byte. It takes almost no space on disk, where neighbouring keys share their prefixes.

| type | form |
|---|---|
| null | `00`, so nulls come first |
| bool, ints, date, timestamp | `01`, then big endian with the sign bit flipped |
| float, double | `01`, then IEEE 754 bits: if negative all flipped, else the sign bit; -0.0 is 0.0, NaNs are last |
| canonical UUID string | `01`, then its 16 bytes (17 in all) |
| any other string | `02`, then UTF-8 with 00 as `01 01` and 01 as `01 02`, then `00` |
| bytes | `02`, then as UTF-8 above |
| decimal | `01`, then the unscaled number: a length byte, which orders by sign and size, then big endian |
| UUID | `01`, then its 16 bytes |
| list | `01`, then each item after `01`, then `00` |
| struct | `01`, then its fields |

The order of strings is therefore: UUIDs in lower case first, then all other strings, each by code points.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import CorruptValueError, SerializationError, UnsupportedTypeError
from .arrow_columns import decimal_unscaled

if TYPE_CHECKING:
    from collections.abc import Callable

NULL = b"\0"
PRESENT = b"\1"
TEXT = b"\2"
UUID_TEXT_LENGTH = 36
_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 (for timestamps without a time zone)
_EPOCH_DATE = dt.date(1970, 1, 1)
_UNITS = {
    "s": dt.timedelta(seconds=1),
    "ms": dt.timedelta(milliseconds=1),
    "us": dt.timedelta(microseconds=1),
}
_ERRORS = (TypeError, ValueError, struct.error, OverflowError, AttributeError, KeyError, UnicodeError)


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Encodes and decodes the values of one key column.

    Attributes:
        type: The column's Arrow type.
        encode: Converts a value, or None, to its stored form.
        decode: Converts stored bytes and a position to the value there and the next position.
        width: Bytes of a non-null value, if all have the same length; else None.
    """

    type: pa.DataType
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], tuple[Any, int]]
    width: int | None


def key_codec_for(of_type: pa.DataType) -> KeyCodec:
    """Returns the codec of a key column.

    Raises:
        UnsupportedTypeError: A key cannot have this type.
    """
    encode, decode, width = _codec(of_type)

    def checked_encode(value: Any) -> bytes:
        if value is None:
            return NULL
        try:
            return encode(value)
        except _ERRORS as error:
            raise SerializationError(f"a {type(value).__name__} is not a key of type {of_type}") from error

    def checked_decode(raw: bytes, at: int) -> tuple[Any, int]:
        try:
            return (None, at + 1) if raw[at] == 0 else decode(raw, at)
        except (*_ERRORS, IndexError) as error:
            raise CorruptValueError(f"stored bytes are not a key of type {of_type}") from error

    return KeyCodec(of_type, checked_encode, checked_decode, width)


_Codec = tuple["Callable[[Any], bytes]", "Callable[[bytes, int], tuple[Any, int]]", int | None]


def _codec(of_type: pa.DataType) -> _Codec:  # noqa: C901, PLR0911 (one branch per type)
    types = pa.types
    if types.is_string(of_type) or types.is_large_string(of_type):
        return encode_text, _decode_text, None
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return lambda value: TEXT + _escape(bytes(value)), _decode_bytes, None
    if types.is_boolean(of_type):
        return lambda value: b"\1\1" if value else b"\1\0", lambda raw, at: (raw[at + 1] == 1, at + 2), 2
    if types.is_integer(of_type):
        return _integer(of_type.bit_width // 8, signed=types.is_signed_integer(of_type))
    if types.is_floating(of_type) and of_type.bit_width >= 32:
        return _floating(of_type.bit_width // 8)
    if types.is_date32(of_type):
        return _mapped(
            _integer(4, signed=True),
            lambda value: (value - _EPOCH_DATE).days,
            lambda days: _EPOCH_DATE + dt.timedelta(days),
        )
    if types.is_timestamp(of_type) and of_type.unit in _UNITS:
        return _mapped(_integer(8, signed=True), *timestamp_conversion(of_type))
    if types.is_decimal(of_type):
        return _decimal(of_type)
    if of_type == pa.uuid():
        return lambda v: PRESENT + v.bytes, lambda raw, at: (uuid.UUID(bytes=raw[at + 1 : at + 17]), at + 17), 17
    if types.is_list(of_type) or types.is_large_list(of_type):
        return _list(_part_codec(of_type.value_type))
    if types.is_struct(of_type):
        return _struct([(field.name, _part_codec(field.type)) for field in of_type])
    raise UnsupportedTypeError(f"{of_type} cannot be the type of a key")


def integer_packing(of_type: pa.DataType) -> tuple[str, int] | None:
    """Returns the `struct` format and bias of an integer key.

    The format includes the tag. None for other types.
    """
    if not pa.types.is_integer(of_type):
        return None
    bias = 1 << (of_type.bit_width - 1) if pa.types.is_signed_integer(of_type) else 0
    return "B" + {8: "B", 16: "H", 32: "I", 64: "Q"}[of_type.bit_width], bias


def _part_codec(of_type: pa.DataType) -> KeyCodec:
    if isinstance(of_type, pa.BaseExtensionType):  # Arrow cannot build columns of them
        raise UnsupportedTypeError(f"{of_type} cannot be the type of a part of a key")
    return key_codec_for(of_type)


def timestamp_conversion(
    of_type: pa.DataType,
) -> tuple[Callable[[dt.datetime], int], Callable[[int], dt.datetime]]:
    """Returns functions from datetimes to integers in a type's unit, and back.

    With a time zone, they take and return aware datetimes (in UTC), otherwise naive datetimes.
    """
    unit = _UNITS[of_type.unit]
    epoch = _NAIVE_EPOCH if of_type.tz is None else _EPOCH
    return (lambda value: (value - epoch) // unit), (lambda number: epoch + number * unit)


def encode_text(value: str) -> bytes:
    """Returns the stored form of a non-null string."""
    if len(value) == UUID_TEXT_LENGTH and _CANONICAL_UUID.fullmatch(value):
        return PRESENT + bytes.fromhex(value.replace("-", ""))
    return TEXT + _escape(value.encode())


def _escape(raw: bytes) -> bytes:
    if b"\1" in raw or b"\0" in raw:
        raw = raw.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return raw + b"\0"


def _unescape(raw: bytes) -> bytes:
    return raw.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1") if b"\1" in raw else raw


def _decode_text(raw: bytes, at: int) -> tuple[str, int]:
    if raw[at] == 1:
        return str(uuid.UUID(bytes=raw[at + 1 : at + 17])), at + 17
    content, end = _decode_bytes(raw, at)
    return content.decode(), end


def _decode_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    end = raw.index(b"\0", at + 1)
    return _unescape(raw[at + 1 : end]), end + 1


def _mapped(codec: _Codec, to: Callable[[Any], Any], back: Callable[[Any], Any]) -> _Codec:
    encode, decode, width = codec

    def decode_mapped(raw: bytes, at: int) -> tuple[Any, int]:
        value, end = decode(raw, at)
        return back(value), end

    return lambda value: encode(to(value)), decode_mapped, width


def _integer(size: int, *, signed: bool) -> _Codec:
    bias = 1 << (8 * size - 1) if signed else 0
    end = 1 + size

    def decode(raw: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(raw[at + 1 : at + end], "big") - bias, at + end

    return lambda value: PRESENT + (value + bias).to_bytes(size, "big"), decode, end


def _floating(size: int) -> _Codec:
    form, bits = (">d", ">Q") if size == 8 else (">f", ">I")
    sign = 1 << (8 * size - 1)
    full = (1 << 8 * size) - 1

    def encode(value: float) -> bytes:
        number = float("nan") if value != value else value + 0.0  # noqa: PLR0124 (NaN)
        raw: int = struct.unpack(bits, struct.pack(form, number))[0]
        return PRESENT + (raw ^ full if raw & sign else raw | sign).to_bytes(size, "big")

    def decode(raw: bytes, at: int) -> tuple[float, int]:
        ordered = int.from_bytes(raw[at + 1 : at + 1 + size], "big")
        number = ordered ^ sign if ordered & sign else ordered ^ full
        return struct.unpack(form, struct.pack(bits, number))[0], at + 1 + size

    return encode, decode, 1 + size


def _decimal(of_type: pa.DataType) -> _Codec:
    """Returns the codec of decimals.

    The length byte is 128 + size for numbers from 0 on and 127 - size for negative numbers: it orders by sign and size.
    """
    scale = -of_type.scale

    def encode(value: Decimal) -> bytes:
        unscaled = decimal_unscaled(value, of_type)
        size = (abs(unscaled).bit_length() + 7) // 8
        if unscaled >= 0:
            return PRESENT + bytes((128 + size,)) + unscaled.to_bytes(size, "big")
        return PRESENT + bytes((127 - size,)) + (unscaled + (1 << 8 * size)).to_bytes(size, "big")

    def decode(raw: bytes, at: int) -> tuple[Decimal, int]:
        size = raw[at + 1] - 128 if raw[at + 1] >= 128 else 127 - raw[at + 1]
        end = at + 2 + size
        magnitude = int.from_bytes(raw[at + 2 : end], "big")
        unscaled = magnitude if raw[at + 1] >= 128 else magnitude - (1 << 8 * size)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), scale)), end

    return encode, decode, None


def _list(item: KeyCodec) -> _Codec:
    def encode(value: Any) -> bytes:
        return PRESENT + b"".join(PRESENT + item.encode(each) for each in value) + b"\0"

    def decode(raw: bytes, at: int) -> tuple[list[Any], int]:
        items = []
        at += 1
        while raw[at] == 1:
            value, at = item.decode(raw, at + 1)
            items.append(value)
        return items, at + 1

    return encode, decode, None


def _struct(fields: list[tuple[str, KeyCodec]]) -> _Codec:
    def encode(value: dict[str, Any]) -> bytes:
        return PRESENT + b"".join(codec.encode(value[name]) for name, codec in fields)

    def decode(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        at += 1
        for name, codec in fields:
            values[name], at = codec.decode(raw, at)
        return values, at

    return encode, decode, None

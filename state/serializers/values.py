"""The stored form of values: compact, typed, without a byte that says what they are; the state's schema says that.

Numbers, booleans, dates and timestamps are little endian at their width, strings UTF-8, decimals the shortest two's
complement of the unscaled number. Lists, structs and maps are MessagePack arrays (by msgspec) of the same parts: a struct is
the array of its fields in their order, a map the array of its keys and values in turn.
"""

from __future__ import annotations

import datetime as dt
import operator
import struct
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from state.columns import decimal_unscaled, fixed_values
from state.errors import CorruptValueError, SerializationError, UnsupportedTypeError
from state.serializers.key_codecs import timestamp_conversion
from state.serializers.pickled import Pickled, refuse_pickle
from state.serializers.simple_rows import decode_rows, encode_rows, row_decoder, simple_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Convert = Callable[[Any], Any]

_EPOCH_DATE = dt.date(1970, 1, 1)
_row_parts = msgspec.structs.astuple
_ERRORS = (
    TypeError,
    ValueError,
    struct.error,
    OverflowError,
    AttributeError,
    KeyError,
    IndexError,
    msgspec.MsgspecError,
)
_FORMATS = {
    "bool": "<?", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q",
    "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q", "float": "<f", "double": "<d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueSerializer:
    """Encodes and decodes values, none of them null, of one type.

    Attributes:
        type: Their Arrow type.
        encode: From a value to bytes; raises SerializationError if it is no value of the type.
        decode: From bytes and the position where the value begins, which extends to their end, to the value; raises
            CorruptValueError if it is none.
        dtype: Of types whose stored form is one little endian number: the number's NumPy type; else None.
    """

    type: pa.DataType
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], Any]
    dtype: np.dtype[Any] | None

    def encode_array(self, array: pa.Array) -> list[bytes]:
        """The stored form of each row; rows that are null get any."""
        if self.dtype is not None:
            return self.numbers(array).view(f"V{self.dtype.itemsize}").tolist()  # type: ignore[no-any-return]  # bytes
        if pa.types.is_struct(self.type) and simple_row(self.type) is not None:
            return encode_rows(array)
        return [b"" if value is None else self.encode(value) for value in array.to_pylist()]

    def numbers(self, array: pa.Array) -> npt.NDArray[Any]:
        """The rows as stored numbers; only of a type that has a `dtype`."""
        values = fixed_values(array.view(pa.int64())) if pa.types.is_timestamp(self.type) else fixed_values(array)
        return np.ascontiguousarray(values, self.dtype)

    def decode_array(self, payloads: Sequence[bytes | None]) -> pa.Array:
        """An Arrow column of stored forms; None is null."""
        if pa.types.is_struct(self.type) and simple_row(self.type) is not None:
            try:
                return decode_rows(payloads, self.type)
            except _ERRORS as error:
                message = f"stored bytes are no values of type {self.type}"
                raise CorruptValueError(message) from error
        if self.dtype is None:
            return pa.array([None if raw is None else self.decode(raw, 0) for raw in payloads], self.type)
        width = self.dtype.itemsize
        nulls = np.fromiter((raw is None for raw in payloads), np.bool_, len(payloads))
        filler = bytes(width)
        joined = b"".join([filler if raw is None else raw for raw in payloads])
        if len(joined) != width * len(payloads):
            message = f"stored bytes are no values of type {self.type}"
            raise CorruptValueError(message)
        return self.array_of(np.frombuffer(joined, self.dtype), nulls)

    def array_of(self, numbers: npt.NDArray[Any], nulls: npt.NDArray[np.bool_]) -> pa.Array:
        """An Arrow column from stored numbers; only of a type that has a `dtype`."""
        if pa.types.is_boolean(self.type):
            return pa.array(numbers.astype(np.bool_), self.type, mask=nulls)
        if pa.types.is_timestamp(self.type):
            return pa.array(numbers, pa.int64(), mask=nulls).view(self.type)
        if pa.types.is_date(self.type):
            return pa.array(numbers, pa.int32(), mask=nulls).view(self.type)
        return pa.array(numbers, self.type, mask=nulls, from_pandas=False)


class RowSerializer:
    """Encodes rows of a schema, tuples in the order of its columns, as one value."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = schema.names
        self._serializer = serializer_for(pa.struct(list(schema)))

    def encode(self, row: Sequence[Any]) -> bytes:
        return self._serializer.encode(row)

    def decode(self, raw: bytes) -> tuple[Any, ...]:
        return tuple(self._serializer.decode(raw, 0).values())


def serializer_for(of_type: pa.DataType) -> ValueSerializer:
    """The serializer of values of a type.

    Raises:
        UnsupportedTypeError: There is none.
    """
    encode, decode, dtype = _serializer(of_type)

    def checked_encode(value: Any) -> bytes:
        try:
            encoded: bytes = encode(value)
        except _ERRORS as error:
            message = f"a {type(value).__name__} is no value of type {of_type}"
            raise SerializationError(message) from error
        return encoded

    def checked_decode(raw: bytes, at: int) -> Any:
        try:
            return decode(raw, at)
        except _ERRORS as error:
            message = f"stored bytes are no value of type {of_type}"
            raise CorruptValueError(message) from error

    return ValueSerializer(of_type, checked_encode, checked_decode, dtype)


_Parts = tuple["Convert", "Callable[[bytes, int], Any]", "np.dtype[Any] | None"]


def _serializer(of_type: pa.DataType) -> _Parts:  # noqa: C901, PLR0911 (one branch a type)
    types = pa.types
    if str(of_type) in _FORMATS:
        return _number(_FORMATS[str(of_type)], None)
    if types.is_string(of_type) or types.is_large_string(of_type):
        return _encode_text, lambda raw, at: raw[at:].decode(), None
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return _plain_bytes(of_type)[0], lambda raw, at: raw[at:], None
    if types.is_date32(of_type):
        return _number("<i", (lambda v: (v - _EPOCH_DATE).days, lambda days: _EPOCH_DATE + dt.timedelta(days)))
    if types.is_timestamp(of_type) and of_type.unit != "ns":
        return _number("<q", timestamp_conversion(of_type))
    if types.is_decimal(of_type):
        to, back = _plain_decimal(of_type)
        return to, lambda raw, at: back(raw[at:]), None
    if of_type == pa.uuid():
        return lambda value: value.bytes, lambda raw, at: uuid.UUID(bytes=raw[at:]), None
    if isinstance(of_type, Pickled):
        return refuse_pickle, refuse_pickle, None
    if types.is_nested(of_type):
        to, back = _plain(of_type)
        pack, unpack = msgspec.msgpack.Encoder(enc_hook=_plain_text).encode, msgspec.msgpack.Decoder().decode
        if types.is_struct(of_type) and simple_row(of_type) is not None:
            return lambda value: pack(to(value)), row_decoder(of_type), None
        return lambda value: pack(to(value)), lambda raw, at: back(unpack(raw[at:])), None
    message = f"{of_type} cannot be the type of a value"
    raise UnsupportedTypeError(message)


def _number(form: str, conversion: tuple[Convert, Convert] | None) -> _Parts:
    packer = struct.Struct(form)
    pack, unpack, dtype = packer.pack, packer.unpack_from, np.dtype("?" if form == "<?" else f"{form}")
    size = packer.size

    def decode(raw: bytes, at: int) -> Any:
        if len(raw) - at != size:
            raise ValueError(size)
        return unpack(raw, at)[0]

    if form == "<?":
        return _encode_bool, decode, dtype
    if conversion is None:
        return pack, decode, dtype
    to, back = conversion
    return lambda value: pack(to(value)), lambda raw, at: back(decode(raw, at)), dtype


def _encode_bool(value: Any) -> bytes:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(type(value))
    return b"\1" if value else b"\0"


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value.encode()


def _plain_text(value: Any) -> str:
    """A string of a class of its own as one that msgspec encodes."""
    return _encode_text(value).decode()


def _plain(of_type: pa.DataType) -> tuple[Convert, Convert]:  # noqa: C901, PLR0911 (one branch a type)
    """To what MessagePack holds, checked, and back, for a part of a list, struct or map; null stays null."""
    types = pa.types
    if types.is_struct(of_type):
        return _simple(of_type) or _plain_struct(of_type)
    if types.is_map(of_type):
        return _plain_map(of_type)
    if types.is_list(of_type) or types.is_large_list(of_type):
        to, back = _nullable(_plain(of_type.value_type))
        return (lambda value: [to(item) for item in _sequence(value)]), (lambda items: [back(item) for item in items])
    if types.is_integer(of_type):
        packer = struct.Struct(_FORMATS[str(of_type)])

        def checked(value: Any) -> int:
            packer.pack(value)
            return operator.index(value)

        return checked, _same
    if types.is_boolean(of_type):
        return (lambda value: _encode_bool(value) == b"\1"), _same
    if types.is_floating(of_type) and of_type.bit_width >= 32:
        packer = struct.Struct(_FORMATS[str(of_type)])
        return (lambda value: packer.unpack(packer.pack(value))[0]), _same
    if types.is_string(of_type) or types.is_large_string(of_type):
        return (lambda value: _encode_text(value).decode()), _same
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return _plain_bytes(of_type)
    if types.is_date32(of_type):
        return (lambda value: (value - _EPOCH_DATE).days), (lambda days: _EPOCH_DATE + dt.timedelta(days))
    if types.is_timestamp(of_type) and of_type.unit != "ns":
        return timestamp_conversion(of_type)
    if types.is_decimal(of_type):
        return _plain_decimal(of_type)
    message = f"{of_type} cannot be the type of a part of a value"
    raise UnsupportedTypeError(message)


def _same(value: Any) -> Any:
    return value


def _nullable(conversion: tuple[Convert, Convert]) -> tuple[Convert, Convert]:
    to, back = conversion
    return (lambda value: None if value is None else to(value)), (lambda value: None if value is None else back(value))


def _sequence(value: Any) -> Any:
    if isinstance(value, (str, bytes, dict)):
        raise TypeError(type(value))
    return value


def _plain_bytes(of_type: pa.DataType) -> tuple[Convert, Convert]:
    width = of_type.byte_width if pa.types.is_fixed_size_binary(of_type) else None

    def checked(value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)) or (width is not None and len(value) != width):
            raise TypeError(type(value))
        return bytes(value)

    return checked, _same


def _plain_decimal(of_type: pa.DataType) -> tuple[Convert, Convert]:
    scale = -of_type.scale

    def to(value: Decimal) -> bytes:
        unscaled = decimal_unscaled(value, of_type)
        return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "little", signed=True)

    def back(raw: bytes) -> Decimal:
        unscaled = int.from_bytes(raw, "little", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), scale))

    return to, back


def _plain_struct(of_type: pa.DataType) -> tuple[Convert, Convert]:
    names = [field.name for field in of_type]
    converts = [_nullable(_plain(field.type)) for field in of_type]
    known = set(names)

    def to(value: Any) -> list[Any]:
        if isinstance(value, dict):
            if not value.keys() <= known:
                raise KeyError
            parts = [value.get(name) for name in names]
        else:
            parts = list(_sequence(value))
            if len(parts) != len(names):
                raise ValueError
        return [convert[0](part) for convert, part in zip(converts, parts, strict=True)]

    def back(parts: list[Any]) -> dict[str, Any]:
        return {name: convert[1](part) for name, convert, part in zip(names, converts, parts, strict=True)}

    return to, back


def _simple(of_type: pa.DataType) -> tuple[Convert, Convert] | None:
    """What `_plain` does for values that are structs of numbers and strings, in far fewer steps; None of other types."""
    row = simple_row(of_type) if pa.types.is_struct(of_type) else None
    if row is None:
        return None
    names = [field.name for field in of_type]
    to_parts, _ = _plain_struct(of_type)

    def to(value: Any) -> Any:
        if type(value) is dict:
            try:
                return _row_parts(msgspec.convert(value, row))
            except (msgspec.ValidationError, UnicodeError):
                pass  # numbers of other classes, which are looked at one by one, or no value of the type
        return to_parts(value)

    def back(parts: list[Any]) -> dict[str, Any]:
        if len(parts) != len(names):
            raise ValueError
        return dict(zip(names, parts))  # noqa: B905 (just compared; `strict` takes as long as all the rest)

    return to, back


def _plain_map(of_type: pa.DataType) -> tuple[Convert, Convert]:
    to_key, back_key = _plain(of_type.key_type)
    to_item, back_item = _nullable(_plain(of_type.item_type))

    def to(value: Any) -> list[Any]:
        pairs = value.items() if isinstance(value, dict) else value
        return [part for key, item in pairs for part in (to_key(key), to_item(item))]

    def back(parts: list[Any]) -> dict[Any, Any]:
        return {back_key(parts[at]): back_item(parts[at + 1]) for at in range(0, len(parts), 2)}

    return to, back

"""The stored form of values: compact, without their type.

The type is in the state's schema. Numbers, booleans, dates and timestamps are little endian at their width, strings
UTF-8, decimals the shortest two's complement of the unscaled number. Lists, structs and maps are MessagePack arrays (by
msgspec) of such parts: a struct is the array of its fields in their order, a map the array of its keys and values in
turn.
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

from ..errors import CorruptValueError, SerializationError, UnsupportedTypeError
from .arrow_columns import decimal_unscaled, fixed_values
from .conversions import converter, exact_classes, of_field, struct_parts
from .evolution import conversion
from .key_codecs import timestamp_conversion
from .key_columns import EncodedColumn
from .pickled import Pickled, decode_pickle, encode_pickle, refuse_pickle
from .simple_rows import decode_rows, encode_rows, row_decoder, simple_row
from .structured import Structured
from .type_names import type_from_json, type_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Convert = Callable[[Any], Any]

_EPOCH_DATE = dt.date(1970, 1, 1)
_FLOAT = {float, type(None)}
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
    """Encodes and decodes non-null values of one type.

    Attributes:
        type: The Arrow type.
        encode: Converts a value to bytes; raises SerializationError for a value of another type.
        decode: Converts bytes, from a position to their end, to the value; raises CorruptValueError if they are not a
            value of the type.
        dtype: The NumPy type of the stored number, for types stored as one little endian number; else None.
    """

    type: pa.DataType
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], Any]
    dtype: np.dtype[Any] | None

    def encode_array(self, array: pa.Array) -> list[bytes]:
        """Returns the stored form of each row, undefined for null rows."""
        if self.dtype is not None:
            return self.numbers(array).view(f"V{self.dtype.itemsize}").tolist()  # type: ignore[no-any-return]  # bytes
        if pa.types.is_struct(self.type) and simple_row(self.type) is not None:
            return encode_rows(array)
        return [b"" if value is None else self.encode(value) for value in array.to_pylist()]

    def encode_column(self, array: pa.Array) -> EncodedColumn:
        """Returns the stored forms of all rows as one column.

        Null rows are empty.
        """
        if self.dtype is not None and array.null_count == 0:
            numbers = self.numbers(array)
            return EncodedColumn.fixed(numbers.view(np.uint8).reshape(len(array), numbers.dtype.itemsize))
        types = pa.types
        if types.is_string(self.type) or types.is_binary(self.type):
            return EncodedColumn.over(array)
        payloads = self.encode_array(array)
        if array.null_count:
            payloads = [
                raw if there else b"" for raw, there in zip(payloads, array.is_valid().to_pylist(), strict=True)
            ]
        return EncodedColumn.of(payloads)

    def numbers(self, array: pa.Array) -> npt.NDArray[Any]:
        """Returns the rows of a type with a `dtype` as stored numbers."""
        values = fixed_values(array.view(pa.int64())) if pa.types.is_timestamp(self.type) else fixed_values(array)
        return np.ascontiguousarray(values, self.dtype)

    def decode_array(self, payloads: Sequence[bytes | None]) -> pa.Array:
        """Returns an Arrow column from stored forms; None becomes null.

        Raises:
            CorruptValueError: Some bytes are not a value of the type.
        """
        if pa.types.is_struct(self.type) and simple_row(self.type) is not None:
            try:
                return decode_rows(payloads, self.type)
            except _ERRORS as error:
                raise CorruptValueError(f"stored bytes are not values of type {self.type}") from error
        if self.dtype is None:
            return pa.array([None if raw is None else self.decode(raw, 0) for raw in payloads], self.type)
        width = self.dtype.itemsize
        nulls = np.fromiter((raw is None for raw in payloads), np.bool_, len(payloads))
        filler = bytes(width)
        joined = b"".join([filler if raw is None else raw for raw in payloads])
        if len(joined) != width * len(payloads):
            raise CorruptValueError(f"stored bytes are not values of type {self.type}")
        return self.array_of(np.frombuffer(joined, self.dtype), nulls)

    def array_of(self, numbers: npt.NDArray[Any], nulls: npt.NDArray[np.bool_]) -> pa.Array:
        """Returns an Arrow column from stored numbers, for types with a `dtype`."""
        if pa.types.is_boolean(self.type):
            return pa.array(numbers.astype(np.bool_), self.type, mask=nulls)
        if pa.types.is_timestamp(self.type):
            return pa.array(numbers, pa.int64(), mask=nulls).view(self.type)
        if pa.types.is_date(self.type):
            return pa.array(numbers, pa.int32(), mask=nulls).view(self.type)
        return pa.array(numbers, self.type, mask=nulls, from_pandas=False)


def serializer_for(of_type: pa.DataType) -> ValueSerializer:
    """Returns the serializer of values of a type.

    Raises:
        UnsupportedTypeError: The type cannot be stored.
    """
    encode, decode, dtype = _serializer(of_type)
    if not pa.types.is_nested(of_type):  # nested types convert each part
        encode = _exactly(encode, of_type)

    def checked_encode(value: Any) -> bytes:
        try:
            encoded: bytes = encode(value)
        except _ERRORS as error:
            raise SerializationError(f"a {type(value).__name__} is not a value of type {of_type}") from error
        return encoded

    def checked_decode(raw: bytes, at: int) -> Any:
        try:
            return decode(raw, at)
        except _ERRORS as error:
            raise CorruptValueError(f"stored bytes are not a value of type {of_type}") from error

    return ValueSerializer(of_type, checked_encode, checked_decode, dtype)


def encoder_of(declared: pa.DataType) -> Callable[[Any], bytes]:
    """Returns an encoder of single values, without a header.

    The declared type may have Python objects as values.
    """
    if isinstance(declared, Pickled):
        return encode_pickle
    if isinstance(declared, Structured):
        encode, encodable = serializer_for(declared.storage_type).encode, declared.encodable
        return lambda value: encode(encodable(value))
    return serializer_for(declared).encode


def decoder_of(written: pa.DataType, declared: pa.DataType) -> Callable[[bytes], Any]:
    """Returns a decoder of values encoded with another, readable type.

    The result has values of the declared type.
    """
    if isinstance(declared, Pickled):
        return lambda raw: decode_pickle(raw, 0)
    decode = serializer_for(written).decode
    convert = conversion(written, type_from_json(type_to_json(declared)))
    plain: Callable[[bytes], Any] = lambda raw: decode(raw, 0)  # noqa: E731
    if convert is not None:
        plain = lambda raw: convert(decode(raw, 0))  # noqa: E731
    if isinstance(declared, Structured):
        return lambda raw: declared.instance(plain(raw))
    return plain


_Parts = tuple["Convert", "Callable[[bytes, int], Any]", "np.dtype[Any] | None"]


def _serializer(of_type: pa.DataType) -> _Parts:  # noqa: C901, PLR0911 (one branch per type)
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
    raise UnsupportedTypeError(f"{of_type} cannot be the type of a value")


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
    """Converts a string of a subclass of str for msgspec."""
    return _encode_text(value).decode()


def _exactly(to: Convert, of_type: pa.DataType) -> Convert:
    """Returns a conversion that refuses values which the type would change."""
    known, convert = exact_classes(of_type), converter(of_type)

    def exactly(value: Any) -> Any:
        if type(value) in known:
            try:
                return to(value)
            except _ERRORS:
                pass  # the conversion says what is wrong
        return to(convert(value))

    return exactly


def _plain(of_type: pa.DataType) -> tuple[Convert, Convert]:
    """Returns checked conversions to MessagePack's types and back.

    They serve a part of a list, struct or map, and keep nulls.
    """
    types = pa.types
    if types.is_struct(of_type):
        return _simple(of_type) or _plain_struct(of_type)
    if types.is_map(of_type):
        return _plain_map(of_type)
    if types.is_list(of_type) or types.is_large_list(of_type):
        to, back = _nullable(_plain(of_type.value_type))
        return (lambda value: [to(item) for item in _sequence(value)]), (lambda items: [back(item) for item in items])
    to, back = _plain_scalar(of_type)
    return _exactly(to, of_type), back


def _plain_scalar(of_type: pa.DataType) -> tuple[Convert, Convert]:  # noqa: PLR0911 (one branch per type)
    types = pa.types
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
    raise UnsupportedTypeError(f"{of_type} cannot be the type of a part of a value")


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
    plain = [_plain(field.type) for field in of_type]
    converts = [of_field(name, to) for name, (to, _) in zip(names, plain, strict=True)]
    backs = [_nullable(parts)[1] for parts in plain]

    def to(value: Any) -> list[Any]:
        parts = struct_parts(value, names, of_type)
        return [convert(part) for convert, part in zip(converts, parts, strict=True)]

    def back(parts: list[Any]) -> dict[str, Any]:
        return {name: convert(part) for name, convert, part in zip(names, backs, parts, strict=True)}

    return to, back


def _simple(of_type: pa.DataType) -> tuple[Convert, Convert] | None:
    """Returns faster conversions for structs of numbers and strings, or None.

    They do the same as `_plain`, in far fewer steps.
    """
    row = simple_row(of_type) if pa.types.is_struct(of_type) else None
    if row is None:
        return None
    names = [field.name for field in of_type]
    floats = [field.name for field in of_type if pa.types.is_floating(field.type)]
    to_parts, _ = _plain_struct(of_type)

    def to(value: Any) -> Any:
        if type(value) is dict:
            try:
                parts = _row_parts(msgspec.convert(value, row))
            except (msgspec.ValidationError, UnicodeError):
                pass  # numbers of other classes, which are checked one by one below, or not a value of the type
            else:
                if all(type(value.get(name)) in _FLOAT for name in floats):  # msgspec rounds other numbers
                    return parts
        return to_parts(value)

    def back(parts: list[Any]) -> dict[str, Any]:
        if len(parts) != len(names):
            raise ValueError
        return dict(zip(names, parts))  # noqa: B905 (lengths are equal; `strict` takes as long as all the rest)

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

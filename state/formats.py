"""The bytes of a stored value: a header, a stamp if the state has a TTL, and the payload.

The header's low six bits are the number of the state's format that wrote the value, its highest bit is set for null.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from state.errors import CorruptValueError, ValueTooLargeError
from state.serializers.evolution import conversion
from state.serializers.type_names import type_from_json
from state.serializers.values import ValueSerializer, serializer_for
from state.ttl import STAMP_BYTES, STAMP_MAX_MS, STAMP_MIN_MS, decode_stamp, encode_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from state.schema import StateSchema

NULL_FLAG = 0x80
_FORMAT_MASK = 0x3F
VALUE_BYTES_MAX = 256 << 20


class _Reader(NamedTuple):
    """How values of one format are read as the type that is declared now."""

    start: int
    stamps: bool  # whether the stamp is of the time that counts now
    decode: Callable[[bytes, int], Any]
    convert: Callable[[Any], Any] | None


class ValueFormats:
    """Writes values in one format of a state's schema, reads them in all."""

    def __init__(self, schema: StateSchema, write_format: int) -> None:
        self.written = schema.formats[write_format]
        self.type = type_from_json(self.written.type)
        self.serializer: ValueSerializer = serializer_for(self.type)
        self._header = bytes((write_format,))
        self._null_header = bytes((write_format | NULL_FLAG,))
        self._write_format = write_format
        # Batches mostly write one stamp, so its heads are kept.
        self._stamped_ms: int | None = 0 if self.written.stamps is None else None
        self._stamped_heads = (self._header, self._null_header)
        form = _number_form(self.type)
        head_bytes = 1 if self.written.stamps is None else 1 + STAMP_BYTES
        self._plain = None if form is None else struct.Struct(f"<{head_bytes}s{form}")
        self._start = head_bytes
        self._decode = self.serializer.decode
        self._readers = []
        for each in schema.formats:
            stored_type = type_from_json(each.type)
            stamps = each.stamps is not None and each.stamps == self.written.stamps
            start = 1 if each.stamps is None else 1 + STAMP_BYTES
            decode = serializer_for(stored_type).decode
            self._readers.append(_Reader(start, stamps, decode, conversion(stored_type, self.type)))

    def pack(self, value: Any, stamp_ms: int) -> bytes:
        """A stored value; `stamp_ms` counts only if the format has stamps.

        Raises:
            SerializationError: The value is not of the declared type.
            ValueTooLargeError: It takes more than 256 MiB.
        """
        if self._plain is not None:
            try:
                head = self._stamped_heads[0] if stamp_ms == self._stamped_ms else self._head(False, stamp_ms)
                return self._plain.pack(head, value)
            except (struct.error, OverflowError):
                pass  # null, or no value of the type
        if value is None:
            return self._head(True, stamp_ms)
        payload = self.serializer.encode(value)
        if len(payload) > VALUE_BYTES_MAX:
            message = f"a value takes {len(payload)} bytes; {VALUE_BYTES_MAX} are allowed"
            raise ValueTooLargeError(message)
        return self._head(False, stamp_ms) + payload

    def unpack(self, raw: bytes) -> tuple[Any, int | None]:
        """The value, and its stamp if it has one of the time that counts now.

        Raises:
            CorruptValueError: The bytes are no value of any format of the schema.
        """
        reader = self._reader(raw)
        stamp = decode_stamp(raw[1 : 1 + STAMP_BYTES]) if reader.stamps else None
        if raw[0] & NULL_FLAG:
            return None, stamp
        value = reader.decode(raw, reader.start)
        return (value if reader.convert is None else reader.convert(value)), stamp

    def value(self, raw: bytes) -> Any:
        """The value alone. Raises as `unpack` does."""
        if len(raw) < self._start or raw[0] != self._write_format:  # of an older format, null, or damaged
            return self.unpack(raw)[0]
        if self._plain is not None and len(raw) == self._plain.size:
            return self._plain.unpack(raw)[1]
        return self._decode(raw, self._start)

    def stamped_from(self, at_ms: int) -> tuple[bytes, bytes]:
        """Between which bytes, the second exclusive, all values lie that have a stamp of `at_ms` or later.

        That is, values of the format that is written now which are not null.
        """
        end = bytes((self._write_format + 1,))
        return (self._header + encode_stamp(at_ms) if at_ms <= STAMP_MAX_MS else end), end

    def stamp(self, raw: bytes) -> int | None:
        """A stored value's stamp if it has one of the time that counts now."""
        return decode_stamp(raw[1 : 1 + STAMP_BYTES]) if self._reader(raw).stamps else None

    def expiry_check(self, bound_ms: int) -> Callable[[bytes], bool]:
        """Whether a stored value has a stamp, of the time that counts now, that is not after `bound_ms`."""
        return expiry_check({number for number, reader in enumerate(self._readers) if reader.stamps}, bound_ms)

    def restamped(self, raw: bytes, stamp_ms: int) -> bytes:
        """A stored value with another stamp, in the format that is written now."""
        if raw[0] & _FORMAT_MASK == self._write_format:
            return raw[:1] + encode_stamp(stamp_ms) + raw[1 + STAMP_BYTES :]
        return self.pack(self.unpack(raw)[0], stamp_ms)

    def pack_array(self, values: pa.Array, stamp_ms: int) -> list[bytes]:
        """Stored values of a column; rows that are null get a stored null.

        Raises:
            SerializationError: The column cannot be cast to the declared type, or a value does not fit.
        """
        serializer, head = self.serializer, self._head(False, stamp_ms)
        if serializer.dtype is not None and values.null_count == 0:
            matrix = np.empty((len(values), len(head) + serializer.dtype.itemsize), np.uint8)
            matrix[:, : len(head)] = np.frombuffer(head, np.uint8)
            numbers = serializer.numbers(values)
            matrix[:, len(head) :] = numbers.view(np.uint8).reshape(len(values), numbers.dtype.itemsize)
            return matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
        payloads = serializer.encode_array(values)
        null = self._head(True, stamp_ms)
        if values.null_count == 0:
            return [head + payload for payload in payloads]
        valid = values.is_valid().to_pylist()
        return [head + payload if there else null for payload, there in zip(payloads, valid, strict=True)]

    def unpack_array(self, raws: Sequence[bytes | None]) -> pa.Array:
        """A column of the declared type; None is null."""
        serializer, header = self.serializer, self._write_format
        start = self._readers[header].start
        if all(raw is None or raw[0] == header for raw in raws):
            return serializer.decode_array([None if raw is None else raw[start:] for raw in raws])
        return pa.array([None if raw is None else self.unpack(raw)[0] for raw in raws], self.type)

    def list_array(self, lists: list[list[Any]]) -> pa.Array:
        """A column of lists of unpacked values."""
        return pa.array(lists, pa.list_(self.type))

    def _head(self, null: bool, stamp_ms: int) -> bytes:
        if self.written.stamps is None:
            return self._null_header if null else self._header
        if stamp_ms != self._stamped_ms:
            stamp = encode_stamp(stamp_ms)
            self._stamped_heads = (self._header + stamp, self._null_header + stamp)
            self._stamped_ms = stamp_ms
        return self._stamped_heads[null]

    def _reader(self, raw: bytes) -> _Reader:
        try:
            reader = self._readers[raw[0] & _FORMAT_MASK]
        except IndexError:
            message = "a stored value is of a format that the state's schema does not have"
            raise CorruptValueError(message) from None
        if len(raw) < reader.start:
            message = "a stored value ends before its payload"
            raise CorruptValueError(message)
        return reader


def expiry_check(stamped: Collection[int], bound_ms: int) -> Callable[[bytes], bool]:
    """Whether a stored value, of one of the formats of these numbers, has a stamp that is not after `bound_ms`."""
    if bound_ms < STAMP_MIN_MS:  # no time is so early; encoded, it would be the earliest that there is
        return lambda _: False
    bound = encode_stamp(bound_ms)
    return lambda raw: raw[0] & _FORMAT_MASK in stamped and raw[1 : 1 + STAMP_BYTES] <= bound


def _number_form(of_type: pa.DataType) -> str | None:
    """How `struct` packs values of a type that are stored as the very numbers they are; None of other types, and of booleans."""
    if pa.types.is_integer(of_type):
        form = {8: "b", 16: "h", 32: "i", 64: "q"}[of_type.bit_width]
        return form if pa.types.is_signed_integer(of_type) else form.upper()
    if pa.types.is_float32(of_type):
        return "f"
    return "d" if pa.types.is_float64(of_type) else None

"""The bytes of a stored value: header, optional stamp, and payload.

The low six bits of the header are the number of the value's format; its highest bit is set for null. A state with a TTL
has stamps. Values may also be Python objects: instances of msgspec.Struct classes, and pickles.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import CorruptValueError, UnsupportedTypeError, ValueTooLargeError
from ..serializers.arrow_columns import fixed_values
from ..serializers.evolution import conversion
from ..serializers.key_columns import EncodedColumn, byte_matrix, join_columns
from ..serializers.pickled import Pickled, decode_pickle, encode_pickle
from ..serializers.structured import Structured
from ..serializers.type_names import type_from_json
from ..serializers.value_serializer import ValueSerializer, serializer_for
from .stamp import STAMP_BYTES, STAMP_MAX_MS, STAMP_MIN_MS, decode_stamp, encode_stamp, encode_stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy.typing as npt

    from .schema import StateSchema

NULL_FLAG = 0x80
_FORMAT_MASK = 0x3F
VALUE_BYTES_MAX = 256 << 20


class _Reader(NamedTuple):
    """How values of one format are read as the declared type."""

    start: int
    stamps: bool  # whether there is a stamp of the TTL's current time domain
    decode: Callable[[bytes, int], Any]
    convert: Callable[[Any], Any] | None


class ValueFormats:
    """Writes values in one format of a schema, and reads all formats."""

    def __init__(self, schema: StateSchema, write_format: int) -> None:
        self.written = schema.formats[write_format]
        self.type = type_from_json(self.written.type)
        self.serializer: ValueSerializer = serializer_for(self.type)
        self._header = bytes((write_format,))
        self._null_header = bytes((write_format | NULL_FLAG,))
        self._write_format = write_format
        # The heads (header and stamp) are kept, because a batch mostly writes the same stamp.
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
        """Returns a stored value, with `stamp_ms` if the format has stamps.

        Raises:
            SerializationError: The value does not have the declared type.
            ValueTooLargeError: The value takes more than 256 MiB.
        """
        if self._plain is not None:
            try:
                head = self._stamped_heads[0] if stamp_ms == self._stamped_ms else self._head(False, stamp_ms)
                return self._plain.pack(head, value)
            except (struct.error, OverflowError):
                pass  # null, or a value of another type
        if value is None:
            return self._head(True, stamp_ms)
        payload = self.serializer.encode(value)
        _check_size(len(payload))
        return self._head(False, stamp_ms) + payload

    def unpack(self, raw: bytes) -> tuple[Any, int | None]:
        """Returns a stored value's value, and its stamp or None.

        Only stamps of the TTL's current time domain count.

        Raises:
            CorruptValueError: The bytes do not match any format of the schema.
        """
        reader = self._reader(raw)
        stamp = decode_stamp(raw[1 : 1 + STAMP_BYTES]) if reader.stamps else None
        if raw[0] & NULL_FLAG:
            return None, stamp
        value = reader.decode(raw, reader.start)
        return (value if reader.convert is None else reader.convert(value)), stamp

    def value(self, raw: bytes) -> Any:
        """Returns the value alone; raises the same errors as `unpack`."""
        if len(raw) < self._start or raw[0] != self._write_format:  # of an older format, null, or damaged
            return self.unpack(raw)[0]
        if self._plain is not None and len(raw) == self._plain.size:
            return self._plain.unpack(raw)[1]
        return self._decode(raw, self._start)

    def payload(self, raw: bytes) -> bytes | None:
        """Returns a stored value's payload, undecoded; None for null."""
        start = self._reader(raw).start
        return None if raw[0] & NULL_FLAG else raw[start:]

    def stamped_from(self, at_ms: int) -> tuple[bytes, bytes]:
        """Returns the range of stored values stamped `at_ms` or later.

        The end is exclusive. The range has only non-null values of the current write format.
        """
        end = bytes((self._write_format + 1,))
        return (self._header + encode_stamp(at_ms) if at_ms <= STAMP_MAX_MS else end), end

    def stamp(self, raw: bytes) -> int | None:
        """Returns a stored value's stamp in the current time domain, or None."""
        return decode_stamp(raw[1 : 1 + STAMP_BYTES]) if self._reader(raw).stamps else None

    def expiry_check(self, bound_ms: int) -> Callable[[bytes], bool]:
        """Returns a check whether a value's stamp is at most `bound_ms`.

        Only stamps of the TTL's current time domain count.
        """
        return expiry_check({number for number, reader in enumerate(self._readers) if reader.stamps}, bound_ms)

    def restamped(self, raw: bytes, stamp_ms: int) -> bytes:
        """Returns a stored value with another stamp, in the current write format."""
        if raw[0] & _FORMAT_MASK == self._write_format:
            return raw[:1] + encode_stamp(stamp_ms) + raw[1 + STAMP_BYTES :]
        return self.pack(self.unpack(raw)[0], stamp_ms)

    def pack_array(self, values: pa.Array, stamp_ms: int) -> list[bytes]:
        """Returns the stored values of a column; null rows are stored nulls.

        Raises:
            SerializationError: A value does not have the declared type.
            ValueTooLargeError: A value takes more than 256 MiB.
        """
        serializer, head = self.serializer, self._head(False, stamp_ms)
        if serializer.dtype is not None and values.null_count == 0:
            matrix = np.empty((len(values), len(head) + serializer.dtype.itemsize), np.uint8)
            matrix[:, : len(head)] = np.frombuffer(head, np.uint8)
            numbers = serializer.numbers(values)
            matrix[:, len(head) :] = numbers.view(np.uint8).reshape(len(values), numbers.dtype.itemsize)
            return matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
        payloads = serializer.encode_array(values)
        _check_size(max(map(len, payloads), default=0))
        null = self._head(True, stamp_ms)
        if values.null_count == 0:
            return [head + payload for payload in payloads]
        valid = values.is_valid().to_pylist()
        return [head + payload if there else null for payload, there in zip(payloads, valid, strict=True)]

    def pack_column(self, values: pa.Array, stamps_ms: npt.NDArray[np.int64]) -> EncodedColumn:
        """Returns the stored values of a column, each with its own stamp.

        Pickled values are given as bytes. Raises as `pack_array`.
        """
        if isinstance(self.type, Pickled):
            payloads = EncodedColumn.over(values)
        else:
            payloads = self.serializer.encode_column(values)
        _check_size(payloads.longest)
        valid = np.ones(len(values), np.bool_) if values.null_count == 0 else fixed_values(values.is_valid())
        headers = np.where(valid, self._write_format, self._write_format | NULL_FLAG).astype(np.uint8)
        heads = [EncodedColumn.fixed(headers.reshape(-1, 1))]
        if self.written.stamps is not None:
            heads.append(EncodedColumn.fixed(encode_stamps(stamps_ms)))
        return join_columns([*heads, payloads])

    def unpack_array(self, raws: Sequence[bytes | None]) -> pa.Array:
        """Returns stored values as a column of the declared type.

        None becomes null.
        """
        serializer, header = self.serializer, self._write_format
        start = self._readers[header].start
        if serializer.dtype is not None:
            matrix = byte_matrix(raws)
            width = start + serializer.dtype.itemsize
            if matrix is not None and matrix.shape[1] == width and bool((matrix[:, 0] == header).all()):
                numbers = np.ascontiguousarray(matrix[:, start:]).view(serializer.dtype).ravel()
                return serializer.array_of(numbers, np.zeros(len(raws), np.bool_))
        if all(raw is None or raw[0] == header for raw in raws):
            return serializer.decode_array([None if raw is None else raw[start:] for raw in raws])
        return pa.array([None if raw is None else self.unpack(raw)[0] for raw in raws], self.type)

    def list_array(self, lists: list[list[Any]]) -> pa.Array:
        """Returns a column of lists of unpacked values."""
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
            raise CorruptValueError("a stored value has a format that is not in the state's schema") from None
        if len(raw) < reader.start:
            raise CorruptValueError("a stored value ends before its payload")
        return reader


def expiry_check(stamped: Collection[int], bound_ms: int) -> Callable[[bytes], bool]:
    """Returns a check for stamps up to `bound_ms` in these formats."""
    if bound_ms < STAMP_MIN_MS:  # earlier than any stamp; encoding would make it the earliest valid stamp
        return lambda _: False
    bound = encode_stamp(bound_ms)
    return lambda raw: raw[0] & _FORMAT_MASK in stamped and raw[1 : 1 + STAMP_BYTES] <= bound


def _number_form(of_type: pa.DataType) -> str | None:
    """Returns the `struct` format of a type stored as a plain number.

    None for other types and booleans.
    """
    if pa.types.is_integer(of_type):
        form = {8: "b", 16: "h", 32: "i", 64: "q"}[of_type.bit_width]
        return form if pa.types.is_signed_integer(of_type) else form.upper()
    if pa.types.is_float32(of_type):
        return "f"
    return "d" if pa.types.is_float64(of_type) else None


def formats_of(declared: pa.DataType, schema: StateSchema, write_format: int) -> ValueFormats:
    """Returns the formats of a state for the declared type."""
    if isinstance(declared, Structured):
        return StructuredFormats(schema, write_format, declared)
    if isinstance(declared, Pickled):
        return PickledFormats(schema, write_format)
    return ValueFormats(schema, write_format)


class StructuredFormats(ValueFormats):
    """Formats of instances, with Arrow structs in batch methods."""

    def __init__(self, schema: StateSchema, write_format: int, structured: Structured) -> None:
        super().__init__(schema, write_format)
        self._structured = structured
        encode = self.serializer.encode
        self.serializer = replace(self.serializer, encode=lambda value: encode(structured.encodable(value)))

    def unpack(self, raw: bytes) -> tuple[Any, int | None]:
        value, stamp = super().unpack(raw)
        return self._structured.instance(value), stamp

    def value(self, raw: bytes) -> Any:
        return self.unpack(raw)[0]

    def unpack_array(self, raws: Sequence[bytes | None]) -> pa.Array:
        return pa.array(
            [None if raw is None else super(StructuredFormats, self).unpack(raw)[0] for raw in raws], self.type
        )

    def list_array(self, lists: list[list[Any]]) -> pa.Array:
        return super().list_array(self._structured.plain(lists))


class PickledFormats(ValueFormats):
    """Formats of pickled objects; only for a descriptor with `Pickled`."""

    def __init__(self, schema: StateSchema, write_format: int) -> None:
        super().__init__(schema, write_format)
        self.serializer = replace(self.serializer, encode=encode_pickle, decode=decode_pickle)
        self._readers = [reader._replace(decode=decode_pickle) for reader in self._readers]

    def value(self, raw: bytes) -> Any:
        return self.unpack(raw)[0]

    def pack_array(self, values: pa.Array, stamp_ms: int) -> list[bytes]:  # noqa: ARG002 (signature of the base class)
        raise _no_batch_methods()

    def unpack_array(self, raws: Sequence[bytes | None]) -> pa.Array:  # noqa: ARG002 (signature of the base class)
        raise _no_batch_methods()

    def list_array(self, lists: list[list[Any]]) -> pa.Array:  # noqa: ARG002 (signature of the base class)
        raise _no_batch_methods()


def _no_batch_methods() -> UnsupportedTypeError:
    return UnsupportedTypeError("pickled values have no batch methods; read and write them key by key")


def _check_size(size_bytes: int) -> None:
    if size_bytes > VALUE_BYTES_MAX:
        raise ValueTooLargeError(f"a value takes {size_bytes} bytes; {VALUE_BYTES_MAX} are allowed")

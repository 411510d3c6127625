"""Formats of values that are Python objects: instances of msgspec.Struct classes, and pickles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state.errors import UnsupportedTypeError
from state.formats import ValueFormats
from state.serializers import serializer_for
from state.serializers.evolution import conversion
from state.serializers.pickled import Pickled, decode_pickle, encode_pickle
from state.serializers.structured import Structured
from state.serializers.type_names import type_from_json, type_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from state.schema import StateSchema


def formats_of(declared: pa.DataType, schema: StateSchema, write_format: int) -> ValueFormats:
    """How values of a state are read and written that a descriptor declares to be of a type."""
    if isinstance(declared, Structured):
        return StructuredFormats(schema, write_format, declared)
    if isinstance(declared, Pickled):
        return PickledFormats(schema, write_format)
    return ValueFormats(schema, write_format)


def encoder_of(declared: pa.DataType) -> Callable[[Any], bytes]:
    """Writes single values of a declared type, objects among them, without a header."""
    if isinstance(declared, Pickled):
        return encode_pickle
    if isinstance(declared, Structured):
        encode, encodable = serializer_for(declared.storage_type).encode, declared.encodable
        return lambda value: encode(encodable(value))
    return serializer_for(declared).encode


def decoder_of(written: pa.DataType, declared: pa.DataType) -> Callable[[bytes], Any]:
    """Reads what `encoder_of` of a type has written as values of a declared type that can read it."""
    if isinstance(declared, Pickled):
        return lambda raw: decode_pickle(raw, 0)
    decode = serializer_for(written).decode
    convert = conversion(written, type_from_json(type_to_json(declared)))
    plain: Callable[[bytes], Any] = lambda raw: decode(raw, 0)  # noqa: E731 (one of two)
    if convert is not None:
        plain = lambda raw: convert(decode(raw, 0))  # noqa: E731 (as above)
    if isinstance(declared, Structured):
        return lambda raw: declared.instance(plain(raw))
    return plain


class StructuredFormats(ValueFormats):
    """Takes and gives instances one by one, and Arrow structs in batch forms."""

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
    """Takes and gives any object, one by one. Only for a descriptor that says `Pickled`."""

    def __init__(self, schema: StateSchema, write_format: int) -> None:
        super().__init__(schema, write_format)
        self.serializer = replace(self.serializer, encode=encode_pickle, decode=decode_pickle)
        self._readers = [reader._replace(decode=decode_pickle) for reader in self._readers]

    def value(self, raw: bytes) -> Any:
        return self.unpack(raw)[0]

    def pack_array(self, values: pa.Array, stamp_ms: int) -> list[bytes]:  # noqa: ARG002 (as the base's)
        raise _no_batch_forms()

    def unpack_array(self, raws: Sequence[bytes | None]) -> pa.Array:  # noqa: ARG002 (as the base's)
        raise _no_batch_forms()

    def list_array(self, lists: list[list[Any]]) -> pa.Array:  # noqa: ARG002 (as the base's)
        raise _no_batch_forms()


def _no_batch_forms() -> UnsupportedTypeError:
    message = "pickled values have no batch forms; read and write them key by key"
    return UnsupportedTypeError(message)

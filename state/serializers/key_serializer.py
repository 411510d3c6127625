"""The serializer of keys of one or several columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.units import counted

from ..errors import SerializationError
from .key_codecs import key_codec_for
from .key_columns import EncodedColumn, encode_column, join_columns

if TYPE_CHECKING:
    from collections.abc import Sequence


class KeySerializer:
    """Encodes keys of a schema: self-delimiting columns, which preserve the order."""

    def __init__(self, schema: pa.Schema) -> None:
        """Creates the serializer for keys of `schema`.

        Raises:
            UnsupportedTypeError: A key column cannot have this type.
        """
        self.schema = schema
        self._codecs = [key_codec_for(field.type) for field in schema]
        self._single = self._codecs[0].encode if len(self._codecs) == 1 else None

    def encode(self, key: tuple[Any, ...]) -> bytes:
        """Returns the stored form of one key.

        Raises:
            SerializationError: The key has another number of columns, or a value does not have its column's type.
        """
        if len(key) != len(self._codecs):
            raise SerializationError(f"a key has {counted(len(key), 'column')} instead of {len(self._codecs)}")
        if self._single is not None:
            return self._single(key[0])
        return b"".join([codec.encode(value) for codec, value in zip(self._codecs, key, strict=True)])

    def decode(self, raw: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """Returns the key at a position, and the position after it.

        Raises:
            CorruptValueError: The position does not have a key of the schema.
        """
        values = []
        for codec in self._codecs:
            value, at = codec.decode(raw, at)
            values.append(value)
        return tuple(values), at

    def encode_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> EncodedColumn:
        """Returns the stored form of many keys, given as columns.

        Other types are cast if no value is lost.

        Raises:
            SerializationError: The number of columns differs from the schema's, or a value does not have its column's
                type.
        """
        if len(columns) != len(self._codecs):
            raise SerializationError(f"keys have {counted(len(columns), 'column')} instead of {len(self._codecs)}")
        encoded = []
        for column, codec in zip(columns, self._codecs, strict=True):
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if array.type != codec.type:
                try:
                    array = array.cast(codec.type)
                except pa.ArrowInvalid as error:
                    raise SerializationError(
                        f"a key column of type {array.type} cannot be cast to {codec.type}"
                    ) from error
            encoded.append(encode_column(array))
        return join_columns(encoded)

"""The stored form of a key of one or several columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state.errors import SerializationError
from state.serializers.key_codecs import key_codec_for
from state.serializers.key_columns import EncodedColumn, encode_column, join_columns

if TYPE_CHECKING:
    from collections.abc import Sequence


class KeySerializer:
    """Encodes keys of a schema: their columns one after another, each self-delimiting, so that order is kept."""

    def __init__(self, schema: pa.Schema) -> None:
        """For keys of `schema`.

        Raises:
            UnsupportedTypeError: A column's type cannot be a key.
        """
        self.schema = schema
        self._codecs = [key_codec_for(field.type) for field in schema]
        self._single = self._codecs[0].encode if len(self._codecs) == 1 else None

    def encode(self, key: tuple[Any, ...]) -> bytes:
        """The stored form of one key.

        Raises:
            SerializationError: It does not have the schema's columns, or a value is not of its column's type.
        """
        if len(key) != len(self._codecs):
            message = f"a key of {len(key)} columns was given for {len(self._codecs)}"
            raise SerializationError(message)
        if self._single is not None:
            return self._single(key[0])
        return b"".join([codec.encode(value) for codec, value in zip(self._codecs, key, strict=True)])

    def decode(self, raw: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """The key that begins at a position, and the position after it.

        Raises:
            CorruptValueError: There is no key of the schema there.
        """
        values = []
        for codec in self._codecs:
            value, at = codec.decode(raw, at)
            values.append(value)
        return tuple(values), at

    def encode_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> EncodedColumn:
        """The stored form of many keys, one column of the schema each; a column of another type is cast, safely.

        Raises:
            SerializationError: The columns are not the schema's, or a value does not fit.
        """
        if len(columns) != len(self._codecs):
            message = f"{len(columns)} key columns were given for {len(self._codecs)}"
            raise SerializationError(message)
        encoded = []
        for column, codec in zip(columns, self._codecs, strict=True):
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if array.type != codec.type:
                try:
                    array = array.cast(codec.type)
                except pa.ArrowInvalid as error:
                    message = f"a key column of type {array.type} does not fit {codec.type}"
                    raise SerializationError(message) from error
            encoded.append(encode_column(array))
        return join_columns(encoded)

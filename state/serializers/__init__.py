"""Typed serializers: keys in an order-preserving form, values in a compact one, both described by Arrow types."""

from state.serializers.key_codecs import KeyCodec, key_codec_for
from state.serializers.key_columns import EncodedColumn
from state.serializers.keys import KeySerializer
from state.serializers.pickled import Pickled
from state.serializers.structured import Structured
from state.serializers.values import RowSerializer, ValueSerializer, serializer_for

__all__ = [
    "EncodedColumn",
    "KeyCodec",
    "KeySerializer",
    "Pickled",
    "RowSerializer",
    "Structured",
    "ValueSerializer",
    "key_codec_for",
    "serializer_for",
]

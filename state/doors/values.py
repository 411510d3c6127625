"""Values and keys: Arrow columns, hashes and key groups."""

from __future__ import annotations

from ..errors import KeyTooLargeError, SerializationError
from ..keys.hashing import HashId, hash_codes
from ..keys.key_groups import (
    KEY_GROUP_BYTES,
    KeyGroupRange,
    assign_to_key_groups,
    key_group_range,
    subtask_for_key_group,
)
from ..keys.stored_key import KEY_BYTES_MAX
from ..serializers.arrow_columns import column_over, fixed_values
from ..serializers.conversions import Kind, column_of, exact_array, exact_cast, exact_classes, kind_of_type, other_names
from ..serializers.key_columns import EncodedColumn, encode_column, join_columns

__all__ = [
    "KEY_BYTES_MAX",
    "KEY_GROUP_BYTES",
    "EncodedColumn",
    "HashId",
    "KeyGroupRange",
    "KeyTooLargeError",
    "Kind",
    "SerializationError",
    "assign_to_key_groups",
    "column_of",
    "column_over",
    "encode_column",
    "exact_array",
    "exact_cast",
    "exact_classes",
    "fixed_values",
    "hash_codes",
    "join_columns",
    "key_group_range",
    "kind_of_type",
    "other_names",
    "subtask_for_key_group",
]

"""Values and keys: Arrow columns, hashes and key groups."""

from __future__ import annotations

from ..errors import KeyTooLargeError, SerializationError
from ..keys.hashing import HashId, hash_codes
from ..keys.key_group_ranges import KeyGroupRanges
from ..keys.key_groups import KeyGroupRange, assign_to_key_groups
from ..keys.key_hash import KEY_HASH_VERSION, key_hashes
from ..serializers.arrow_columns import column_over, fixed_values
from ..serializers.conversions import column_of, exact_array, exact_cast, exact_classes, other_names
from ..serializers.key_columns import encoded_keys

__all__ = [
    "KEY_HASH_VERSION",
    "HashId",
    "KeyGroupRange",
    "KeyGroupRanges",
    "KeyTooLargeError",
    "SerializationError",
    "assign_to_key_groups",
    "column_of",
    "column_over",
    "encoded_keys",
    "exact_array",
    "exact_cast",
    "exact_classes",
    "fixed_values",
    "hash_codes",
    "key_hashes",
    "other_names",
]

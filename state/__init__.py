"""Keyed and operator state for stream processing: Flink's state model over RocksDB, without Spark, SQL or HTTP.

Its public surface is what each module's docstrings describe; the names most used are here.
"""

from state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from state.errors import KeyscaleError, StateError
from state.hashing import HashId
from state.key_groups import KeyGroupRange
from state.serializers import Pickled, Structured
from state.ttl import Ttl

__all__ = [
    "AggregatingStateDescriptor",
    "HashId",
    "KeyGroupRange",
    "KeyscaleError",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "Pickled",
    "ReducingStateDescriptor",
    "StateError",
    "Structured",
    "Ttl",
    "ValueStateDescriptor",
]

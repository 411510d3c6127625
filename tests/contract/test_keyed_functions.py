"""A state's function is code, not part of what is stored: a further batch may bring it anew."""

from __future__ import annotations

import operator

import pyarrow as pa
import pytest

from state.descriptors import ReducingStateDescriptor
from state.errors import StateSchemaMismatchError
from state.heap import HeapEngine
from state.keyed import KeyedStateBackend


def test_a_folding_state_that_is_declared_with_another_function_goes_on_with_it() -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("user", pa.string())]))
    backend.set_current_key(1, ("ada",))
    backend.reducing_state(ReducingStateDescriptor("total", pa.int64(), operator.add)).add(3)
    again = backend.reducing_state(ReducingStateDescriptor("total", pa.int64(), max))
    again.add(2)
    assert again.get() == 3
    with pytest.raises(StateSchemaMismatchError):
        backend.reducing_state(ReducingStateDescriptor("total", pa.int32(), max))

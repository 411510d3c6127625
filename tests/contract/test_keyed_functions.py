"""A state's function is code and is not stored: a later batch may declare the state with another version of it."""

from __future__ import annotations

import operator

import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ReducingStateDescriptor


def test_a_reducing_state_that_is_declared_with_another_function_continues_with_it() -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("user", pa.string())]))
    backend.set_current_key(1, ("ada",))
    backend.state(ReducingStateDescriptor("total", pa.int64(), operator.add)).add(3)
    again = backend.state(ReducingStateDescriptor("total", pa.int64(), max))
    again.add(2)
    assert again.get() == 3
    with pytest.raises(StateSchemaMismatchError):
        backend.state(ReducingStateDescriptor("total", pa.int32(), max))

"""The plan for operator state."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from keyscale.state.operator_state.backend import OperatorStateBackend
from keyscale.state.operator_state.state_change import operator_state_changes
from keyscale.vocabulary import Fate


def declared(*, split=None, union=None, rules=None):
    backend = OperatorStateBackend()
    if split is not None:
        backend.list_state(ListStateDescriptor("split", split))
    if union is not None:
        backend.union_list_state(ListStateDescriptor("union", union))
    if rules is not None:
        backend.broadcast_state(MapStateDescriptor("rules", *rules))
    return backend.snapshot().states


def test_each_state_is_kept_migrated_new_or_not_declared():
    stored = declared(split=pa.int32(), rules=(pa.string(), pa.int64()))
    now = declared(split=pa.int64(), union=pa.string())
    changes = operator_state_changes(stored, now)
    assert [(each.name, each.fate) for each in changes] == [
        ("rules", Fate.NOT_DECLARED),
        ("split", Fate.MIGRATED),
        ("union", Fate.NEW),
    ]
    assert [each.rules for each in changes] == [(), ("widened: int32 to int64",), ()]
    assert operator_state_changes(now, now)[0].fate is Fate.KEPT


@pytest.mark.parametrize("narrow", [pa.int32(), pa.string()])
def test_what_cannot_be_opened_is_incompatible(narrow):
    stored = declared(split=pa.int64())
    (change,) = operator_state_changes(stored, declared(split=narrow))
    assert (change.fate, change.stored) == (Fate.INCOMPATIBLE, "split of int64")
    backend = OperatorStateBackend(type(OperatorStateBackend().snapshot())(stored))
    with pytest.raises(StateSchemaMismatchError) as refused:
        backend.list_state(ListStateDescriptor("split", narrow))
    assert str(refused.value) == change.reason

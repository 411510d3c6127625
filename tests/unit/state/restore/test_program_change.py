"""The plan for the operators of a job."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from keyscale.identifiers import BatchId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import OperatorDeclaration, SnapshotHandle
from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.schema import schema_of_key
from keyscale.state.log.resolution import OperatorHistory
from keyscale.state.operator_state.backend import OperatorStateBackend
from keyscale.state.restore.program_change import DeclaredOperator, operator_changes
from keyscale.vocabulary import Fate

KEY = pa.schema([("user", pa.string())])
SNAPSHOT = SnapshotHandle(SubtaskIndex(0), 0, 127, BatchId(1), "", ())


def declaration(key=KEY, of_type=None):
    schema = schema_of_key(key)
    if of_type is not None:
        schema = schema.with_state(ValueStateDescriptor("total", of_type).stored())
    return OperatorDeclaration(tuple((field.name, str(field.type)) for field in key), schema)


def stored(*, empty=False, of_type=None):
    known = declaration(of_type=of_type)
    return OperatorHistory(() if empty else (SNAPSHOT,), (), known, known.schema)


def declared(uid, key=KEY, of_type=None):
    return DeclaredOperator(OperatorUid(uid), declaration(key, of_type))


def changes(histories, operators):
    return {each.uid: each for each in operator_changes(histories, {}, operators)}


def test_operators_are_kept_new_or_dropped():
    found = changes({"a": stored(of_type=pa.int64()), "b": stored(of_type=pa.int64())}, [declared("a"), declared("c")])
    assert {uid: each.fate for uid, each in found.items()} == {"a": Fate.KEPT, "b": Fate.DROPPED, "c": Fate.NEW}
    assert [each.fate for each in found["a"].states] == [Fate.NOT_DECLARED]
    assert [each.fate for each in found["b"].states] == [Fate.DROPPED]


def test_an_operator_that_has_stored_nothing_is_not_missed():
    assert changes({"a": stored(empty=True)}, []) == {}


def test_an_operator_with_another_key_cannot_take_its_state_over():
    change = changes({"a": stored()}, [declared("a", pa.schema([("user", pa.int64())]))])["a"]
    assert (change.fate, change.reason) == (
        Fate.INCOMPATIBLE,
        "was keyed by user (string) and is now keyed by user (int64)",
    )


def test_state_whose_key_was_not_recorded_is_kept():
    unrecorded = replace(stored(), declaration=None)
    assert changes({"a": unrecorded}, [declared("a")])["a"].fate is Fate.KEPT


def test_one_incompatible_state_makes_its_operator_incompatible():
    change = changes({"a": stored(of_type=pa.int64())}, [declared("a", of_type=pa.string())])["a"]
    assert (change.fate, change.reason) == (Fate.INCOMPATIBLE, None)


def operator_state(**types):
    backend = OperatorStateBackend()
    for name, value_type in types.items():
        backend.list_state(ListStateDescriptor(name, value_type))
    return backend.snapshot().states


def test_operator_state_is_dropped_kept_or_incompatible_with_its_own_operator():
    histories = {uid: stored(of_type=pa.int64()) for uid in ("a", "b", "c")}
    held = {uid: operator_state(offsets=pa.int64()) for uid in ("a", "b")}
    known = declaration(of_type=pa.int64())
    now = [
        DeclaredOperator(OperatorUid("b"), known, operator_state(offsets=pa.int64())),
        DeclaredOperator(OperatorUid("c"), known, operator_state(offsets=pa.int64())),
    ]
    a, b, c = operator_changes(histories, held, now)
    assert [(each.name, each.fate) for each in a.states] == [("total", Fate.DROPPED), ("offsets", Fate.DROPPED)]
    assert a.states[1].stored is not None
    assert [(each.name, each.fate) for each in b.states] == [("total", Fate.KEPT), ("offsets", Fate.KEPT)]
    assert [(each.name, each.fate) for each in c.states] == [("total", Fate.KEPT), ("offsets", Fate.NEW)]
    assert [each.fate for each in (a, b, c)] == [Fate.DROPPED, Fate.KEPT, Fate.KEPT]
    other = [DeclaredOperator(OperatorUid(uid), known, operator_state(offsets=pa.string())) for uid in ("a", "b", "c")]
    assert [each.fate for each in operator_changes(histories, held, other)] == [Fate.INCOMPATIBLE] * 2 + [Fate.KEPT]

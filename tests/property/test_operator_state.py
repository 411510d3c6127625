"""Operator state: which parts each subtask gets after any change of parallelism, and which declarations are refused."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.errors import DescriptorError, SerializationError, StateSchemaMismatchError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.operator_state.backend import OperatorStateBackend, OperatorStateSnapshot, redistribute
from keyscale.state.serializers.pickled import Pickled
from keyscale.state.serializers.structured import Structured
from tests.support.repository import GOLDEN

SPLIT, UNION = ListStateDescriptor("split", pa.int64()), ListStateDescriptor("union", pa.string())
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
CONTENTS = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=5)


def snapshots(contents, rules):
    taken = []
    for numbers in contents:
        backend = OperatorStateBackend()
        backend.list_state(SPLIT).add_all(numbers)
        backend.union_list_state(UNION).add_all(map(str, numbers))
        backend.broadcast_state(RULES).put_all(rules)
        taken.append(OperatorStateSnapshot.from_bytes(backend.snapshot().to_bytes()))
    return taken


@given(CONTENTS, st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 9), max_size=3), st.integers(1, 7))
def test_any_change_of_parallelism_keeps_everything(contents, rules, parallelism):
    restored = [OperatorStateBackend(each) for each in redistribute(snapshots(contents, rules), parallelism)]
    together = [number for numbers in contents for number in numbers]
    split = [backend.list_state(SPLIT).get() for backend in restored]
    assert [number for numbers in split for number in numbers] == together  # runs, in order
    if parallelism == len(contents):
        assert split == contents
    else:
        sizes = [len(numbers) for numbers in split]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
    for backend in restored:
        assert backend.union_list_state(UNION).get() == [str(number) for number in together]
        assert dict(backend.broadcast_state(RULES).items()) == rules


@given(CONTENTS, st.integers(1, 5))
def test_state_that_is_not_declared_again_is_kept(contents, parallelism):
    given_out = redistribute(snapshots(contents, {"a": 1}), parallelism)
    assert [OperatorStateBackend(each).snapshot() for each in given_out] == given_out


def test_the_digest_of_broadcast_state_differs_with_its_maps_alone():
    def digest(rules, numbers=()):
        (taken,) = snapshots([numbers], rules)
        return OperatorStateBackend(taken).broadcast_digest()

    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}, numbers=[1, 2])
    assert len({digest(rules) for rules in ({}, {"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1})}) == 5


def test_a_subtask_without_a_list_stays_without_elements_at_an_unchanged_parallelism():
    first, third = snapshots([[1, 2], [3]], {})
    given_out = redistribute([first, OperatorStateSnapshot(), third], 3)
    assert [OperatorStateBackend(each).list_state(SPLIT).get() for each in given_out] == [[1, 2], [], [3]]
    kept = redistribute([first, OperatorStateSnapshot(), third], 3, claimed=False)
    assert [list(each.states["union"].items) for each in kept] == [
        list(first.states["union"].items),
        [],
        list(third.states["union"].items),
    ]


def test_an_iterable_that_raises_leaves_the_list_and_the_snapshot_as_they_were():
    def failing():
        yield 7
        raise ZeroDivisionError

    backend = OperatorStateBackend()
    numbers = backend.list_state(SPLIT)
    numbers.update([1, 2])
    assert backend.changed() is not None
    for change in (numbers.update, numbers.add_all):
        with pytest.raises(ZeroDivisionError):
            change(failing())
        assert numbers.get() == [1, 2]
    assert backend.changed() is None
    numbers.update(number + 1 for number in numbers.get())
    assert numbers.get() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda numbers, _: numbers.add(3),
        lambda numbers, _: numbers.add_all([3]),
        lambda numbers, _: numbers.update([3]),
        lambda numbers, _: numbers.clear(),
        lambda _, rules: rules.put("b", 2),
        lambda _, rules: rules.put_all({"b": 2}),
        lambda _, rules: rules.remove("a"),
        lambda _, rules: rules.clear(),
    ],
    ids=["add", "add_all", "update", "clear list", "put", "put_all", "remove", "clear map"],
)
def test_every_change_is_in_the_next_batchs_snapshot_and_only_there(change):
    backend = OperatorStateBackend()
    numbers, rules = backend.list_state(SPLIT), backend.broadcast_state(RULES)
    numbers.add(1)
    rules.put("a", 1)
    before = backend.changed()
    assert backend.changed() is None
    change(numbers, rules)
    after = backend.changed()
    assert after is not None
    assert after != before
    assert after == backend.snapshot()
    assert backend.changed() is None


def test_the_maps_and_lists_behave_as_keyed_ones_do():
    backend = OperatorStateBackend()
    numbers, rules = backend.list_state(SPLIT), backend.broadcast_state(RULES)
    numbers.update([1, 2])
    with pytest.raises(SerializationError):
        numbers.update([3, None])
    numbers.add(3)
    assert numbers.get() == [1, 2, 3]
    numbers.clear()
    assert numbers.get() == []
    rules.put("a", 1)
    rules.put("b", None)
    assert (rules.get("a"), rules.contains("b"), rules.is_empty()) == (1, True, False)
    for key in rules.keys():  # noqa: SIM118 (a state, not a dict)
        rules.remove(key)
    assert list(rules.values()) == []
    rules.put("c", 1)
    rules.clear()
    assert rules.is_empty()
    assert backend.list_state(SPLIT) is numbers
    assert backend.broadcast_state(RULES) is rules


def test_a_value_of_another_type_is_refused_in_the_snapshot():
    backend = OperatorStateBackend()
    backend.list_state(SPLIT).add("text")
    with pytest.raises(SerializationError):
        backend.snapshot()


def test_a_wider_type_reads_what_is_stored_and_another_is_refused():
    (stored,) = redistribute(snapshots([[1, 2]], {}), 1)
    wider = ListStateDescriptor("split", pa.int64())
    assert OperatorStateBackend(stored).list_state(wider).get() == [1, 2]
    for declare in (
        lambda backend: backend.list_state(ListStateDescriptor("split", pa.int32())),
        lambda backend: backend.union_list_state(SPLIT),
        lambda backend: backend.broadcast_state(MapStateDescriptor("split", pa.string(), pa.int64())),
        lambda backend: backend.broadcast_state(MapStateDescriptor("rules", pa.int64(), pa.int64())),
    ):
        with pytest.raises(StateSchemaMismatchError):
            declare(OperatorStateBackend(stored))


def test_two_declarations_of_one_name_are_refused():
    backend = OperatorStateBackend()
    backend.list_state(SPLIT)
    for declare in (
        lambda: backend.union_list_state(SPLIT),
        lambda: backend.list_state(ListStateDescriptor("split", pa.string())),
        lambda: backend.broadcast_state(MapStateDescriptor("split", pa.string(), pa.int64())),
    ):
        with pytest.raises(StateSchemaMismatchError):
            declare()


def test_operator_state_has_no_ttl_and_no_namespace():
    for descriptor in (
        ListStateDescriptor("a", pa.int64(), Ttl(5)),
        ListStateDescriptor("a", pa.int64(), None, pa.int64()),
    ):
        with pytest.raises(DescriptorError):
            OperatorStateBackend().list_state(descriptor)


def test_subtasks_that_disagree_are_refused():
    other = OperatorStateBackend()
    other.list_state(ListStateDescriptor("split", pa.string())).add("x")
    with pytest.raises(StateSchemaMismatchError):
        redistribute([*snapshots([[1]], {}), other.snapshot()], 2)


def test_damaged_bytes_are_no_snapshot():
    with pytest.raises(SerializationError):
        OperatorStateSnapshot.from_bytes(b"\xc1")


class Offset(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class OffsetWithLag(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    lag: int | None = None


@pytest.mark.parametrize(
    ("of_type", "value", "wrong"),
    [(Structured(Offset), Offset(1, 2), OffsetWithLag(1, 2)), (Pickled(), {"any": {1, 2}}, lambda: None)],
    ids=["structured", "pickled"],
)
def test_objects_come_back_as_they_were_and_others_are_refused(of_type, value, wrong):
    backend = OperatorStateBackend()
    listed, mapped = ListStateDescriptor("listed", of_type), MapStateDescriptor("mapped", pa.string(), of_type)
    backend.union_list_state(listed).add(value)
    backend.broadcast_state(mapped).put_all({"one": value, "none": None})
    taken = OperatorStateSnapshot.from_bytes(backend.snapshot().to_bytes())
    restored = OperatorStateBackend(redistribute([taken], 2)[1])
    assert restored.union_list_state(listed).get() == [value]
    assert dict(restored.broadcast_state(mapped).items()) == {"one": value, "none": None}
    restored.union_list_state(listed).add(wrong)
    with pytest.raises(SerializationError):
        restored.snapshot()


def test_a_class_of_operator_state_evolves_and_a_pickle_is_read_by_no_other_type():
    backend = OperatorStateBackend()
    backend.list_state(ListStateDescriptor("offsets", Structured(Offset))).add(Offset(1, 2))
    backend.list_state(ListStateDescriptor("any", Pickled())).add(Offset(1, 2))
    restored = OperatorStateBackend(backend.snapshot())
    evolved = restored.list_state(ListStateDescriptor("offsets", Structured(OffsetWithLag)))
    assert evolved.get() == [OffsetWithLag(1, 2, None)]
    with pytest.raises(StateSchemaMismatchError):
        restored.list_state(ListStateDescriptor("any", pa.binary()))


def test_a_file_of_the_first_version_is_read_and_written_as_it_was() -> None:
    golden = (GOLDEN / "operator-state-v1.bin").read_bytes()
    backend = OperatorStateBackend(OperatorStateSnapshot.from_bytes(golden))
    assert backend.list_state(ListStateDescriptor("split", pa.int64())).get() == [1, 2]
    assert backend.union_list_state(ListStateDescriptor("union", pa.string())).get() == ["a", "b"]
    assert dict(backend.broadcast_state(MapStateDescriptor("rules", pa.string(), pa.int64())).items()) == {
        "x": 1,
        "y": None,
    }
    assert backend.snapshot().to_bytes() == golden

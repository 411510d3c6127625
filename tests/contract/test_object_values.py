"""Values that are Python objects: msgspec structs stored as typed structs, and pickles only on request."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import (
    CorruptValueError,
    PickleNotAskedForError,
    SerializationError,
    StateSchemaMismatchError,
    UnsupportedTypeError,
)
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.formats import ValueFormats
from keyscale.state.serializers.pickled import Pickled, decode_pickle
from keyscale.state.serializers.structured import Structured
from keyscale.state.serializers.type_names import type_from_json, type_to_json
from keyscale.state.serializers.value_serializer import serializer_for

if TYPE_CHECKING:
    from keyscale.state.keyed.schema import KeyedSchema

KEY = pa.schema([("id", pa.int64())])
ROWS = ([0, 0], pa.record_batch({"id": [1, 2]}).columns)


class Line(msgspec.Struct):
    article: str
    count: int


class Order(msgspec.Struct):
    id: int
    lines: list[Line]
    placed_at: Annotated[dt.datetime, msgspec.Meta(tz=True)] | None = None
    prices: dict[str, float] = {}
    signature: bytes = b""


class OrderWithMore(msgspec.Struct):
    id: int
    lines: list[Line]
    note: str | None = None
    priority: int = 3


class OrderWithRequired(msgspec.Struct):
    id: int
    customer: str


@dataclass
class Point:
    x: int


ORDER = Order(7, [Line("cup", 2)], dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), {"cup": 1.5}, b"\0\1")


class Job:
    """A backend over a heap engine, which can be opened again like by another version of the job."""

    def __init__(self) -> None:
        self.engine = HeapEngine()
        self.schema: KeyedSchema | None = None

    def open(self, *descriptors: StateDescriptor) -> tuple[KeyedStateBackend, Any]:
        backend = KeyedStateBackend(self.engine, KEY, schema=self.schema)
        states = [backend.state(descriptor) for descriptor in descriptors]
        backend.set_current_key(0, (1,))
        return backend, states[0] if len(states) == 1 else states

    def save(self, backend: KeyedStateBackend) -> None:
        self.engine.write_runs(backend.drain())
        self.schema = backend.schema


def max_of(left: Any, right: Any) -> Any:
    return max(left, right)


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.mark.parametrize(("of_type", "value"), [(Structured(Order), ORDER), (Pickled(), Point(1))])
def test_every_kind_of_state_returns_the_objects_that_were_stored(job: Job, of_type: pa.DataType, value: Any) -> None:
    descriptors = (
        ValueStateDescriptor("value", of_type),
        MapStateDescriptor("map", pa.string(), of_type),
        ListStateDescriptor("list", of_type),
        ReducingStateDescriptor("fold", of_type, max_of),
    )
    for again in (False, True):
        backend, (single, entries, elements, folded) = job.open(*descriptors)
        if not again:
            single.update(value)
            entries.put("k", value)
            elements.add(value)
            folded.add(value)
        assert (single.value(), entries.get("k"), list(elements.get()), folded.get()) == (value, value, [value], value)
        job.save(backend)


def test_a_struct_is_stored_typed_and_read_as_a_column(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Structured(Order)))
    state.update(ORDER)
    job.save(backend)
    column = state.get_many(*ROWS)
    assert pa.types.is_struct(column.type)
    assert column[0].as_py()["lines"] == [{"article": "cup", "count": 2}]
    assert column[1].as_py() is None
    backend, lists = job.open(ListStateDescriptor("list", Structured(Line)))
    lists.add_many(*ROWS, pa.array([{"article": "cup", "count": 2}] * 2, Structured(Line).storage_type))
    job.save(backend)
    assert lists.get() == [Line("cup", 2)]
    assert lists.get_many(*ROWS).to_pylist() == [[{"article": "cup", "count": 2}]] * 2


def test_a_class_has_the_same_schema_evolution_as_other_types(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Structured(Order)))
    state.update(ORDER)
    job.save(backend)
    backend, state = job.open(ValueStateDescriptor("value", Structured(OrderWithMore)))
    assert state.value() == OrderWithMore(7, [Line("cup", 2)], None, 3), "an added field has its default"
    assert state.get_many(*ROWS)[0].as_py()["id"] == 7
    backend, state = job.open(ValueStateDescriptor("value", Structured(OrderWithRequired)))
    with pytest.raises(CorruptValueError, match="a field without a default"):
        state.value()


@pytest.mark.parametrize("wrong", [Line("cup", 1), "text", Order("seven", [])])  # type: ignore[arg-type]
def test_a_value_that_is_not_an_instance_of_the_class_is_refused(job: Job, wrong: Any) -> None:
    _, state = job.open(ValueStateDescriptor("value", Structured(Order)))
    with pytest.raises(SerializationError):
        state.update(wrong)


def test_classes_that_are_not_plain_structs_are_refused() -> None:
    class Tagged(msgspec.Struct, tag=True):
        x: int

    class Mixed(msgspec.Struct):
        x: int | str

    class Loose(msgspec.Struct):
        x: Any

    class Vague(msgspec.Struct):
        x: dt.datetime

    for struct in (Tagged, Mixed, Loose, Vague):
        with pytest.raises(UnsupportedTypeError):
            Structured(struct)


def test_descriptors_of_objects_survive_pickling() -> None:
    for of_type in (Structured(Order), Pickled()):
        descriptor = ValueStateDescriptor("value", of_type)
        assert pickle.loads(pickle.dumps(descriptor)) == descriptor  # noqa: S301 (made here)
    assert Structured(Order) != Structured(OrderWithMore)


def test_pickles_are_not_read_by_a_state_of_another_type(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Pickled()))
    state.update(Point(1))
    job.save(backend)
    with pytest.raises(StateSchemaMismatchError):
        job.open(ValueStateDescriptor("value", pa.binary()))


def test_bytes_are_not_read_as_pickles(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", pa.binary()))
    state.update(pickle.dumps(Point(1)))
    job.save(backend)
    with pytest.raises(StateSchemaMismatchError):
        job.open(ValueStateDescriptor("value", Pickled()))


def test_a_checkpoints_own_schema_never_causes_unpickling(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Pickled()))
    state.update(Point(1))
    job.save(backend)
    stored = backend.schema.state("value")
    assert stored is not None
    formats = ValueFormats(stored, 0)
    ((_, raw),) = job.engine.scan("value", b"", None)
    with pytest.raises(PickleNotAskedForError):
        formats.unpack(raw)
    with pytest.raises(PickleNotAskedForError):
        serializer_for(type_from_json(type_to_json(Pickled()))).decode(raw, 1)


def test_pickled_values_have_no_batch_methods(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Pickled()))
    state.update(Point(1))
    job.save(backend)
    with pytest.raises(UnsupportedTypeError):
        state.get_many(*ROWS)
    _, elements = job.open(ListStateDescriptor("list", Pickled()))
    with pytest.raises(UnsupportedTypeError):
        elements.get_many(*ROWS)


def test_the_error_of_a_failed_pickling_or_unpickling_says_so(job: Job) -> None:
    backend, state = job.open(ValueStateDescriptor("value", Pickled()))
    with pytest.raises(SerializationError):
        state.update(lambda: None)
    state.update(Point(1))
    job.save(backend)
    ((key, raw),) = job.engine.scan("value", b"", None)
    with pytest.raises(CorruptValueError):
        backend._states["value"][1].formats.unpack(raw[:-2])
    assert key


@pytest.mark.parametrize("name", ["absent_module\nPoint", f"{__name__}\nGonePoint", "builtins\nlen"])
def test_a_pickle_whose_class_is_gone_or_raises_is_a_corrupt_value(name: str) -> None:
    raw = f"c{name}\n(tR.".encode()  # calls what is named, without arguments
    with pytest.raises(CorruptValueError, match="not a readable pickle"):
        decode_pickle(b"\0" + raw, 1)


def test_the_schema_says_pickle_by_name() -> None:
    assert type_to_json(Pickled()) == "pickle"

"""Records of an operator's inputs arrive with their key group, their subtask and the place of their origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.graph.nodes import NodeId, SecondInput
from keyscale.jobs.graph.topology import Topology, TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.batch import frames, keyed_records, routing
from keyscale.jobs.runtime.batch.frames import OperatorInputs
from keyscale.jobs.runtime.batch.keyed_records import KeyedRecords
from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import assign_to_key_groups
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

LEFT = pa.schema([("i`d", pa.string()), ("at", pa.int32())])
RIGHT = pa.schema([("name", pa.string())])
RANGES = KeyGroupRanges.of_count(128, 3)


class Placement:
    """Moves nothing, and notes which frames it was to move."""

    def __init__(self) -> None:
        self.routed: list[PlayedFrame] = []

    def route(self, frame: PlayedFrame) -> PlayedFrame:
        self.routed.append(frame)
        return frame

    def empty(self, schema: StructType) -> Any:
        return frame_of(schema=schema)


@pytest.fixture(autouse=True)
def _without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (routing, keyed_records, frames):
        monkeypatch.setattr(module, "F", played_columns)


def topology(lefts: int, *, with_right: bool) -> Topology:
    builder = TopologyBuilder()
    sources = [builder.add_source(cast("Any", None), LEFT) for _ in range(lefts)]
    second = None
    if with_right:
        second = SecondInput(builder.add_source(cast("Any", None), RIGHT), RIGHT, ("name",))
    for each in (*sources, *([] if second is None else [second.node])):
        builder.name(each, f"source-{each}")
    stream = builder.add_union(sources) if lefts > 1 else sources[0]
    operator = builder.add_operator(
        stream, key_columns=("i`d",), logic=Deduplicate(None), schema=LEFT, timestamp_column=None, second=second
    )
    builder.name(operator, "once")
    builder.name(builder.add_sink(operator, cast("Any", None)), "out")
    return builder.build()


def records_of(job: Topology, placement: Placement) -> KeyedRecords:
    return KeyedRecords(job, cast("Any", placement), ranges=RANGES, hash_id=HashId.JAVA)


def place(key: str) -> dict[str, int]:
    """Returns what is beside a record with a key."""
    (group,) = assign_to_key_groups(hash_codes([pa.array([key])], HashId.JAVA), 128).tolist()
    return {"__key_group": group, "__subtask": RANGES.subtask_of(group)}


def lefts(*keys: str) -> list[dict[str, Any]]:
    return [{"i`d": key, "at": at} for at, key in enumerate(keys)]


def rights(*keys: str) -> list[dict[str, Any]]:
    return [{"name": key} for key in keys]


def test_the_records_of_two_inputs_are_packed_with_their_origins_and_the_subtasks_of_their_own_keys() -> None:
    job, placement = topology(2, with_right=True), Placement()
    records = records_of(job, placement)
    assert records.keyed_by_query is None
    stream = frame_of(*lefts("a"))
    assert records.of_query(stream) is stream, "no single operator reads all"
    (node,) = job.operators
    # The branch of the second source comes first: an origin's place is its own, not the place of its branch.
    inputs = OperatorInputs(
        cast("Any", {NodeId(1): frame_of(*lefts("b")), NodeId(0): frame_of(*lefts("a", "c"))}),
        cast("Any", {NodeId(2): frame_of(*rights("a", "z"))}),
    )
    moved = records.moved(node, inputs)
    assert placement.routed == [moved]

    def packed(port: int, record: dict[str, Any], origin: int, key: str) -> dict[str, Any]:
        packed = {f"__input_{port}": record, f"__input_{1 - port}": None}
        return {"__port": port, **packed, "__origin": origin, **place(key)}

    assert cast("PlayedFrame", moved).rows == [
        packed(0, {"i`d": "b", "at": 0}, 1, "b"),
        packed(0, {"i`d": "a", "at": 0}, 0, "a"),
        packed(0, {"i`d": "c", "at": 1}, 0, "c"),
        packed(1, {"name": "a"}, 2, "a"),
        packed(1, {"name": "z"}, 2, "z"),
    ]


@pytest.mark.parametrize("sources", [1, 2])
def test_records_of_one_input_have_an_origin_only_beside_another(sources: int) -> None:
    job, placement = topology(sources, with_right=False), Placement()
    records = records_of(job, placement)
    branches = {NodeId(at): frame_of(*lefts("ab"[at])) for at in range(sources)}
    moved = cast("PlayedFrame", records.moved(job.operators[0], OperatorInputs(cast("Any", branches))))

    def marked(origin: int) -> dict[str, Any]:
        of_origin = {"__origin": origin} if sources > 1 else {}
        return {"i`d": "ab"[origin], "at": 0, **of_origin, **place("ab"[origin])}

    assert moved.rows == [marked(at) for at in range(sources)]


def test_the_query_moves_the_records_of_the_only_reader() -> None:
    job, placement = topology(1, with_right=False), Placement()
    records = records_of(job, placement)
    assert records.keyed_by_query is job.operators[0]
    moved = cast("PlayedFrame", records.of_query(frame_of(*lefts("a", "b"))))
    assert moved.rows == [{**record, **place(record["i`d"])} for record in lefts("a", "b")]
    assert placement.routed == [moved]


def test_an_operator_without_records_gets_the_same_columns_built_once() -> None:
    job = topology(1, with_right=True)
    records, (node,) = records_of(job, Placement()), job.operators
    built: list[Sequence[str]] = []

    def inputs() -> OperatorInputs:
        built.append("inputs")
        return OperatorInputs({NodeId(0): frame_of(schema=LEFT.names)}, {NodeId(1): frame_of(schema=RIGHT.names)})

    none = cast("PlayedFrame", records.none(node, inputs))
    assert (none.rows, set(none.columns)) == (
        [],
        {"__port", "__input_0", "__input_1", "__origin", "__key_group", "__subtask"},
    )
    assert records.none(node, inputs) is none
    assert built == ["inputs"]


def test_a_stream_that_meets_itself_has_an_origin_of_its_own_at_each_input() -> None:
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), LEFT)
    second = SecondInput(source, LEFT, ("i`d",))
    operator = builder.add_operator(
        source, key_columns=("i`d",), logic=Deduplicate(None), schema=LEFT, timestamp_column=None, second=second
    )
    builder.name(operator, "once")
    builder.name(builder.add_sink(operator, cast("Any", None)), "out")
    job = builder.build()
    branches = cast("Any", {source: frame_of(*lefts("a"))})
    moved = records_of(job, Placement()).moved(job.operators[0], OperatorInputs(branches, branches))
    assert [(row["__port"], row["__origin"]) for row in cast("PlayedFrame", moved).rows] == [(0, 0), (1, 1)]

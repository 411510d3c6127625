"""A sink gets frames that it may cache and drop, beside the other readers of the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.functions.process_function import OutputTag
from keyscale.jobs.graph.nodes import OperatorNode, SecondInput
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.batch import frames as frames_module
from keyscale.jobs.runtime.batch.frames import BatchFrames, whole
from keyscale.jobs.runtime.executor import side_outputs
from tests.support.rehearsal.rehearsed_sink import RehearsedSink
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.jobs.graph.nodes import NodeId
    from keyscale.jobs.runtime.batch.frames import OperatorInputs

SCHEMA = pa.schema([("id", pa.string())])


def test_a_sink_that_caches_and_drops_its_frame_leaves_the_kept_frame_cached(tmp_path: Path) -> None:
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    operator = builder.add_operator(
        source, key_columns=("id",), logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None
    )
    builder.name(operator, "once")
    later = builder.add_transform(operator, lambda frame: frame, SCHEMA)
    for name, node in {"all": operator, "later": later}.items():
        builder.name(builder.add_sink(node, RehearsedSink(tmp_path / name)), name)
    emitted = frame_of({"id": "a"})
    frames = BatchFrames(builder.build(), lambda _node, _inputs: emitted)
    given = frames.build({source: frame_of({"id": "a"})})
    assert emitted.is_kept
    for frame in given.values():
        frame.persist()
        frame.unpersist()
        assert emitted.is_kept
    frames.release()
    assert not emitted.is_kept


LETTERS = pa.schema([("i`d", pa.string())])
ODD = OutputTag("odd", LETTERS)


class Repeating(RehearsedSink):
    """A sink that reads its rows several times."""

    reads_repeatedly = True


class Job:
    """A graph whose sources have rows, and whose operators emit a row with their name beside each row of theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        for module in (frames_module, side_outputs):
            monkeypatch.setattr(module, "F", played_columns)
        self.path, self.builder = path, TopologyBuilder()
        self.rows: dict[NodeId, Any] = {}
        self.ran: list[str] = []
        self.inputs: dict[str, OperatorInputs] = {}
        self.emitted: dict[str, PlayedFrame] = {}

    def source(self, *letters: str, splits: str = "") -> NodeId:
        node = self.builder.add_source(cast("Any", None), LETTERS, carries_split=bool(splits))
        self.builder.name(node, f"source-{node}")
        beside = {"__split": splits} if splits else {}
        # The hidden column of a source need not be its last one.
        self.rows[node] = frame_of(*({**beside, "i`d": each} for each in letters))
        return node

    def operator(self, name: str, stream: NodeId, **given: Any) -> NodeId:
        node = self.builder.add_operator(
            stream, key_columns=("i`d",), logic=Deduplicate(None), schema=LETTERS, timestamp_column=None, **given
        )
        self.builder.name(node, name)
        return node

    def sink(self, name: str, stream: NodeId, kind: type[RehearsedSink] = RehearsedSink) -> NodeId:
        self.builder.name(self.builder.add_sink(stream, kind(self.path / name)), name)
        return stream

    def build(self) -> tuple[BatchFrames, dict[NodeId, PlayedFrame]]:
        frames = BatchFrames(self.builder.build(), self._run)
        return frames, cast("Any", frames.build(self.rows))

    def _run(self, node: OperatorNode, inputs: Callable[[], OperatorInputs]) -> Any:
        self.ran.append(node.uid)
        found = self.inputs[node.uid] = inputs()
        first = cast("PlayedFrame", whole(found.first)).rows
        rows = [{"i`d": f"{row['i`d']} {node.uid}"} for row in first]
        if node.side_outputs:
            rows = [{"__output": at % 2, f"__output_{at % 2}": row} for at, row in enumerate(rows)]
        self.emitted[node.uid] = frame_of(*rows)
        return self.emitted[node.uid]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    return Job(monkeypatch, tmp_path)


def letters(frame: Any) -> list[str]:
    assert frame.columns == ["i`d"], "no hidden column reaches a reader"
    return [row["i`d"] for row in frame.rows]


def test_outputs_unions_and_broadcasts_reach_their_readers_and_each_operator_runs_once(job: Job) -> None:
    left, right, rules = job.source("a", "b", splits="0"), job.source("c"), job.source("r", splits="1")
    both = job.builder.add_union([left, right, left])
    first = job.operator("first", both, side_outputs=[ODD], broadcast=rules)
    odd = job.builder.add_side_output(first, ODD)
    second = job.operator("second", first, second=SecondInput(odd, LETTERS, ("i`d",)))
    for name, node in {"main": first, "odd": odd, "all": both, "end": second}.items():
        job.sink(name, node)
    frames, given = job.build()
    inputs = cast("Any", job.inputs["first"])
    rows = {origin: frame.rows for origin, frame in inputs.first.items()}
    assert rows == {
        left: [{"i`d": each, "__split": "0"} for each in "abab"],
        right: [{"i`d": "c", "__split": None}],
    }, "each branch stays apart, and a branch that arrives twice counts twice"
    assert letters(inputs.broadcast) == ["r"]
    assert letters(given[both]) == ["a", "b", "a", "b", "c"]
    assert letters(given[first]) == ["a first", "a first", "c first"]
    assert letters(given[odd]) == ["b first", "b first"]
    assert letters(given[second]) == [f"{each} first second" for each in "aac"]
    ports = cast("Any", job.inputs["second"])
    assert {name: letters(frame) for name, frame in ports.second.items()} == {first: ["b first", "b first"]}
    assert job.ran == ["first", "second"]
    wire, end = job.emitted["first"], job.emitted["second"]
    assert (wire.is_kept, wire.times_counted) == (True, 1), "its outputs meet again in the second operator"
    assert (end.is_kept, end.times_counted) == (False, 0)
    frames.release()
    assert not wire.is_kept


@pytest.mark.parametrize(
    ("reader", "is_kept", "times_counted"),
    [
        ("a sink", False, 0),
        ("two sinks", True, 0),
        ("a sink that reads repeatedly", True, 1),
        ("a step", False, 0),
        ("a step that reads partly", True, 1),
        ("an operator", False, 0),
        ("a union", True, 1),
        ("a union with itself", True, 1),
    ],
)
def test_rows_are_kept_for_several_reads_and_computed_before_one_that_may_skip_some(
    job: Job, reader: str, is_kept: bool, times_counted: int
) -> None:
    source = job.source("a", "b")
    once = job.operator("once", source)
    add = job.builder
    streams: dict[str, Callable[[], NodeId]] = {
        "a step": lambda: add.add_transform(once, lambda frame: frame, LETTERS),
        "a step that reads partly": lambda: add.add_transform(once, lambda frame: frame, LETTERS, reads_once=False),
        "an operator": lambda: job.operator("again", once),
        "a union": lambda: add.add_union([once, job.source("x")]),
        "a union with itself": lambda: add.add_union([once, once]),
    }
    if reader == "two sinks":
        job.sink("other", once)
    job.sink("out", streams.get(reader, lambda: once)(), Repeating if "repeatedly" in reader else RehearsedSink)
    _, given = job.build()
    emitted = job.emitted["once"]
    assert (emitted.is_kept, emitted.times_counted) == (is_kept, times_counted)
    expected = ["a once", "b once"] * (2 if reader == "a union with itself" else 1)
    assert letters(given[once] if once in given else next(iter(given.values())))[: len(expected)] == (
        ["a once again", "b once again"] if reader == "an operator" else expected
    )


def test_a_source_that_no_reader_reads_twice_is_read_as_it_comes(job: Job) -> None:
    source = job.source("a")
    job.sink("out", source)
    _, given = job.build()
    assert given[source] is job.rows[source]
    assert not job.rows[source].is_kept
    assert job.rows[source].times_counted == 0

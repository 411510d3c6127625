"""The sources of a job in one query: each keeps its place, its rows, its positions and its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from keyscale.identifiers import OperatorUid
from keyscale.jobs.graph.nodes import NodeId, SourceNode
from keyscale.jobs.runtime.batch import job_sources
from keyscale.jobs.runtime.batch.job_sources import JobSources
from keyscale.jobs.runtime.batch.source_order import SourceInputs
from keyscale.state.doors.commits import KINDS_NAME, ORDER_NAME
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, frame_of
from tests.support.spark.played_jvm import answering, sequence

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("id", pa.string())])


class Leaf:
    """A stream in a plan of Spark; a stream of files has neither a name nor options of its own."""

    def __init__(self, name: str, **options: str) -> None:
        self._name, self._options = name, options

    def isStreaming(self) -> bool:  # noqa: N802 - Spark's name
        return self._name != "Table"

    def sourceName(self) -> str:  # noqa: N802 - as above
        if self._name.startswith("File"):
            raise Py4JError("no such method")
        return self._name

    def getClass(self) -> Any:  # noqa: N802 - as above
        return SimpleNamespace(getSimpleName=lambda: self._name)

    def extraOptions(self) -> Any:  # noqa: N802 - as above
        self.sourceName()
        return SimpleNamespace(asCaseSensitiveMap=lambda: self._options)


TABLE, FILES = Leaf("Table"), Leaf("FileSource[/in]")
ORDERS, CLICKS = Leaf("kafka", SUBSCRIBE="orders"), Leaf("kafka", subscribe="clicks")


def source(number: int, uid: str, *leaves: Any, rows: tuple[dict[str, Any], ...] = ({"id": "a"},)) -> SourceNode:
    frame = frame_of(*rows)
    plan = answering(collectLeaves=sequence(*leaves))
    vars(frame).update(_jdf=answering(queryExecution=answering(analyzed=plan)))
    return SourceNode(NodeId(number), frame, SCHEMA, OperatorUid(uid))


def several() -> JobSources:
    """Returns three sources: of two topics with a table beside them, of one topic again, and of files."""
    return JobSources(
        (
            source(4, "both", ORDERS, TABLE, CLICKS, rows=({"id": "a"}, {"id": "b"})),
            source(0, "clicks", CLICKS, rows=({"id": "c", "more": 1},)),
            source(2, "files", FILES),
        )
    )


@pytest.fixture(autouse=True)
def _without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_sources, "F", played_columns)


def test_several_sources_are_one_stream_which_each_batch_is_split_from_again() -> None:
    sources, kept = several(), list[PlayedFrame]()

    def keep(frame: Any) -> Any:
        kept.append(frame.persist())
        return frame

    stream = cast("Any", sources.stream())
    none = dict.fromkeys(("__source_0", "__source_1", "__source_2"))
    assert stream.rows == [
        {"__source": 0, **none, "__source_0": {"id": "a"}},
        {"__source": 0, **none, "__source_0": {"id": "b"}},
        {"__source": 1, **none, "__source_1": {"id": "c", "more": 1}},
        {"__source": 2, **none, "__source_2": {"id": "a"}},
    ]
    parts = {node: cast("Any", frame).rows for node, frame in sources.split(stream, keep).items()}
    assert parts == {4: [{"id": "a"}, {"id": "b"}], 0: [{"id": "c", "more": 1}], 2: [{"id": "a"}]}
    assert kept == [stream], "the sources are read once"


def test_a_single_source_is_its_own_stream_and_is_read_as_it_is() -> None:
    sources = JobSources((source(3, "only", FILES),))
    frame = sources.nodes[0].frame
    assert sources.stream() is frame
    assert sources.split(frame, cast("Callable[..., Any]", None)) == {3: frame}


def test_sources_keep_their_first_places_whatever_the_order_of_the_script() -> None:
    nodes = several().nodes
    ordered = JobSources.ordered(nodes, [OperatorUid(uid) for uid in ("files", "both", "clicks")])
    assert [node.uid for node in ordered.nodes] == ["files", "both", "clicks"]


def test_a_source_declares_the_inputs_that_it_adds_and_the_kinds_of_all_its_streams() -> None:
    sources = several()
    assert sources.inputs() == [2, 2, 3]
    assert sources.declared() == [
        SourceInputs(OperatorUid("both"), 2, ("kafka", "kafka")),
        SourceInputs(OperatorUid("clicks"), 0, ("kafka",)),
        SourceInputs(OperatorUid("files"), 1, ("FileSource",)),
    ]
    assert sources.names() == ["kafka", "kafka", "FileSource[/in]"]
    assert sources.input_uids() == ["both", "both", "files"], "one for each input of the query"
    assert sources.positions({"metadata": "m"}) == {
        "metadata": "m",
        ORDER_NAME: '["both","clicks","files"]',
        KINDS_NAME: '{"both":["kafka","kafka"],"clicks":["kafka"],"files":["FileSource"]}',
    }


def test_records_are_counted_only_where_every_input_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"kafka": None, "own": "own source"}
    monkeypatch.setattr(job_sources, "source_of", known.get)
    monkeypatch.setattr(job_sources, "_kafka_of", lambda options: f"topic {options['subscribe']}")
    own = Leaf("own")
    assert JobSources((source(0, "a", ORDERS, own), source(1, "b", own, CLICKS))).counting() == [
        "topic orders",
        "own source",
        "topic clicks",
    ]
    assert JobSources((source(0, "a", ORDERS, FILES),)).counting() == []


def test_an_empty_batch_has_the_columns_of_each_source_and_the_hidden_one_where_it_is_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrying = SourceNode(NodeId(1), cast("Any", None), SCHEMA, OperatorUid("b"), carries_split=True)
    monkeypatch.setattr(job_sources, "spark_schema_of", lambda schema: schema.names)
    context = SimpleNamespace(emptyRDD=lambda: "no rows")
    spark = cast("Any", SimpleNamespace(sparkContext=context, createDataFrame=lambda *given: given))
    empty = JobSources((source(0, "a", FILES), carrying)).empty(spark)
    assert empty == {0: ("no rows", ["id"]), 1: ("no rows", ["id", "__split"])}

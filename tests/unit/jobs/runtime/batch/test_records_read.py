"""Each record of a source counts once as read, however many operators get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.batch.batch_metrics import records_read
from keyscale.jobs.runtime.executor.task_reports import TaskReport

if TYPE_CHECKING:
    from keyscale.jobs.graph.nodes import NodeId

SCHEMA = pa.schema([("id", pa.string())])


@pytest.fixture
def builder() -> TopologyBuilder:
    return TopologyBuilder()


def source(builder: TopologyBuilder, uid: str = "left") -> NodeId:
    node = builder.add_source(cast("Any", None), SCHEMA)
    builder.name(node, uid)
    return node


def operator(builder: TopologyBuilder, stream: NodeId, uid: str) -> NodeId:
    node = builder.add_operator(
        stream, key_columns=("id",), logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None
    )
    builder.name(node, uid)
    builder.name(builder.add_sink(node, cast("Any", None)), f"{uid}-sink")
    return node


def some(builder: TopologyBuilder, stream: NodeId) -> NodeId:
    return builder.add_transform(stream, lambda frame: frame, SCHEMA)


def read(builder: TopologyBuilder, **records: int | dict[str, int]) -> int:
    """Returns the records read if the first subtask of each operator reads these records, and the second reads one."""
    reports = {}
    for uid, count in records.items():
        of_origins = {} if isinstance(count, int) else count
        total = count if isinstance(count, int) else sum(count.values())
        first = TaskReport("run", OperatorUid(uid), SubtaskIndex(0), read_records=total, records_of_origins=of_origins)
        second = TaskReport(
            "run", OperatorUid(uid), SubtaskIndex(1), read_records=1, records_of_origins=dict.fromkeys(of_origins, 0)
        )
        reports[OperatorUid(uid)] = (first, second)
    return records_read(builder.build(), reports)


def test_records_of_a_source_that_two_operators_read_count_once(builder: TopologyBuilder) -> None:
    orders = source(builder)
    for uid in ("first", "second"):
        operator(builder, orders, uid)
    assert read(builder, first=10, second=10) == 11


def test_records_that_an_operator_emits_are_not_read(builder: TopologyBuilder) -> None:
    operator(builder, operator(builder, source(builder), "first"), "second")
    assert read(builder, first=10, second=30) == 11


def test_a_stream_that_is_united_with_itself_counts_once(builder: TopologyBuilder) -> None:
    orders = source(builder)
    operator(builder, builder.add_union([orders, orders]), "both")
    assert read(builder, both=19) == 10


def test_each_branch_through_transforms_counts(builder: TopologyBuilder) -> None:
    orders = source(builder)
    for uid in ("first", "second"):
        operator(builder, some(builder, orders), uid)
    assert read(builder, first=4, second=3) == 5 + 4


def test_a_branch_counts_no_more_if_another_operator_reads_the_whole_source(builder: TopologyBuilder) -> None:
    orders = source(builder)
    operator(builder, some(builder, orders), "branch")
    operator(builder, orders, "whole")
    assert read(builder, branch=4, whole=10) == 11


def test_each_source_of_an_operator_counts_by_its_own_records(builder: TopologyBuilder) -> None:
    left, right = source(builder, "left"), source(builder, "right")
    operator(builder, builder.add_union([left, right]), "both")
    operator(builder, left, "alone")
    assert read(builder, both={"left": 6, "right": 7}, alone=5) == 13

"""Deduplication and StatefulProcessors become operators with their state, or are refused immediately."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import BloomFilter, DataStream, Ttl
from keyscale.jobs.errors import InvalidTopologyError
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.approximate_deduplicate import ApproximateDeduplicate
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.driver.execution import operator_declarations
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.time_mode import TimeMode

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64())])
OUTPUT = pa.schema([("user", pa.string())])


class Silent(StatefulProcessor):
    def init(self, handle: Any) -> None:
        """A processor without state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803 - Spark's name
        return iter(())


@pytest.fixture
def builder() -> TopologyBuilder:
    return TopologyBuilder()


@pytest.fixture
def stream(builder: TopologyBuilder) -> DataStream:
    return DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)


def logic_of(builder: TopologyBuilder, stream: DataStream) -> Any:
    stream.uid("tested").sink_to(cast("Any", None)).uid("sink")
    return builder.build().operators[0].logic


def test_each_form_of_deduplication_has_its_own_stored_key() -> None:
    forms: list[dict[str, Any]] = [
        {},
        {"hashed": True},
        {"approximate": BloomFilter(10, 0.1)},
        {"approximate": BloomFilter(11, 0.1)},
        {"approximate": BloomFilter(10, 0.01)},
        {"approximate": BloomFilter(10, 0.1), "ttl": Ttl(5)},
        {"approximate": BloomFilter(10, 0.1), "ttl": Ttl(6)},
    ]
    info = []
    for form in forms:
        builder = TopologyBuilder()
        source = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
        source.key_by("user").deduplicate(**form).uid("tested").sink_to(cast("Any", None)).uid("sink")
        info.extend(operator_declarations(builder.build()).values())
    assert len({each.key_schema for each in info}) == len(forms)
    assert info[0].key_schema == (("user", "string"),)


def test_deduplication_keeps_the_streams_columns_and_its_timestamps(
    stream: DataStream, builder: TopologyBuilder
) -> None:
    unique = stream.with_timestamps("at").key_by("user").deduplicate(ttl=Ttl(5), hashed=True)
    assert unique.columns == SCHEMA.names
    assert logic_of(builder, unique) == Deduplicate(Ttl(5), hashed=True)


def test_each_of_two_generations_has_half_the_error_rate(stream: DataStream, builder: TopologyBuilder) -> None:
    logic = logic_of(builder, stream.key_by("user").deduplicate(ttl=Ttl(5), approximate=BloomFilter(10, 0.02)))
    assert logic.geometry == ApproximateDeduplicate.of(BloomFilter(10, 0.01), None).geometry


def test_two_forms_at_once_are_refused(stream: DataStream) -> None:
    with pytest.raises(InvalidTopologyError, match="either hashed or approximate"):
        stream.key_by("user").deduplicate(hashed=True, approximate=BloomFilter(10, 0.1))


def test_a_processor_is_declared_with_sparks_names(stream: DataStream, builder: TopologyBuilder) -> None:
    keyed = stream.with_timestamps("at").key_by("user")
    result = keyed.transform_with_state(Silent(), OUTPUT, time_mode="eventTime", output_mode="Update", pandas=True)
    assert result.columns == ["user"]
    logic = logic_of(builder, result)
    assert isinstance(logic, TransformWithState)
    assert (logic.time_mode, logic.form, logic.initial_state) == (TimeMode.EVENT_TIME, RecordForm.PANDAS, None)
    assert logic.uses_timers


def test_only_a_processor_with_time_or_an_initial_state_runs_without_records() -> None:
    assert not TransformWithState(Silent()).uses_timers
    initial = SimpleNamespace(toArrow=lambda: pa.table({"user": ["a"]}))
    builder = TopologyBuilder()
    source = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    begun = source.key_by("user").transform_with_state(Silent(), OUTPUT, initial_state=cast("Any", initial))
    assert logic_of(builder, begun).uses_timers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_mode": "EventTime"}, "timestamps"),
        ({"time_mode": "Sometimes"}, "time mode"),
        ({"output_mode": "Complete"}, "output mode"),
        ({"initial_state": SimpleNamespace(toArrow=lambda: pa.table({"id": [1]}))}, "lacks the key"),
    ],
)
def test_an_impossible_processor_is_refused_when_it_is_declared(
    stream: DataStream, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        stream.key_by("user").transform_with_state(Silent(), OUTPUT, **options)

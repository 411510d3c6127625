"""Declarations of jobs as users write them; a wrong one is refused before anything runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import LongType, StringType, StructType

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, Ttl
from keyscale.jobs.errors import (
    InvalidKeyError,
    InvalidSchemaError,
    InvalidTopologyError,
    MissingUidError,
    NoEnvironmentError,
    NotStreamingError,
    UnknownColumnError,
)
from keyscale.jobs.graph.schemas import Schema, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import ProcessContext, Row
    from keyscale.jobs.graph.topology import Topology

pytestmark = pytest.mark.real

INPUT = "id string, aircraft string, delay double, at timestamp, extra map<string, int>"
OUTPUT = {"aircraft": "string", "flights": "bigint"}


class Totals(KeyedProcessFunction):
    def process_element(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - never run here
        yield context.current_key, 1


@pytest.fixture
def executed() -> list[Topology]:
    return []


@pytest.fixture
def env(spark: SparkSession, executed: list[Topology]) -> StreamEnvironment:
    return StreamEnvironment(spark, {"output": "/nowhere"}, executed.append)


@pytest.fixture
def reports(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return spark.readStream.schema(INPUT).json(str(tmp_path))


def test_the_graph_of_the_main_job_is_as_its_script_declares_it(
    env: StreamEnvironment, reports: DataFrame, executed: list[Topology]
) -> None:
    unique = env.stream(reports, timestamp="at").key_by("id").deduplicate(ttl=Ttl(1000)).uid("unique")
    late = unique.where("delay > 0").with_column("hours", F.col("delay") / 60).select("aircraft", "hours", "at")
    totals = late.key_by("aircraft").process(Totals(), output=OUTPUT).uid("totals")
    totals.sink_to(FileSink(env.parameters["output"])).uid("files")
    env.execute()
    (topology,) = executed
    first, second = topology.operators
    assert (first.uid, first.key_columns, first.timestamp_column) == ("unique", ("id",), "at")
    assert first.schema == first.input_schema
    assert second.input_schema.names == ["aircraft", "hours", "at"]
    assert second.timestamp_column == "at"
    assert second.schema == pa.schema([("aircraft", pa.string()), ("flights", pa.int64())])


def test_a_column_may_be_added_by_sql_text_as_rows_may_be_chosen(env: StreamEnvironment, reports: DataFrame) -> None:
    stream = env.stream(reports).with_column("hours", "delay / 60").where("hours > 1").with_column("delay", "'late'")
    assert stream._schema.field("hours").type == pa.float64()
    assert stream._schema.field("delay").type == pa.string()


def test_sql_text_that_is_none_or_names_no_column_is_refused(env: StreamEnvironment, reports: DataFrame) -> None:
    with pytest.raises(UnknownColumnError):
        env.stream(reports).with_column("hours", "dealy / 60")
    with pytest.raises(InvalidTopologyError):
        env.stream(reports).with_column("hours", "delay delay delay")


def test_a_timestamp_column_that_a_transform_drops_is_gone(
    env: StreamEnvironment, reports: DataFrame, executed: list[Topology]
) -> None:
    stream = env.stream(reports, timestamp="at").select("id", "aircraft")
    stream.key_by("id").deduplicate().uid("unique").sink_to(FileSink("/nowhere")).uid("files")
    env.execute()
    assert executed[0].operators[0].timestamp_column is None


@pytest.mark.parametrize(
    "declared",
    [
        {"a b": "string", "n": "bigint"},
        "`a b` string, n bigint",
        StructType().add("a b", StringType()).add("n", LongType()),
        pa.schema([("a b", pa.string()), ("n", pa.int64())]),
    ],
    ids=["mapping", "ddl", "spark", "arrow"],
)
def test_an_output_schema_may_be_written_in_four_ways(spark: SparkSession, declared: Schema) -> None:  # noqa: ARG001 - parsing needs a session
    assert arrow_schema(declared) == pa.schema([("a b", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize("declared", [{"a": "strnig"}, "no schema at all, really", 7, "bigint"])
def test_a_value_that_is_not_a_schema_is_refused(spark: SparkSession, declared: Any) -> None:  # noqa: ARG001 - as above
    with pytest.raises(InvalidSchemaError):
        arrow_schema(declared)


def test_a_dataframe_with_fixed_content_is_refused_as_input(env: StreamEnvironment, spark: SparkSession) -> None:
    with pytest.raises(NotStreamingError):
        env.stream(spark.range(3))


def test_unknown_columns_are_refused_wherever_they_are_named(env: StreamEnvironment, reports: DataFrame) -> None:
    stream = env.stream(reports)
    with pytest.raises(UnknownColumnError, match="tail"):
        stream.key_by("tail")
    with pytest.raises(UnknownColumnError, match="tail"):
        stream.where("tail = 'N1'")
    with pytest.raises(UnknownColumnError, match="tail"):
        stream.with_timestamps("tail")


def test_a_map_is_refused_as_a_key(env: StreamEnvironment, reports: DataFrame) -> None:
    with pytest.raises(InvalidKeyError):
        env.stream(reports).key_by("extra")


def test_a_transform_that_spark_refuses_is_refused_at_declaration(env: StreamEnvironment, reports: DataFrame) -> None:
    with pytest.raises(InvalidTopologyError):
        env.stream(reports).where("delay + extra > 1")


def test_a_job_that_cannot_run_is_not_run(env: StreamEnvironment, reports: DataFrame, executed: list[Topology]) -> None:
    env.stream(reports).key_by("id").deduplicate().sink_to(FileSink("/nowhere")).uid("files")
    with pytest.raises(MissingUidError):
        env.execute()
    assert executed == []


def test_a_script_finds_the_environment_that_its_driver_provides(env: StreamEnvironment) -> None:
    with pytest.raises(NoEnvironmentError):
        StreamEnvironment.current()
    with env.provided():
        assert StreamEnvironment.current() is env
    with pytest.raises(NoEnvironmentError):
        StreamEnvironment.current()


def test_the_protocol_is_imported_without_spark() -> None:
    imported = "import sys, keyscale.jobs.protocol.messages"
    program = f"{imported}; assert not {{'pyspark', 'pyarrow', 'rocksdict'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

"""A job goes on with KafkaSource where a query of real Spark has stopped with Spark's own Kafka source."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.state_import import import_spark_checkpoint
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.servers.kafka_broker import Broker

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

PARTITIONS = 3
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
# In a process of its own: a JVM takes jars only when it starts.
QUERY = """
import sys

from pyspark.sql import SparkSession

servers, topic, home, jars = sys.argv[1:]
settings = {"spark.jars": jars, "spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 100)
    .load()
)
views = records.selectExpr("from_json(CAST(value AS STRING), 'id string, page string') e").select("e.*")
unique = views.dropDuplicates(["id"]).selectExpr("page", "0 AS count")
(
    views.groupBy("page")
    .count()
    .union(unique)
    .writeStream.format("noop")
    .outputMode("update")
    .option("checkpointLocation", f"{home}/checkpoint")
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
"""
JOB = """
import pyarrow as pa

from keyscale import AggregateFunction, FileSink, KafkaSource, KeyedProcessFunction, StreamEnvironment


class Count(AggregateFunction):
    def create_accumulator(self):
        return {"count": 0}

    def add(self, value, accumulator):
        return {"count": accumulator["count"] + 1}

    def get_result(self, accumulator):
        return (accumulator["count"],)

    def merge(self, left, right):
        return {"count": left["count"] + right["count"]}


env = StreamEnvironment.current()
records = env.read(KafkaSource(env.parameters["servers"], env.parameters["topic"]))
views = env.stream(records.selectExpr("from_json(CAST(value AS STRING), 'id string, page string') e").select("e.*"))
unique = views.key_by("id").deduplicate().uid("unique")
unique.sink_to(FileSink(env.parameters["output"], format="json")).uid("ids")
accumulator = pa.struct([("count", pa.int64())])
counts = views.key_by("page").aggregate(Count(), accumulator=accumulator, output={"count": "bigint"}).uid("counts")
counts.sink_to(FileSink(env.parameters["counts"], format="json")).uid("files")
env.execute()
"""


def page(identity: str) -> str:
    return f"p{sum(identity.encode()) % 7}"


def send(kafka: Broker, topic: str, ids: list[str]) -> None:
    """Sends a view of each id, to the partitions in turn."""
    views = [json.dumps({"id": each, "page": page(each)}) for each in ids]
    for partition in range(PARTITIONS):
        kafka.send(topic, views[partition::PARTITIONS], partition=partition)


def run_query(kafka: Broker, topic: str, home: Path) -> None:
    """Runs the query over all records that are there."""
    environment = {**os.environ, "KEYSCALE_VENV": sys.prefix, "SPARK_LOCAL_IP": "127.0.0.1"}
    fetch = [ROOT / "deploy" / "stack" / "spark-package", home / "jars", "kafka", CONNECTOR]
    subprocess.run(fetch, check=True, env=environment, timeout=300)
    jars = ",".join(map(str, sorted((home / "jars" / "kafka").glob("*.jar"))))
    query = [sys.executable, "-c", QUERY, kafka.servers, topic, str(home), jars]
    subprocess.run(query, check=True, env=environment, timeout=300)


def test_a_job_reads_each_record_of_kafka_that_the_query_has_not_read_once(
    spark: SparkSession, kafka: Broker, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    chance = random.Random(40)
    topic = kafka.create_topic(PARTITIONS)
    before, after = [f"a{number}" for number in range(400)], [f"b{number}" for number in range(300)]
    of_query = [*before, *chance.sample(before, 50)]
    send(kafka, topic, of_query)
    run_query(kafka, topic, tmp_path)

    # Ids of the query come again: only its state can tell the job.
    of_job = [*after, *chance.sample(before, 150), *chance.sample(after, 50)]
    chance.shuffle(of_job)
    send(kafka, topic, of_job)
    program = tmp_path / "job.py"
    program.write_text(JOB)
    ids, counts = tmp_path / "out", tmp_path / "counts"
    parameters = {"servers": kafka.servers, "topic": topic, "counts": str(counts)}
    report = import_spark_checkpoint(
        spark,
        str(tmp_path / "checkpoint"),
        program=program,
        parameters={**parameters, "output": str(ids)},
        to=f"file://{tmp_path}/store/spark/savepoints/query",
        sources={1: None},  # Spark reads the topic for each of the query's branches; both end at the same offsets
        max_parallelism=16,
        parallelism=2,
    )
    read_before = Counter(map(page, of_query))
    assert {(state.uid, state.rows, state.entries) for state in report.states} == {
        ("unique", len(before), len(before)),
        ("counts", len(read_before), len(read_before)),
    }
    [source] = report.sources
    assert json.loads(source.end or "") == {topic: {str(partition): 150 for partition in range(PARTITIONS)}}

    driver = DriverProcess.start(tmp_path / "driver", artifact=program, cores=3)
    drivers.append(driver)
    restore = {"restore_mode": "rewind", "restore_from": report.location, "restore_id": "spark"}
    driver.assign(
        assignment_of(
            program, tmp_path, 1, 3, parameters=parameters, checkpoints=CheckpointSettings(interval_ms=1000), **restore
        )
    )
    driver.wait_for(lambda: len(counted(counts)) >= len(of_job), "the records that the query has not read")
    # Partitions are read in order: a record that was read twice precedes the last record's count.
    last = [f"c{number}" for number in range(PARTITIONS)]
    send(kafka, topic, last)
    driver.wait_for(lambda: {*last} <= {row["id"] for row in rows(ids)}, "the last ids")
    driver.wait_for(lambda: len(counted(counts)) >= len(of_job) + len(last), "the last counts")
    assert sorted(row["id"] for row in rows(ids)) == sorted([*after, *last])
    total = read_before + Counter(map(page, [*of_job, *last]))
    assert counted(counts) == sorted((each, n + 1) for each in total for n in range(read_before[each], total[each]))


def rows(sink: Path) -> list[dict[str, Any]]:
    return sink_rows(sink) if sink.exists() else []


def counted(sink: Path) -> list[tuple[str, int]]:
    """Returns the count after each record."""
    return sorted((row["page"], row["count"]) for row in rows(sink))

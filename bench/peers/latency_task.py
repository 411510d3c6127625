"""The task of the latency contenders: deduplicate a topic into files.

Meanwhile a producer writes steadily.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from bench.broker import tool
from keyscale import KafkaSource
from keyscale.jobs.sources.source_reader import streaming_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DRAIN_SECONDS = 60.0
POLL_SECONDS = 0.2


class MissingOutputError(AssertionError):
    """The output lacks or doubles ids; the latencies do not count."""


@dataclass(frozen=True, slots=True)
class LatencyTask:
    """A run of one contender.

    Attributes:
        work: Fresh folder for output, state, checkpoints.
        topic: The run's own, empty topic.
        address: The broker's address.
        source: "python" for KafkaSource, "connector" for Spark's.
        kafka_jars: Folder of Kafka's tools.
        connector_jars: Spark's connector, comma separated.
        payload: File of ids, of which the producer sends random ones.
        rate: Records per second.
        seconds: The duration of sending.
        warm_up_seconds: The part at the start that does not count.
        cores: The number of concurrent tasks.
        batch_interval_ms: The least time between the starts of two of Keyscale's batches.
    """

    work: str
    topic: str
    address: str
    source: str
    kafka_jars: str
    connector_jars: str
    payload: str
    rate: int
    seconds: int
    warm_up_seconds: int
    cores: int
    batch_interval_ms: int = 0

    @property
    def output(self) -> Path:
        return Path(self.work) / "output"

    @property
    def records(self) -> int:
        return self.rate * self.seconds

    def source_parameters(self) -> dict[str, str]:
        """Returns the arguments of `source_frame`."""
        return {"source": self.source, "address": self.address, "topic": self.topic}


def source_frame(spark: SparkSession, parameters: Mapping[str, str]) -> DataFrame:
    """Returns the topic's records as both contenders read them."""
    if parameters["source"] == "python":
        return streaming_frame(spark, KafkaSource(parameters["address"], parameters["topic"]))
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", parameters["address"])
    return reader.option("subscribe", parameters["topic"]).option("startingOffsets", "earliest").load()


def produce(task: LatencyTask) -> None:
    """Sends all records at the wanted rate."""
    arguments = ["--topic", task.topic, "--num-records", str(task.records), "--throughput", str(task.rate)]
    arguments += ["--payload-file", task.payload, "--producer-props", f"bootstrap.servers={task.address}"]
    subprocess.run(tool(task.kafka_jars, PRODUCER, arguments), check=True)  # noqa: S603 - Kafka's tool


def wait_for_all(task: LatencyTask, visible: Callable[[], Mapping[Path, float]]) -> Mapping[str, Any]:
    """Waits until each id is in the output; returns the latencies.

    Args:
        task: The run.
        visible: Returns each committed file, and when it became visible (seconds since the epoch).

    Raises:
        MissingOutputError: An id is missing or doubled.
    """
    arguments = [
        "--bootstrap-server",
        task.address,
        "--topic",
        task.topic,
        "--from-beginning",
        "--max-messages",
        str(task.records),
    ]
    sent = subprocess.run(  # noqa: S603 - Kafka's tool
        tool(task.kafka_jars, CONSUMER, arguments), check=True, capture_output=True, text=True
    )
    expected = set(sent.stdout.split())
    give_up = time.monotonic() + DRAIN_SECONDS
    while True:
        files = visible()
        tables = {file: pq.read_table(file) for file in files}
        ids = [key for table in tables.values() for key in table["id"].to_pylist()]
        if len(ids) == len(expected) and set(ids) == expected:
            break
        if time.monotonic() > give_up:
            message = f"{len(ids)} rows of {len(set(ids))} ids came out; {len(expected)} are right"
            raise MissingOutputError(message)
        time.sleep(POLL_SECONDS)
    sent_ms = np.concatenate([table["sent_ms"].to_numpy() for table in tables.values()])
    seen_ms = np.concatenate([np.full(table.num_rows, files[file] * 1000) for file, table in tables.items()])
    counted = sent_ms >= sent_ms.min() + task.warm_up_seconds * 1000
    latencies = (seen_ms - sent_ms)[counted]
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(latencies.max()), "counted": int(counted.sum())}

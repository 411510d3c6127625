"""Records appear in Kafka a batch at a time, once, and only those that were committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import KafkaSink, SinkContext
from jobs.errors import SinkOccupiedError, SinkPublishError, SinkRowsRefusedError, SinkUnavailableError
from jobs.sinks.kafka_transactions import TransactionalTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.kafka import Broker

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[3]
# A driver that is killed when all records of a transaction are in the topic, and the transaction is not committed.
INTERRUPTED = """
import sys
from jobs.sinks.kafka_transactions import TransactionalTopic
servers, topic, name = sys.argv[1:]
opened = TransactionalTopic({"bootstrap.servers": servers}, name, 300_000)
opened._producer.begin_transaction()
for number in range(3):
    opened._produce({"topic": topic, "value": str(number).encode()})
opened._producer.flush(60)
print("written", flush=True)
sys.stdin.read()
"""


class Output:
    """A topic, and sinks that write to it: each is another driver's."""

    def __init__(self, kafka: Broker, staging: Path) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic()
        self.staging = staging

    def sink(self) -> KafkaSink:
        return KafkaSink(self.kafka.servers, self.topic, staging=str(self.staging))

    def context(self, batch_id: int = 0, *, attempt: int = 1, unique: str = "u") -> SinkContext:
        return SinkContext(job_id=self.topic, uid="out", batch_id=batch_id, attempt=attempt, unique=unique)

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.staging.glob("*/*/*"))

    @property
    def values(self) -> list[str]:
        return self.kafka.values(self.topic)


@pytest.fixture
def output(kafka: Broker, tmp_path: Path) -> Output:
    return Output(kafka, tmp_path / "staging")


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr("CAST(id AS STRING) AS value")


def texts(start: int, end: int) -> list[str]:
    return sorted(str(number) for number in range(start, end))


def test_nothing_is_seen_before_publish_and_all_of_it_once_after_any_number_of_them(
    spark: SparkSession, output: Output
) -> None:
    first = output.sink()
    first.recover(output.context(-1))
    token = first.prepare(numbers(spark, 0, 5), output.context())
    assert output.values == []
    first.publish(token)
    first.publish(token)
    output.sink().publish(token)  # the next driver does not know whether the one before has
    assert output.values == texts(0, 5)
    assert output.staged() == []


def test_a_transaction_that_a_killed_driver_left_open_is_never_seen(spark: SparkSession, output: Output) -> None:
    sink = output.sink()
    sink.recover(output.context(-1))
    token = sink.prepare(numbers(spark, 0, 3), output.context())
    command = [sys.executable, "-c", INTERRUPTED, output.kafka.servers, output.topic, f"{output.topic}-out"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.kill()
    output.sink().publish(token)
    assert output.values == texts(0, 3)
    assert len(output.kafka.values(output.topic, committed=False)) == 6  # the broker has both: the markers tell


def test_a_driver_that_is_shut_out_by_an_older_one_takes_the_sink_back(spark: SparkSession, output: Output) -> None:
    """The older ones come late, with a batch that the newer one has published for them."""
    older, latest, newer = output.sink(), output.sink(), output.sink()
    older.recover(output.context(-1))
    token = older.prepare(numbers(spark, 0, 3), output.context(0))
    newer.publish(token)
    newer.recover(output.context(0, attempt=2))
    older.publish(token)  # its marker says that the batch is not there, and what was staged is gone
    latest.publish(token)  # this one has opened the sink just now, and so shut out the newer one
    newer.publish(newer.prepare(numbers(spark, 3, 5), output.context(1, attempt=2)))
    assert output.values == texts(0, 5)
    late = older.prepare(numbers(spark, 7, 9), output.context(5))
    with pytest.raises(SinkOccupiedError):
        older.publish(late)
    assert output.values == texts(0, 5)


def test_an_attempt_that_was_replaced_does_not_take_the_sink_over(output: Output, spark: SparkSession) -> None:  # noqa: ARG001 - the session must be there
    output.sink().recover(output.context(3, attempt=2))
    with pytest.raises(SinkOccupiedError):
        output.sink().recover(output.context(3, attempt=1))


def test_recovery_removes_what_older_attempts_have_staged(spark: SparkSession, output: Output) -> None:
    left_behind = output.sink()
    left_behind.prepare(numbers(spark, 0, 1), output.context(0))
    left_behind.prepare(numbers(spark, 0, 1), output.context(0, attempt=2, unique="mine"))
    output.sink().recover(output.context(-1, attempt=2))
    assert output.staged() == ["0-2-mine"]


def test_a_discarded_batch_cannot_be_published(spark: SparkSession, output: Output) -> None:
    sink = output.sink()
    token = sink.prepare(numbers(spark, 0, 1), output.context())
    sink.discard(token)
    sink.discard(token)
    with pytest.raises(SinkPublishError, match="gone"):
        sink.publish(token)
    sink.publish(sink.prepare(numbers(spark, 1, 2), output.context()))  # what failed is not in the next transaction
    assert output.values == ["1"]


def test_keys_headers_topics_and_partitions_are_those_of_the_columns(
    spark: SparkSession, output: Output, kafka: Broker
) -> None:
    other = kafka.create_topic(2)
    frame = spark.sql(
        f"SELECT 'k' AS key, X'00FF' AS value, '{other}' AS topic, 1 AS partition, "
        "array(named_struct('key', 'h', 'value', X'01')) AS headers UNION ALL "
        f"SELECT null, 'v', '{other}', 0, null"
    )
    sink = KafkaSink(kafka.servers, staging=str(output.staging))
    sink.publish(sink.prepare(frame, output.context()))
    found = sorted((m.partition(), m.key(), m.value(), m.headers()) for m in kafka.messages(other))
    assert found == [(0, None, b"v", None), (1, b"k", b"\x00\xff", [("h", b"\x01")])]


def test_records_of_a_partition_keep_their_order(spark: SparkSession, output: Output) -> None:
    sink = output.sink()
    sink.publish(sink.prepare(spark.range(0, 3000, 1, 1).selectExpr("CAST(id AS STRING) AS value"), output.context()))
    in_topic = [int(message.value() or b"") for message in output.kafka.messages(output.topic)]
    assert in_topic == list(range(3000))


@pytest.mark.parametrize("columns", [["id"], ["value", "extra"]])
def test_columns_that_are_not_a_kafka_sinks_are_refused(
    spark: SparkSession, output: Output, columns: list[str]
) -> None:
    frame = spark.createDataFrame([("x",) * len(columns)], columns)
    with pytest.raises(SinkRowsRefusedError, match="takes value"):
        output.sink().prepare(frame, output.context())


def test_a_topic_that_is_not_there_is_told_and_what_was_committed_is_published_once_it_is(
    spark: SparkSession, output: Output, kafka: Broker
) -> None:
    name = f"{output.topic}-late"
    sink = KafkaSink(
        kafka.servers, name, staging=str(output.staging), config={"message.timeout.ms": 2000}, timeout_ms=10_000
    )
    sink.recover(output.context(-1))
    token = sink.prepare(numbers(spark, 0, 2), output.context())
    with pytest.raises(SinkUnavailableError, match="out"):
        sink.publish(token)
    made = kafka.create_topic(name=name)
    sink.publish(token)
    assert kafka.values(made) == texts(0, 2)


def test_the_last_marker_is_found_among_many(kafka: Broker) -> None:
    topic = kafka.create_topic()
    opened = TransactionalTopic({"bootstrap.servers": kafka.servers}, topic, 60_000)
    assert opened.last_marker() is None
    for number in range(5):
        opened.write([], f"{number}".encode())
    assert TransactionalTopic({"bootstrap.servers": kafka.servers}, topic, 60_000).last_marker() == b"4"

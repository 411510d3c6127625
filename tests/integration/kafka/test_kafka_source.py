"""Partitions of a real broker are read between offsets: all of it, the same again, and never past what is lost."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobs import KafkaSource
from jobs.errors import InvalidTopologyError, SourceRecordsLostError, SourceUnavailableError
from jobs.runtime.failures import typed_failure
from jobs.sources.stream import SourceReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tests.support.kafka import Broker

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


class Reading:
    """A job's input as Spark drives it, without Spark."""

    def __init__(self, source: KafkaSource, *, limit: int | None = None) -> None:
        source.discovery_interval_ms = 0
        self.reader = SourceReader(source, SCHEMA, limit, readers=2)
        self.at: dict[str, Any] = self.reader.initialOffset()

    def plan(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())))  # type: ignore[no-any-return]

    def rows(self, end: dict[str, Any]) -> list[dict[str, Any]]:
        found: Iterator[pa.RecordBatch] = (
            batch for part in self.reader.partitions(self.at, end) for batch in self.reader.read(part)
        )
        return [row for batch in found for row in batch.to_pylist()]

    def batch(self) -> list[str]:
        """The next batch's values; Spark runs none where the plan is the one before."""
        end = self.plan()
        if end == self.at:
            return []
        values = [row["value"].decode() for row in self.rows(end)]
        self.at = end
        return sorted(values)


def error_of(failure: pytest.ExceptionInfo[Exception]) -> Exception:
    return typed_failure(failure.value)


def test_records_have_the_columns_of_sparks_connector(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["v"], key="k", timestamp_ms=1_767_225_600_123)
    reading = Reading(KafkaSource(kafka.servers, topic))
    (row,) = reading.rows(reading.plan())
    moment = dt.datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=dt.UTC)
    assert row == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": moment,
        "timestampType": 0,
    }


def test_batches_follow_each_other_and_one_is_the_same_again_from_its_plan(kafka: Broker) -> None:
    topic = kafka.create_topic(3)
    for partition in range(3):
        kafka.send(topic, [f"{partition}-{n}" for n in range(20)], partition=partition)
    reading = Reading(KafkaSource(kafka.servers, topic), limit=25)
    seen: list[str] = []
    for _ in range(3):
        plan = reading.plan()
        once = reading.rows(plan)
        assert reading.rows(plan) == once  # the consumers are open, and have gone on meanwhile
        assert len(once) <= 25
        seen += [row["value"].decode() for row in once]
        reading.at = plan
    assert sorted(seen) == sorted(f"{partition}-{n}" for partition in range(3) for n in range(20))
    assert reading.plan() == reading.at
    kafka.send(topic, ["later"], partition=1)
    assert reading.batch() == ["later"]


def test_transactions_show_when_they_are_committed_and_their_markers_do_not_hold_a_batch_up(kafka: Broker) -> None:
    topic = kafka.create_topic()
    reading = Reading(KafkaSource(kafka.servers, topic, timeout_ms=10_000))
    producer = kafka.transactional(topic)
    for number, is_committed in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(topic, f"{number}")
        producer.flush()
        assert reading.batch() == []
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        kafka.settle(topic)
        assert reading.batch() == ([f"{number}"] if is_committed else [])
    assert KafkaSource(kafka.servers, topic).latest({f"{topic}/0": 0}, None) == {f"{topic}/0": 6}
    again = Reading(KafkaSource(kafka.servers, topic, timeout_ms=10_000))
    assert [row["value"] for row in again.rows(reading.at)] == [b"2"]  # the last batch, from its plan
    assert again.batch() == ["0", "2"]


def test_partitions_that_are_added_are_found_and_read_as_a_whole(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["before"])
    reading = Reading(KafkaSource(kafka.servers, topic, starting="latest"))
    assert reading.batch() == []
    kafka.add_partitions(topic, 2)
    kafka.send(topic, ["added"], partition=1)
    kafka.send(topic, ["after"])
    seen: list[str] = []
    while len(seen) < 2:  # a partition that was just added may take a moment to be listed
        seen += reading.batch()
    assert sorted(seen) == ["added", "after"]


def test_a_job_begins_at_a_moment(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    for hour in range(3):
        kafka.send(topic, [f"{hour}"], timestamp_ms=(hour + 1) * 3_600_000)
    since = dt.datetime.fromtimestamp(7200, tz=dt.UTC)
    assert Reading(KafkaSource(kafka.servers, topic, starting=since)).batch() == ["1", "2"]


def test_records_that_expire_before_they_are_read_fail_the_job(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, list("abcdef"))
    reading = Reading(KafkaSource(kafka.servers, topic, timeout_ms=20_000), limit=2)
    assert reading.batch() == ["a", "b"]
    fresh = Reading(KafkaSource(kafka.servers, topic, config={"client.id": "another"}, timeout_ms=20_000))
    fresh.at = reading.at  # in a worker that has nothing of it fetched
    kafka.delete_records(topic, 0, before=4)
    with pytest.raises(Exception, match="expired") as failure:
        fresh.batch()
    assert isinstance(error_of(failure), SourceRecordsLostError)


def test_a_topic_that_was_made_anew_is_not_taken_for_the_one_it_was(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["a", "b"])
    reading = Reading(KafkaSource(kafka.servers, topic))
    reading.batch()
    kafka.recreate_topic(topic)
    with pytest.raises(Exception, match="made anew") as failure:
        reading.reader.latestOffset(reading.at, ReadAllAvailable())
    assert isinstance(error_of(failure), SourceRecordsLostError)


def test_a_topic_and_a_broker_that_are_not_there_are_told(kafka: Broker) -> None:
    for source in (KafkaSource(kafka.servers, "absent"), KafkaSource("127.0.0.1:1", "absent", timeout_ms=500)):
        reader = SourceReader(source, SCHEMA)
        with pytest.raises(Exception, match="Kafka") as failure:
            reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
        assert isinstance(error_of(failure), SourceUnavailableError)


def test_headers_come_where_they_are_asked_for(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["v"], headers={"trace": b"1"})
    kafka.send(topic, ["w"])
    source = KafkaSource(kafka.servers, topic, include_headers=True)
    headers = [value for batch in source.read(f"{topic}/0", 0, 2) for value in batch["headers"].to_pylist()]
    assert headers == [[{"key": "trace", "value": b"1"}], None]


def test_settings_and_moments_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(InvalidTopologyError, match="bootstrap"):
        KafkaSource("x:1", "t", config={"bootstrap.servers": "y:1"})
    with pytest.raises(InvalidTopologyError, match="time zone"):
        KafkaSource("x:1", "t", starting=dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is wrong

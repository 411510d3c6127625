"""Partitions of a real broker are read between offsets: all of it, the same again, and never past what is lost."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
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

from keyscale import KafkaSource
from keyscale.jobs.errors import InvalidTopologyError, SourceRecordsLostError, SourceUnavailableError
from keyscale.jobs.operators.failures import typed_failure
from keyscale.jobs.sources.source_reader import SourceReader
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

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


def offsets(positions: Mapping[str, Any]) -> dict[str, int]:
    return {split: position["offset"] for split, position in positions.items()}


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
    assert offsets(KafkaSource(kafka.servers, topic).latest({f"{topic}/0": 0}, None)) == {f"{topic}/0": 6}
    again = Reading(KafkaSource(kafka.servers, topic, timeout_ms=10_000))
    assert [row["value"] for row in again.rows(reading.at)] == [b"2"]  # the last batch, from its plan
    assert again.batch() == ["0", "2"]


@pytest.mark.parametrize("limit", short_form([None, 1, 7, 50], [7]))
def test_every_record_of_a_topic_with_offset_gaps_is_read_once_and_read_again_alike(
    kafka: Broker, limit: int | None
) -> None:
    topic = kafka.create_topic()
    expected = kafka.send_in_transactions(topic, transactions=60, aborted_every=5)
    reading = Reading(KafkaSource(kafka.servers, topic), limit=limit)
    seen: list[str] = []
    while (plan := reading.plan()) != reading.at:
        once = reading.rows(plan)
        fresh = Reading(KafkaSource(kafka.servers, topic, config={"client.id": "again"}))
        fresh.at = reading.at
        assert fresh.rows(plan) == once
        seen += [row["value"].decode() for row in once]
        reading.at = plan
    assert seen == expected


@pytest.mark.parametrize("limit", short_form([None, 11], [11]))
def test_a_topic_is_read_exactly_while_transactions_are_committed_and_aborted(kafka: Broker, limit: int | None) -> None:
    topic = kafka.create_topic()
    reading, seen = Reading(KafkaSource(kafka.servers, topic), limit=limit), []
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(kafka.send_in_transactions, topic, transactions=120, aborted_every=4)
        is_sent = False
        while (plan := reading.plan()) != reading.at or not is_sent:
            is_sent = sending.done()
            if plan == reading.at:
                continue
            once = [row["value"].decode() for row in reading.rows(plan)]
            fresh = Reading(KafkaSource(kafka.servers, topic, config={"client.id": "again"}))
            fresh.at = reading.at
            assert [row["value"].decode() for row in fresh.rows(plan)] == once
            seen += once
            reading.at = plan
    assert seen == sending.result()


def test_a_range_that_ends_among_fetched_records_leaves_the_rest_to_the_next_one(kafka: Broker) -> None:
    topic = kafka.create_topic()
    expected = kafka.send_in_transactions(topic, transactions=60, aborted_every=3)
    (source, end) = (KafkaSource(kafka.servers, topic), 120)
    split = f"{topic}/0"
    bounds = [0, 31, 32, 33, 80, 119, end]
    seen = [
        value.decode()
        for start, stop in itertools.pairwise(bounds)
        for batch in source.read(split, start, stop)
        for value in batch["value"].to_pylist()
    ]
    assert seen == expected


def test_a_compacted_topic_is_read_between_its_gaps(kafka: Broker) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = kafka.create_topic(**config)
    for number in range(60):
        kafka.send(topic, [f"{number}"], key=f"{number % 3}")
    kafka.compact(topic, records_max=30)
    left = [(message.value() or b"").decode() for message in kafka.messages(topic)]
    reading = Reading(KafkaSource(kafka.servers, topic), limit=9)
    seen: list[str] = []
    while (plan := reading.plan()) != reading.at:
        seen += [row["value"].decode() for row in reading.rows(plan)]
        reading.at = plan
    assert seen == left


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


def test_a_job_that_begins_at_a_moment_after_the_last_record_reads_only_what_comes(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    kafka.send(topic, ["old"], timestamp_ms=3_600_000)
    since = dt.datetime.fromtimestamp(7200, tz=dt.UTC)
    reading = Reading(KafkaSource(kafka.servers, topic, starting=since))
    assert reading.batch() == []
    kafka.send(topic, ["new"], timestamp_ms=10_800_000)
    assert reading.batch() == ["new"]


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


def test_a_source_says_which_records_it_still_has(kafka: Broker) -> None:
    topic = kafka.create_topic(2)
    kafka.send(topic, list("abcdef"), partition=1)
    source = KafkaSource(kafka.servers, topic)
    shorter = kafka.create_topic(**{"retention.ms": "3600000"})
    assert source.retention_ms() == 7 * 24 * 3_600_000, "the brokers' default"
    assert KafkaSource(kafka.servers, [topic, shorter]).retention_ms() == 3_600_000
    splits = [f"{topic}/0", f"{topic}/1", "no-topic-of-the-job/0"]
    assert offsets(source.earliest(splits)) == {splits[0]: 0, splits[1]: 0}
    kafka.delete_records(topic, 1, before=4)
    before = source.earliest(splits)
    assert offsets(before) == {splits[0]: 0, splits[1]: 4}
    kafka.recreate_topic(topic)
    [again] = source.earliest([splits[0]]).values()
    assert isinstance(again, dict)
    assert again["topic_id"] != before[splits[0]]["topic_id"]  # type: ignore[index, call-overload]


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_topic_that_was_created_again_is_not_taken_for_the_one_it_was(kafka: Broker, records: int) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["a", "b"])
    reading = Reading(KafkaSource(kafka.servers, topic))
    reading.batch()
    kafka.recreate_topic(topic)
    kafka.send(topic, ["x"] * records)
    with pytest.raises(Exception, match="created again") as failure:
        reading.reader.latestOffset(reading.at, ReadAllAvailable())
    assert isinstance(error_of(failure), SourceRecordsLostError)


@pytest.mark.parametrize("records", [2, 5])
def test_a_batch_that_an_earlier_run_has_planned_is_not_read_from_another_topic_of_the_name(
    kafka: Broker, records: int
) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["a", "b"])
    planned = Reading(KafkaSource(kafka.servers, topic)).plan()
    kafka.recreate_topic(topic)
    kafka.send(topic, ["x"] * records)
    again = Reading(KafkaSource(kafka.servers, topic))
    with pytest.raises(Exception, match="no longer has") as failure:
        again.rows(planned)
    assert isinstance(error_of(failure), SourceRecordsLostError)
    assert failure.match(topic)


@pytest.mark.parametrize("limit", [None, 2])
def test_a_job_may_go_on_with_the_earliest_records_that_have_not_expired(kafka: Broker, limit: int | None) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, list("abcdefgh"))
    before = Reading(KafkaSource(kafka.servers, topic), limit=2)
    before.batch()
    planned = before.plan()
    kafka.delete_records(topic, 0, before=5)
    again = Reading(KafkaSource(kafka.servers, topic, lost_records="skip", config={"client.id": "x"}), limit=limit)
    again.at = before.at
    assert again.rows(planned) == [], "a batch that was planned before runs with what is left of it"
    again.at = planned
    assert [again.batch() for _ in range(3)] == (
        [["f", "g", "h"], [], []] if limit is None else [["f", "g"], ["h"], []]
    )
    told = again.reader.reportLatestOffset() or {}
    assert (told["records_lost"], told["records_behind"]) == (3, 0)


@pytest.mark.parametrize("records", [0, 1, 2, 5])
def test_a_job_may_go_on_with_a_topic_that_was_created_again(kafka: Broker, records: int) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["a", "b"])
    source = KafkaSource(kafka.servers, topic, lost_records="skip")
    reading = Reading(source)
    reading.batch()
    kafka.send(topic, ["c"])
    before, planned = reading.at, reading.plan()
    kafka.recreate_topic(topic)
    kafka.send(topic, ["x"] * records)
    assert reading.rows(planned) == []
    reading.at = before
    assert reading.batch() == ["x"] * records
    kafka.send(topic, ["y"])
    assert reading.batch() == ["y"]


def test_positions_of_version_0_1_which_name_no_topic_are_read_on(kafka: Broker) -> None:
    topic = kafka.create_topic()
    kafka.send(topic, ["a", "b", "c"])
    reading = Reading(KafkaSource(kafka.servers, topic))
    reading.at = {"version": 1, "splits": {f"{topic}/0": [0, 2]}}
    assert reading.batch() == ["c"]


def test_a_topic_that_is_created_while_the_job_starts_is_waited_for(kafka: Broker) -> None:
    topic = f"late-{uuid.uuid4().hex[:8]}"
    with ThreadPoolExecutor() as pool:
        discovered = pool.submit(KafkaSource(kafka.servers, topic).discover, ())
        kafka.create_topic(name=topic)
        assert set(discovered.result(60)) == {f"{topic}/0"}


def test_a_topic_and_a_broker_that_are_not_there_are_told(kafka: Broker) -> None:
    for source in (
        KafkaSource(kafka.servers, "absent", timeout_ms=2000),
        KafkaSource("127.0.0.1:1", "absent", timeout_ms=500),
    ):
        reader = SourceReader(source, SCHEMA)
        with pytest.raises(Exception, match="Kafka") as failure:
            reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
        assert isinstance(error_of(failure), SourceUnavailableError)


def test_headers_come_on_request(kafka: Broker) -> None:
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

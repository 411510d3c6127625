"""A partition is read between two offsets, in whatever pieces records arrive. Uses the client's mock cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from keyscale.jobs.errors import SourceRecordsLostError, SourceUnavailableError
from keyscale.jobs.kafka_client import client_settings
from keyscale.jobs.sources.kafka_partition import FIXED, open_partition, record_batch

if TYPE_CHECKING:
    from keyscale.jobs.sources.kafka_partition import PartitionReader


class Cluster:
    """A mock cluster, which lives as long as its producer."""

    def __init__(self) -> None:
        self.producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 2})
        broker = self.producer.list_topics(timeout=30).brokers[1]
        self.servers = f"{broker.host}:{broker.port}"

    def send(self, topic: str, first: int, last: int) -> None:
        for number in range(first, last):
            self.producer.produce(topic, str(number), partition=0)
        self.producer.flush(30)

    def reader(self, topic: str, timeout_seconds: float = 30.0) -> PartitionReader:
        return open_partition(f"{topic}/0", client_settings(self.servers, {}, FIXED), timeout_seconds)


class LateTeller:
    """A consumer that tells, after it was sent elsewhere, that what it would have read next is lost."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = Consumer(settings)
        self._is_assigned = False
        self._late: list[Mock] = []

    def assign(self, partitions: list[Any]) -> None:
        if self._is_assigned:
            lost = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            self._late.append(Mock(**{"error.return_value": lost, "offset.return_value": 4}))
        self._is_assigned = True
        self._consumer.assign(partitions)

    def consume(self, messages_max: int, seconds: float) -> list[Any]:
        late, self._late = self._late, []
        return late or self._consumer.consume(messages_max, seconds)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


def numbers(reader: PartitionReader, start: int, end: int) -> list[int]:
    return [int(message.value() or b"") for found in reader.read(start, end) for message in found]


def test_a_consumer_stays_open_and_continues_where_it_stopped(cluster: Cluster) -> None:
    cluster.send("goes-on", 0, 10)
    reader = cluster.reader("goes-on")
    assert numbers(reader, 0, 4) == [0, 1, 2, 3]
    assert cluster.reader("goes-on") is reader
    cluster.send("goes-on", 10, 12)
    assert numbers(reader, 4, 12) == list(range(4, 12))
    assert reader._seeks == 1


@pytest.mark.parametrize("again", [(0, 3), (1, 8), (5, 6)])
def test_any_range_can_be_read_again(cluster: Cluster, again: tuple[int, int]) -> None:
    topic = f"again-{again[0]}"
    cluster.send(topic, 0, 8)
    reader = cluster.reader(topic)
    assert numbers(reader, 2, 6) == [2, 3, 4, 5]
    assert numbers(reader, *again) == list(range(*again))
    assert numbers(reader, 6, 8) == [6, 7]


def test_a_task_that_stops_half_way_does_not_affect_the_next_one(cluster: Cluster) -> None:
    cluster.send("gave-up", 0, 8)
    unfinished = cluster.reader("gave-up").read(0, 8)
    next(unfinished)
    unfinished.close()
    assert numbers(cluster.reader("gave-up"), 0, 8) == list(range(8))


def test_missing_records_fail_the_batch_after_the_timeout(cluster: Cluster) -> None:
    cluster.send("short", 0, 2)
    with pytest.raises(SourceUnavailableError, match="short/0"):
        numbers(cluster.reader("short", timeout_seconds=0.2), 0, 3)
    assert numbers(cluster.reader("short"), 0, 2) == [0, 1]


def test_a_loss_reported_after_a_seek_does_not_count_the_records_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyscale.jobs.sources.kafka_partition.Consumer", LateTeller)
    cluster.send("told-late", 0, 8)
    reader = cluster.reader("told-late")
    assert numbers(reader, 0, 4) == [0, 1, 2, 3]
    assert numbers(reader, 6, 8) == [6, 7]
    assert numbers(reader, 0, 8) == list(range(8))


def test_a_consumer_that_has_read_others_tells_of_lost_records(cluster: Cluster) -> None:
    cluster.send("lost", 0, 2)
    reader = cluster.reader("lost")
    assert numbers(reader, 0, 2) == [0, 1]
    with pytest.raises(SourceRecordsLostError, match="lost/0"):
        numbers(reader, 90, 91)


class Told:
    """A consumer that gets these events, and then nothing more."""

    def __init__(self, events: list[Mock], failure: KafkaException | None = None) -> None:
        self._events, self._failure = events, failure

    def assign(self, partitions: list[Any]) -> None:
        """Has the events of any partition."""

    def consume(self, messages_max: int, seconds: float) -> list[Mock]:  # noqa: ARG002 - the signature of the client
        if self._failure is not None:
            raise self._failure
        events, self._events = self._events, []
        return events


def test_a_range_ends_with_its_partition_although_its_last_offsets_have_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    events = [Mock(**{"error.return_value": None, "offset.return_value": offset}) for offset in (0, 1)]
    events.append(Mock(**{"error.return_value": end, "offset.return_value": 4}))
    monkeypatch.setattr("keyscale.jobs.sources.kafka_partition.Consumer", lambda _: Told(events))
    found = open_partition("gap/0", {}, 0.2).read(0, 4)
    assert [record.offset() for records in found for record in records] == [0, 1]


def test_a_range_may_take_longer_than_the_timeout_while_records_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    class Slow:
        """A consumer that is asked each three seconds, and gets a record each second time."""

        def __init__(self, _settings: dict[str, Any]) -> None:
            self._asked = 0

        def assign(self, _partitions: list[Any]) -> None:
            """Begins with the first record."""

        def consume(self, _messages_max: int, _seconds: float) -> list[Any]:
            nonlocal now_s
            now_s += 3.0
            self._asked += 1
            offset = self._asked // 2 - 1
            record = Mock(**{"error.return_value": None, "offset.return_value": offset})
            return [] if self._asked % 2 else [record]

    monkeypatch.setattr("keyscale.jobs.sources.kafka_partition.Consumer", Slow)
    monkeypatch.setattr("keyscale.jobs.sources.kafka_partition.time", SimpleNamespace(monotonic=lambda: now_s))
    found = open_partition("slow/0", {}, 5.0).read(0, 4)
    assert [record.offset() for records in found for record in records] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._AUTO_OFFSET_RESET, SourceRecordsLostError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SourceUnavailableError),
    ],
)
def test_a_client_that_fails_fails_the_batch_and_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    failure = KafkaException(KafkaError(code))
    monkeypatch.setattr("keyscale.jobs.sources.kafka_partition.Consumer", lambda _: Told([], failure))
    reader = open_partition(f"failing/{code}", {}, 0.2)
    with pytest.raises(error, match="failing/"):
        list(reader.read(0, 4))
    assert open_partition(f"failing/{code}", {}, 0.2) is not reader


def message(offset: int, kind: int, headers: list[tuple[str, bytes]] | None) -> Mock:
    given = {"key": b"k", "value": b"v", "topic": "orders", "partition": 3, "offset": offset, "headers": headers}
    methods = {f"{name}.return_value": value for name, value in given.items()}
    return Mock(**methods, **{"timestamp.return_value": (kind, 1_700_000_000_123)})


def test_a_record_has_the_columns_of_sparks_connector() -> None:
    messages = [message(7, 1, [("trace", b"1"), ("trace", b"2")]), message(8, 2, None)]
    records = record_batch(messages, include_headers=True)
    assert records.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    rows = records.set_column(5, "timestamp", records["timestamp"].cast(pa.int64())).to_pylist()
    common = {"key": b"k", "value": b"v", "topic": "orders", "partition": 3, "timestamp": 1_700_000_000_123}
    traces = [{"key": "trace", "value": b"1"}, {"key": "trace", "value": b"2"}]
    assert rows == [
        {**common, "offset": 7, "timestampType": 0, "headers": traces},
        {**common, "offset": 8, "timestampType": 1, "headers": None},
    ]
    assert "headers" not in record_batch(messages, include_headers=False).schema.names

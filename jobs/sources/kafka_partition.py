"""Reads ranges of a Kafka partition.

The consumer stays open in its worker between batches.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..errors import SourceRecordsLostError, SourceUnavailableError
from ..kafka_client import Held, error_of, is_passing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

_CHUNK = 10_000
_POLL_SECONDS = 0.002
_OPEN_MAX = 64
_LOST = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})
FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # otherwise the end of a range that ends with transaction markers is not noticed
    "auto.offset.reset": "error",  # never skip expired records
}
_DEFAULTS = {
    "group.id": "keyscale",  # required; no group is joined
    "queued.max.messages.kbytes": 8192,  # the limit of prefetched records per partition
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 50,  # a fetch at a new offset waits for the running fetch
}

_open: OrderedDict[tuple[str, str], PartitionReader] = OrderedDict()
"""This worker's readers, most recently used last. Consumers prefetch, so the next batch's records are often here."""


def open_partition(split: str, settings: dict[str, Any], timeout_seconds: float) -> PartitionReader:
    """Returns this worker's reader of a partition."""
    key = (split, repr(sorted(settings.items())))
    reader = _open.get(key)
    if reader is None or reader.is_closed:
        topic, _, number = split.rpartition("/")
        reader = PartitionReader(topic, int(number), {**_DEFAULTS, **settings}, timeout_seconds)
        _open[key] = reader
    _open.move_to_end(key)
    while len(_open) > _OPEN_MAX:
        _open.popitem(last=False)[1].close()
    return reader


class PartitionReader:
    """One consumer of one partition."""

    def __init__(self, topic: str, partition: int, settings: dict[str, Any], timeout_seconds: float) -> None:
        self._topic = topic
        self._partition = partition
        self._timeout_seconds = timeout_seconds
        self._settings = settings
        self._consumer = Held(Consumer(settings))
        self._seeks = 0  # of this consumer
        self._next: int | None = None  # the first offset that has not been returned
        self._nothing_before = 0  # the consumer returns nothing before this offset
        # Events of later ranges, in order. Offsets have gaps, so a chunk as long as a range may hold many records after
        # the range's end, and then the end of the partition.
        self._later: deque[Message] = deque()
        self._closed = Event()

    def read(self, start: int, end: int) -> Iterator[list[Message]]:
        """Yields the records from `start` (inclusive) to `end` (exclusive).

        Offsets have gaps, from markers and compaction.

        Raises:
            SourceRecordsLostError: `start` has expired.
            SourceUnavailableError: Kafka sent nothing for too long, or refused.
        """
        try:
            if self._next != start:
                self._seek(start)
            self._next = None  # a reader that is abandoned half-way must seek
            yield from self._until(end)
        except BaseException as failure:
            self.close()
            if isinstance(failure, KafkaException):
                raise self._failed(error_of(failure)) from None
            raise
        self._next = end

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        if not self.is_closed:
            self._closed.set()
            self._consumer.end()

    def _until(self, end: int) -> Iterator[list[Message]]:
        give_up = time.monotonic() + self._timeout_seconds
        while self._nothing_before < end:
            if not self._later:
                self._later.extend(self._consumed())
            found: list[Message] = []
            while self._later and self._nothing_before < end:
                self._take(end, found)
            if found:
                yield found
                give_up = time.monotonic() + self._timeout_seconds
            elif self._nothing_before < end and time.monotonic() > give_up:
                raise SourceUnavailableError(
                    f"Kafka partition {self._name} sent no record for {self._timeout_seconds:.0f} s"
                )

    def _consumed(self) -> list[Message]:
        """Takes the events that have arrived; waits briefly if none has.

        The client itself never waits: it computes deadlines from the wall clock, and would wait an hour longer after
        the host's clock was set back by an hour.
        """
        there = self._consumer.client.consume(_CHUNK, 0)
        if not there:
            self._closed.wait(_POLL_SECONDS)
        return there

    def _take(self, end: int, found: list[Message]) -> None:
        """Takes the next event, unless it is a record after the range.

        Such a record and all later events stay queued.
        """
        event = self._later[0]
        error, offset = event.error(), event.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() in _LOST and self._seeks > 1:
                self._ask_another()
                return
            if not is_passing(error):
                raise self._failed(error)
        else:
            assert offset is not None  # noqa: S101 - records and ends of partitions have one
            if error is not None or offset >= end:
                self._nothing_before = max(self._nothing_before, offset)
            else:
                found.append(event)
                self._nothing_before = offset + 1
            if error is None and offset >= end:
                return
        self._later.popleft()

    def _seek(self, start: int) -> None:
        self._later.clear()
        self._nothing_before = start
        self._consumer.client.assign([TopicPartition(self._topic, self._partition, start)])
        self._seeks += 1

    def _ask_another(self) -> None:
        """Opens a new consumer, which reports whether the wanted records are lost.

        A consumer fetches ahead. It may report a loss at its old position after a seek: past expired records, or to the
        beginning of a topic that was created again.
        """
        self._consumer.end()
        self._consumer = Held(Consumer(self._settings))
        self._seeks = 0
        self._seek(self._nothing_before)

    def _failed(self, error: KafkaError) -> SourceRecordsLostError | SourceUnavailableError:
        if error.code() in _LOST:
            return SourceRecordsLostError(f"records of Kafka partition {self._name} have expired before they were read")
        return SourceUnavailableError(f"Kafka partition {self._name} cannot be read: {error.name()}")

    @property
    def _name(self) -> str:
        return f"{self._topic}/{self._partition}"


def record_batch(messages: Sequence[Message], *, include_headers: bool) -> pa.RecordBatch:
    """Returns records as columns with the names and types of Spark's connector."""
    stamps = [message.timestamp() for message in messages]
    columns: dict[str, pa.Array] = {
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": pa.array([message.partition() for message in messages], pa.int32()),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": pa.array([at_ms for _, at_ms in stamps], pa.timestamp("ms", "UTC")),
        "timestampType": pa.array([kind - 1 for kind, _ in stamps], pa.int32()),  # librdkafka counts from 1
    }
    if include_headers:
        headers = [_headers(message) for message in messages]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(headers, kind)
    return pa.RecordBatch.from_pydict(columns)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    found: Any = message.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None

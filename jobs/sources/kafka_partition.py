"""Reading one Kafka partition between two offsets, with a consumer that stays open in its worker between batches."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from jobs.errors import SourceRecordsLostError, SourceUnavailableError
from jobs.kafka_client import error_of, is_passing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

_CHUNK = 10_000
_POLL_SECONDS = 0.5
_OPEN_MAX = 64
_LOST = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})
FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # else a range that ends with transaction markers would never be seen to end
    "auto.offset.reset": "error",  # never skip what has expired
}
_DEFAULTS = {
    "group.id": "keyscale",  # has to be there; no group is joined
    "queued.max.messages.kbytes": 8192,  # a partition's records that are fetched ahead
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 50,  # a fetch from another place waits for the one under way
}

_open: OrderedDict[tuple[str, str], PartitionReader] = OrderedDict()
"""This worker's, the last used at the end. A consumer goes on fetching, so the next batch's records are often here."""


def open_partition(split: str, settings: dict[str, Any], timeout_seconds: float) -> PartitionReader:
    """This worker's reader of a partition."""
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
        self._consumer = Consumer(settings)
        self._next: int | None = None  # the offset from which on nothing has been given out
        self._nothing_before = 0  # what comes from the consumer is at this offset or after it
        self._held: Message | None = None  # came, and is of a later range
        self.is_closed = False

    def read(self, start: int, end: int) -> Iterator[list[Message]]:
        """All records from `start` up to and without `end`; offsets may have gaps, for markers and compaction.

        Raises:
            SourceRecordsLostError: `start` has expired.
            SourceUnavailableError: Nothing came for too long, or Kafka refused.
        """
        try:
            if self._next != start:
                self._seek(start)
            self._next = None  # a reader that is given up half-way begins anew
            yield from self._until(end)
        except BaseException as failure:
            self.close()
            if isinstance(failure, KafkaException):
                raise self._failed(error_of(failure)) from None
            raise
        self._next = end

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._consumer.close()

    def _until(self, end: int) -> Iterator[list[Message]]:
        give_up = time.monotonic() + self._timeout_seconds
        while self._nothing_before < end:
            found: list[Message] = []
            for message in self._messages(end):
                self._take(message, end, found)
            if found:
                yield found
                give_up = time.monotonic() + self._timeout_seconds
            elif self._nothing_before < end and time.monotonic() > give_up:
                message_text = f"Kafka partition {self._name} gave no record for {self._timeout_seconds:.0f} s"
                raise SourceUnavailableError(message_text)

    def _messages(self, end: int) -> list[Message]:
        if self._held is not None:
            held, self._held = self._held, None
            return [held]
        # What is there already comes at once; `consume` with a timeout would wait until the chunk is full.
        there = self._consumer.consume(max(1, min(end - self._nothing_before, _CHUNK)), 0)
        if there:
            return there
        one = self._consumer.poll(_POLL_SECONDS)
        return [] if one is None else [one]

    def _take(self, message: Message, end: int, found: list[Message]) -> None:
        error, offset = message.error(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if not is_passing(error):
                raise self._failed(error)
            return
        assert offset is not None  # noqa: S101 - records and ends of partitions have one
        if error is not None:
            self._nothing_before = max(self._nothing_before, offset)
        elif offset < end:
            found.append(message)
            self._nothing_before = offset + 1
        else:
            self._held = message
            self._nothing_before = offset

    def _seek(self, start: int) -> None:
        self._held = None
        self._nothing_before = start
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def _failed(self, error: KafkaError) -> SourceRecordsLostError | SourceUnavailableError:
        if error.code() in _LOST:
            return SourceRecordsLostError(f"records of Kafka partition {self._name} have expired before they were read")
        return SourceUnavailableError(f"Kafka partition {self._name} cannot be read: {error.name()}")

    @property
    def _name(self) -> str:
        return f"{self._topic}/{self._partition}"


def record_batch(messages: Sequence[Message], *, include_headers: bool) -> pa.RecordBatch:
    """Records as columns, named and typed as those of Spark's connector."""
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

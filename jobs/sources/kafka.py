"""Kafka topics as a source: a split is a partition, a position the offset that is read next."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it exports it without saying so

from jobs.errors import InvalidTopologyError, SourceRecordsLostError, SourceUnavailableError
from jobs.kafka_client import client_settings, error_of
from jobs.sources.contract import Source
from jobs.sources.kafka_partition import FIXED, open_partition, record_batch
from jobs.sources.positions import limited

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from jobs.secret import Secret
    from jobs.sources.contract import Position

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_WITHOUT_LEADER = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
    }
)
"""Of partitions that are just being made, or moved to another broker: it does not last."""
_RETRY_SECONDS = 0.2
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_HEADERS = ", headers array<struct<key: string, value: binary>>"


class KafkaSource(Source):
    """The records of topics, with the columns of Spark's own connector; see `StreamEnvironment.read`.

    Offsets are planned before each batch and durable with it in the job's commit log; consumer groups are not used, and
    nothing is committed to Kafka. Partitions that are added later are found, and read from their beginning. Only
    records of committed transactions are read, unless `isolation.level` says otherwise.

    Records that expire before they are read fail the job: it never skips any.

    Args:
        servers: Addresses of brokers, comma separated.
        topics: One topic or several.
        starting: Where a new job begins: at the earliest records, after the latest ones, or with the first that is not older
            than a moment. A job that has positions goes on from them.
        include_headers: Add the column `headers`.
        config: Further settings of librdkafka, such as security.protocol; a password is a Secret.
        timeout_ms: How long brokers may not answer before the batch fails.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        *,
        starting: Literal["earliest", "latest"] | dt.datetime = "earliest",
        include_headers: bool = False,
        config: Mapping[str, str | int | bool | Secret] | None = None,
        timeout_ms: int = 60_000,
    ) -> None:
        if isinstance(starting, dt.datetime) and starting.tzinfo is None:
            message = "a Kafka source starts at a moment with a time zone"
            raise InvalidTopologyError(message)
        self._servers = servers
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._starting = starting
        self._include_headers = include_headers
        self._config = dict(config or {})
        self._timeout_seconds = timeout_ms / 1000
        self._admin: AdminClient | None = None
        client_settings(servers, self._config, FIXED)

    @property
    def schema(self) -> str:
        return _COLUMNS + (_HEADERS if self._include_headers else "")

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        """Raises SourceUnavailableError if a topic is not there, or the brokers are not."""
        new = [each for topic in self._topics for each in self._partitions(topic) if split_name(each) not in known]
        if known or self._starting == "earliest":
            # A partition that is added while the job runs is read as a whole.
            return self._offsets(new, _EARLIEST)
        latest = self._offsets(new, _LATEST)
        if not isinstance(self._starting, dt.datetime):
            return latest
        since = self._offsets(new, OffsetSpec.for_timestamp(int(self._starting.timestamp() * 1000)))
        return {split: offset if offset >= 0 else latest[split] for split, offset in since.items()}

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        """Raises SourceRecordsLostError if a partition ends before its position: it is another one than it was."""
        offsets = {split: _offset(position) for split, position in positions.items()}
        subscribed = [each for each in map(topic_partition, offsets) if each.topic in self._topics]
        ends = self._offsets(subscribed, _LATEST)
        for split, end in ends.items():
            if end < offsets[split]:
                message = f"Kafka partition {split} ends at {end}, and the job has read it up to {offsets[split]}: it was made anew"
                raise SourceRecordsLostError(message)
        return limited(offsets, ends, limit)

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """Raises SourceRecordsLostError if records have expired, SourceUnavailableError if brokers do not answer."""
        settings = client_settings(self._servers, self._config, FIXED)
        partition = open_partition(split, settings, self._timeout_seconds)
        for messages in partition.read(_offset(start), _offset(end)):
            yield record_batch(messages, include_headers=self._include_headers)

    def close(self) -> None:
        self._admin = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}

    def _client(self) -> AdminClient:
        if self._admin is None:
            consumers = ("isolation.level", "group.id")
            users = {name: value for name, value in self._config.items() if name not in consumers}
            self._admin = AdminClient(client_settings(self._servers, users, {}))
        return self._admin

    def _partitions(self, topic: str) -> list[TopicPartition]:
        try:
            found = self._client().list_topics(topic, timeout=self._timeout_seconds).topics[topic]
        except KafkaException as failure:
            raise _unavailable(failure) from None
        if found.error is not None:
            message = f"Kafka topic {topic} cannot be read: {found.error.name()}"
            raise SourceUnavailableError(message)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def _offsets(self, partitions: Sequence[TopicPartition], which: OffsetSpec) -> dict[str, int]:
        """An offset of each partition, in one request a broker."""
        if not partitions:
            return {}
        is_committed = self._config.get("isolation.level", "read_committed") == "read_committed"
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        give_up = time.monotonic() + self._timeout_seconds
        while True:
            try:
                asked = self._client().list_offsets(
                    dict.fromkeys(partitions, which), isolation_level=level, request_timeout=self._timeout_seconds
                )
                return {split_name(partition): answer.result().offset for partition, answer in asked.items()}
            except KafkaException as failure:
                if error_of(failure).code() not in _WITHOUT_LEADER or time.monotonic() > give_up:
                    raise _unavailable(failure) from None
            time.sleep(_RETRY_SECONDS)


def split_name(partition: TopicPartition) -> str:
    """The name of a partition; no topic's name holds a slash."""
    return f"{partition.topic}/{partition.partition}"


def topic_partition(split: str) -> TopicPartition:
    """The partition of a name."""
    topic, _, number = split.rpartition("/")
    return TopicPartition(topic, int(number))


def _offset(position: Position) -> int:
    assert isinstance(position, int)  # noqa: S101 - this source's positions are
    return position


def _unavailable(failure: KafkaException) -> SourceUnavailableError:
    return SourceUnavailableError(f"Kafka does not answer: {error_of(failure).name()}")

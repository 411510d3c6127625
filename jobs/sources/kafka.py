"""The Kafka source.

A split is a partition; a position is the next offset to read.
"""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in __all__

from ..errors import InvalidTopologyError, SourceRecordsLostError, SourceUnavailableError
from ..kafka_client import Held, answered, client_settings, error_of, offset_of, within
from .kafka_partition import FIXED, open_partition, record_batch
from .positions import BatchPositions, limited
from .source import Loss, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from ..secret import Secret
    from .source import LostRecords, Position

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
"""Transient errors of partitions that are being created or moved to another broker."""
_UNKNOWN_PARTITION = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT})
"""Errors of partitions that do not exist, or that brokers do not know yet."""
_FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_RETRY_SECONDS = 0.2
_NEW_TOPIC_SECONDS = 10.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_Answer = TypeVar("_Answer")
_HEADERS = ", headers array<struct<key: string, value: binary>>"


class KafkaSource(Source):
    """The records of Kafka topics, with the columns of Spark's connector.

    See `StreamEnvironment.read`.

    Offsets are planned before each batch and stored in the job's commit log. Consumer groups are not used, and nothing
    is committed to Kafka. Partitions that are added later are found and read from their beginning. Only records of
    committed transactions are read, unless `isolation.level` says otherwise.

    The job fails if records expire before they are read, or if a topic is deleted and created again under the same
    name: a position also holds the topic's id, if the broker provides one. With `lost_records="skip"` it continues with
    the earliest records that still exist; the lost records are counted and reported.

    Args:
        servers: Addresses of brokers, separated by commas.
        topics: One topic or several.
        starting: Where a new job begins: at the earliest records, after the latest records, or with the first record
            that is not older than a time. A job with positions continues from them.
        include_headers: Whether to add the column `headers`.
        config: Further settings of librdkafka, such as security.protocol. Give passwords as a Secret.
        timeout_ms: How long to wait for brokers before the batch fails.
        lost_records: What happens if records are gone before they are read: "fail", or "skip" them.
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
        lost_records: LostRecords = "fail",
    ) -> None:
        if isinstance(starting, dt.datetime) and starting.tzinfo is None:
            raise InvalidTopologyError("the start time of a Kafka source needs a time zone")
        self._servers = servers
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._starting = starting
        self._include_headers = include_headers
        self._config = dict(config or {})
        self._timeout_seconds = timeout_ms / 1000
        self.lost_records = lost_records
        self._admin: Held[AdminClient] | None = None
        client_settings(servers, self._config, FIXED)

    split_columns = ("topic", "partition")

    @property
    def schema(self) -> str:
        return _COLUMNS + (_HEADERS if self._include_headers else "")

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        """Returns the first positions of new partitions.

        Raises SourceUnavailableError if a topic does not exist or the brokers do not answer.
        """
        new = [each for topic in self._topics for each in self._partitions(topic) if split_name(each) not in known]
        if known or self._starting == "earliest":
            # A partition that is added while the job runs is read from its beginning.
            return self._identified(self._offsets(new, _EARLIEST))
        latest = self._offsets(new, _LATEST)
        if not isinstance(self._starting, dt.datetime):
            return self._identified(latest)
        since = self._offsets(new, OffsetSpec.for_timestamp(int(self._starting.timestamp() * 1000)))
        return self._identified({split: offset if offset >= 0 else latest[split] for split, offset in since.items()})

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        """Returns the offsets that the next batch reads up to.

        Raises SourceRecordsLostError if a topic was deleted and created again.
        """
        reached = {split: _KafkaPosition.of(position) for split, position in positions.items()}
        subscribed = [each for each in map(topic_partition, reached) if each.topic in self._topics]
        skips = self.lost_records == "skip"
        earliest = self._offsets(subscribed, _EARLIEST) if skips else {}
        ends = self._offsets(subscribed, _LATEST)
        # Read the ids after the offsets, so that the offsets belong to this topic or to an older topic.
        ids = self._topic_ids({each.topic for each in subscribed})
        starts = {split: position.offset for split, position in reached.items()}
        for split in map(split_name, subscribed):
            before, topic_id = reached[split], ids[topic_partition(split).topic]
            end = ends.get(split)
            if end is None:
                self._check_may_vanish(split, before)
                if not before.is_of(topic_id):  # the batch counts the loss; after it the position is of this topic
                    ends[split], starts[split] = 0, 0
                continue
            is_same = before.is_of(topic_id) and before.offset <= end
            if skips:
                first = earliest.get(split, 0)
                starts[split] = max(before.offset, first) if is_same else first
            elif not is_same:
                raise SourceRecordsLostError(
                    f"the topic of Kafka partition {split} was deleted and created again; the job had read it up to "
                    f"offset {before.offset}, it now ends at {end}"
                )
        planned = limited(starts, ends, limit)
        return {
            split: positions[split]
            if offset == reached[split].offset and reached[split].is_of(ids[topic_partition(split).topic])
            else _KafkaPosition(offset, ids[topic_partition(split).topic]).to_json()
            for split, offset in planned.items()
        }

    def _check_may_vanish(self, split: str, position: _KafkaPosition) -> None:
        """Refuses a topic that has fewer partitions than before.

        A topic gets fewer partitions only if it is deleted and created again.
        """
        if self.lost_records != "skip":
            raise SourceRecordsLostError(
                f"the topic of Kafka partition {split} was deleted and created again with fewer partitions; the job "
                f"had read the partition up to offset {position.offset}"
            )

    def losses(self, ranges: Mapping[str, tuple[Position, Position]]) -> Mapping[str, Loss]:
        """Returns the records that have expired.

        Raises SourceUnavailableError if the brokers do not answer.
        """
        partitions = [topic_partition(split) for split in ranges]
        earliest = self._offsets(partitions, _EARLIEST)
        latest = self._offsets(partitions, _LATEST)
        ids = self._topic_ids({each.topic for each in partitions})
        losses = {}
        for split, (start, end) in ranges.items():
            topic_id = ids[topic_partition(split).topic]
            first, last = _KafkaPosition.of(start), _KafkaPosition.of(end)
            if split not in latest or not last.is_of(topic_id) or last.offset > latest[split]:
                losses[split] = Loss(end, None if first.topic_id != last.topic_id else last.offset - first.offset)
            elif not first.is_of(topic_id) or first.offset > last.offset:
                losses[split] = Loss(_KafkaPosition(earliest[split], topic_id).to_json(), None)
            elif first.offset < earliest[split]:
                left = min(earliest[split], last.offset)
                losses[split] = Loss(_KafkaPosition(left, topic_id).to_json(), left - first.offset)
        return losses

    def earliest(self, splits: Collection[str]) -> Mapping[str, Position]:
        """Returns the earliest offsets that the brokers still have.

        Raises SourceUnavailableError if the brokers do not answer.
        """
        partitions = [each for each in map(topic_partition, splits) if each.topic in self._topics]
        # Read the ids after the offsets, so that the offsets belong to this topic or to an older topic.
        return self._identified(self._offsets(partitions, _EARLIEST))

    def retention_ms(self) -> int | None:
        """Returns the smallest `retention.ms` of the topics that delete old records.

        None: all topics keep records for ever, or the user may not read the topics' settings.

        Raises SourceUnavailableError if the brokers do not answer.
        """
        try:
            settings = self._answered(self._settings, self._timeout_seconds)
        except KafkaException as failure:
            if error_of(failure).code() in _FORBIDDEN:
                return None
            raise _unavailable(failure) from None
        times_ms = [int(each["retention.ms"]) for each in settings if "delete" in each["cleanup.policy"].split(",")]
        return min((each for each in times_ms if each >= 0), default=None)

    def _settings(self) -> list[dict[str, str]]:
        """Returns the settings of the topics. May raise KafkaException."""
        topics = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in self._topics]
        asked = self._client().describe_configs(topics, request_timeout=self._timeout_seconds)
        return [{name: entry.value for name, entry in self._result(each).items()} for each in asked.values()]

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """Yields the records of a partition as Arrow batches.

        Raises SourceRecordsLostError if records have expired, SourceUnavailableError if brokers do not answer.
        """
        settings = client_settings(self._servers, self._config, FIXED)
        partition = open_partition(split, settings, self._timeout_seconds)
        for messages in partition.read(_KafkaPosition.of(start).offset, _KafkaPosition.of(end).offset):
            yield record_batch(messages, include_headers=self._include_headers)

    def records_between(self, start: Position, end: Position) -> int:
        return _KafkaPosition.of(end).offset - _KafkaPosition.of(start).offset

    def close(self) -> None:
        self._admin = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}

    def _client(self) -> AdminClient:
        if self._admin is None:
            consumers = ("isolation.level", "group.id")
            users = {name: value for name, value in self._config.items() if name not in consumers}
            self._admin = Held(AdminClient(client_settings(self._servers, users, {})))
        return self._admin.client

    def _partitions(self, topic: str) -> list[TopicPartition]:
        try:
            # Not every broker knows a new topic yet.
            return self._answered(lambda: self._listed(topic), min(self._timeout_seconds, _NEW_TOPIC_SECONDS))
        except KafkaException as failure:
            raise SourceUnavailableError(f"Kafka topic {topic} cannot be read: {error_of(failure).name()}") from None

    def _listed(self, topic: str) -> list[TopicPartition]:
        """Returns the partitions that a topic has now. May raise KafkaException."""
        metadata = within(
            self._timeout_seconds, lambda: self._client().list_topics(topic, timeout=self._timeout_seconds)
        )
        found = metadata.topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def _identified(self, offsets: Mapping[str, int]) -> dict[str, Position]:
        ids = self._topic_ids({topic_partition(split).topic for split in offsets})
        return {
            split: _KafkaPosition(offset, ids[topic_partition(split).topic]).to_json()
            for split, offset in offsets.items()
        }

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Returns the id of each topic, empty if the broker provides none.

        Ids are never reused.
        """
        if not topics:
            return {}

        def described() -> dict[str, str]:
            asked = self._client().describe_topics(
                TopicCollection(sorted(topics)), request_timeout=self._timeout_seconds
            )
            return {name: str(self._result(answer).topic_id or "") for name, answer in asked.items()}

        try:
            return self._answered(described, self._timeout_seconds)
        except KafkaException as failure:
            raise _unavailable(failure) from None

    def _offsets(self, partitions: Sequence[TopicPartition], which: OffsetSpec) -> dict[str, int]:
        """Returns an offset of each partition, with one request per broker.

        Partitions that their topic does not have are left out.
        """
        if not partitions:
            return {}
        is_committed = self._config.get("isolation.level", "read_committed") == "read_committed"
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED

        def listed() -> dict[str, int]:
            asked = self._client().list_offsets(
                dict.fromkeys(partitions, which), isolation_level=level, request_timeout=self._timeout_seconds
            )
            return self._existing(asked)

        try:
            return self._answered(listed, self._timeout_seconds)
        except KafkaException as failure:
            raise _unavailable(failure) from None

    def _existing(self, asked: Mapping[TopicPartition, Future[Any]]) -> dict[str, int]:
        """Returns the offsets in the brokers' answers.

        Raises KafkaException for a partition that its topic may have.
        """
        offsets: dict[str, int] = {}
        there: dict[str, set[str]] = {}
        for partition, answer in asked.items():
            try:
                offsets[split_name(partition)] = offset_of(answer, self._timeout_seconds)
            except KafkaException as failure:
                if error_of(failure).code() not in _UNKNOWN_PARTITION:
                    raise
                if partition.topic not in there:
                    there[partition.topic] = {split_name(each) for each in self._listed(partition.topic)}
                if split_name(partition) in there[partition.topic]:
                    raise
        return offsets

    def _result(self, answer: Future[_Answer]) -> _Answer:
        return answered(answer, self._timeout_seconds)

    def _answered(self, ask: Callable[[], _Answer], retry_for_seconds: float) -> _Answer:
        """Retries while a topic or partition is being created or moved."""
        give_up = time.monotonic() + retry_for_seconds
        while True:
            try:
                return ask()
            except KafkaException as failure:
                if error_of(failure).code() not in _WITHOUT_LEADER or time.monotonic() > give_up:
                    self._admin = None  # the client itself may be stuck
                    raise
            time.sleep(_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class _KafkaPosition:
    """The next offset to read, and the id of its topic.

    A deleted topic's name can return on another topic; the id tells them apart.
    """

    offset: int
    topic_id: str = ""

    @classmethod
    def of(cls, position: Position) -> _KafkaPosition:
        """Reads a stored position.

        Up to version 0.1 a position was only the offset.
        """
        if isinstance(position, dict):
            return cls(int(position["offset"]), str(position["topic_id"]))
        return cls(int(position))

    def is_of(self, topic_id: str) -> bool:
        """Returns whether the position can belong to the topic of this id.

        An unknown id matches every id.
        """
        return not self.topic_id or not topic_id or self.topic_id == topic_id

    def to_json(self) -> Position:
        return {"offset": self.offset, "topic_id": self.topic_id}


def positions_at(offsets: Mapping[str, Mapping[str, int]]) -> BatchPositions:
    """Returns the positions at the next offsets of partitions, by topic.

    The form of the offsets is that of Spark's connector. The ids of the topics are unknown.
    """
    ends = {
        split_name(TopicPartition(topic, int(number))): _KafkaPosition(offset).to_json()
        for topic, partitions in offsets.items()
        for number, offset in partitions.items()
    }
    return BatchPositions({split: (end, end) for split, end in ends.items()})


def split_name(partition: TopicPartition) -> str:
    """Returns the split name of a partition.

    Topic names contain no slash.
    """
    return f"{partition.topic}/{partition.partition}"


def topic_partition(split: str) -> TopicPartition:
    """Returns the partition of a split name."""
    topic, _, number = split.rpartition("/")
    return TopicPartition(topic, int(number))


def _unavailable(failure: KafkaException) -> SourceUnavailableError:
    return SourceUnavailableError(f"Kafka does not answer: {error_of(failure).name()}")

"""The limits of Kafka topics.

With them a sink finds the records that the brokers would refuse.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # exported, but not in __all__
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from ..kafka_client import Held, answered, error_of, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    from pyspark.sql import Column

RECORD_BYTES_MAX = 1_000_000  # the client's default of message.max.bytes
_RECORD_BYTES = 36  # what the client adds to key, value and headers
_HEADER_BYTES = 10
_BATCH_BYTES = 78  # maximum addition of a batch with one record
_SECONDS = 30.0
_NEW_TOPIC_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_ABSENT = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._INVALID_ARG,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
_UNTOLD = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})


class TopicLimits(msgspec.Struct, frozen=True):
    """The limits of a topic's records.

    Attributes:
        partitions: Number of partitions.
        batch_bytes_max: The largest batch of records, compressed; None if the brokers do not report it.
        needs_keys: Whether each record needs a key, as in a compacted topic.
    """

    partitions: int
    batch_bytes_max: int | None = None
    needs_keys: bool = False


class TopicDirectory:
    """Asks the brokers for the limits of topics.

    Its methods may raise KafkaException.

    Args:
        settings: The settings of a client.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._admin = Held(AdminClient(dict(settings)))
        self._absent: set[str] = set()

    def limits(self, names: Iterable[str]) -> dict[str, TopicLimits]:
        """Returns the limits of the existing topics.

        The brokers may create topics because of the question.
        """
        wanted = [name for name in dict.fromkeys(names) if name]
        partitions = self._partitions(wanted)
        deadline = time.monotonic() + _NEW_TOPIC_SECONDS
        # Not every broker knows a topic that was just created.
        while missing := [name for name in wanted if name not in partitions and name not in self._absent]:
            if time.monotonic() >= deadline:
                break
            for name in missing:
                self._ask_for(name)
            time.sleep(_RETRY_SECONDS)
            partitions |= self._partitions(missing)
        self._absent = set(wanted) - partitions.keys()  # later calls do not wait for these topics again
        return {name: self._limits(count, config) for name, count, config in self._with_configs(partitions)}

    def may_write(self, name: str) -> bool:
        """Returns whether the client's user may write to an existing topic.

        Brokers that do not say which rights the user has count as willing.
        """
        asked = self._admin.client.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=_SECONDS
        )
        operations = answered(asked[name], _SECONDS).authorized_operations
        return not operations or bool({AclOperation.WRITE, AclOperation.ALL} & set(operations))

    def _ask_for(self, name: str) -> None:
        within(_SECONDS, lambda: self._admin.client.list_topics(name, _SECONDS))

    def _partitions(self, names: list[str]) -> dict[str, int]:
        """Returns the numbers of partitions of the existing topics."""
        if not names:
            return {}
        asked = self._admin.client.describe_topics(TopicCollection(names), request_timeout=_SECONDS)
        found = {name: _answer(future, _ABSENT) for name, future in asked.items()}
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    def _with_configs(self, partitions: Mapping[str, int]) -> Iterable[tuple[str, int, Mapping[str, Any]]]:
        if not partitions:
            return
        asked = self._admin.client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in partitions], request_timeout=_SECONDS
        )
        for resource, future in asked.items():
            yield resource.name, partitions[resource.name], _answer(future, _UNTOLD) or {}

    @staticmethod
    def _limits(partitions: int, config: Mapping[str, Any]) -> TopicLimits:
        settings = {name: entry.value for name, entry in config.items()}
        bytes_max = settings.get("max.message.bytes")
        return TopicLimits(
            partitions,
            None if bytes_max is None else int(bytes_max),
            "compact" in str(settings.get("cleanup.policy")).split(","),
        )


class Refusal(msgspec.Struct, frozen=True):
    """The rule by which records are refused.

    The sinks store it with a batch, so that it stays constant for the batch.

    Attributes:
        limits: The limits of the existing topics.
        record_bytes_max: The largest record that the client sends.
    """

    limits: dict[str, TopicLimits]
    record_bytes_max: int = RECORD_BYTES_MAX

    @property
    def batch_bytes_max(self) -> int:
        """The size up to which records may be sent together."""
        known = (each.batch_bytes_max for each in self.limits.values() if each.batch_bytes_max is not None)
        return min(known, default=RECORD_BYTES_MAX)

    def reason(self, topic: Column, partition: Column, key: Column, payload_bytes: Column) -> Column:
        """Returns the reason to refuse a record, without its data.

        The result is null if the record is accepted.
        """
        partitions = self._of_topic(topic, lambda limits: limits.partitions)
        needs_key = self._of_topic(topic, lambda limits: limits.needs_keys)
        bytes_max = self._of_topic(topic, self._payload_bytes_max)
        return (
            F.when(topic.isNull(), "no topic")
            .when(partitions.isNull(), "no such topic")
            .when((partition < 0) | (partition >= partitions), "no such partition")
            .when(needs_key & key.isNull(), "no key, which a compacted topic needs")
            .when(payload_bytes > bytes_max, "too large")
        )

    def _payload_bytes_max(self, limits: TopicLimits) -> int:
        of_client = self.record_bytes_max - _RECORD_BYTES
        return of_client if limits.batch_bytes_max is None else min(of_client, limits.batch_bytes_max - _BATCH_BYTES)

    def _of_topic(self, topic: Column, value: Callable[[TopicLimits], object]) -> Column:
        pairs = [F.lit(each) for name, limits in self.limits.items() for each in (name, value(limits))]
        return F.element_at(F.create_map(*pairs), topic) if pairs else F.lit(None)


def payload_bytes(key: Column, value: Column, headers: Column) -> Column:
    """Returns the size of a record's key, value and headers.

    The size is at least the size that the client computes.
    """
    of_headers = F.aggregate(
        headers,
        F.lit(0),
        lambda total, each: total + _HEADER_BYTES + _length(each["key"]) + _length(each["value"]),
    )
    return _length(key) + _length(value) + F.coalesce(of_headers, F.lit(0))


def _length(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0))


def _answer(future: Future[Any], tolerated: frozenset[int]) -> Any:
    """Returns a future's result; None if it failed with a tolerated error."""
    try:
        return answered(future, _SECONDS)
    except KafkaException as failure:
        if error_of(failure).code() not in tolerated:
            raise
        return None

"""Transactional Kafka producers and markers, for one sink of one job.

Partition 0 of the markers' topic has the markers of the whole sink, each further partition the markers of one share:
the part of every batch that one task writes. Separate partitions keep the open transaction of another producer from
hiding a marker.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in __all__
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from ..kafka_client import Held, answered, error_of, is_away, is_passing, offset_of, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

logger = logging.getLogger(__name__)

_SECONDS = 30.0  # how long the brokers may take to answer, or to take the next record
_RETRY_SECONDS = 0.1
_TOPIC = "keyscale-published-"
_READ_AT_ONCE = 8
_NEWEST = 100  # records; the last marker is usually among them
_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._NOENT,  # a requested partition has no leader
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""Errors for a missing partition, or a partition so new that some brokers do not know it or its leader yet."""
_MARKER_KEY = b"published"
_MARKER_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"}


def markers_topic(name: str) -> str:
    """Returns the topic of a sink's markers.

    A hash distinguishes names that differ only in replaced characters.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{_TOPIC}{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:180]}-{digest}"


def _transactional_id(name: str, share: int | None, claimed: str | None) -> str:
    if claimed is not None:
        return f"keyscale-claim-{claimed}"
    return f"keyscale-{name}" if share is None else f"keyscale-share-{share}-{name}"


def check_transactions(settings: Mapping[str, Any], name: str, timeout_ms: int) -> None:
    """Opens a transactional producer that fences no other producer.

    It has an id of its own.

    May raise KafkaException, if the user may not use such ids or the brokers allow no transaction of that length.
    """
    own = {"transactional.id": f"keyscale-check-{name}", "transaction.timeout.ms": timeout_ms}
    producer = Held(Producer({**settings, **own}))
    within(_SECONDS, lambda: producer.client.init_transactions(_SECONDS))


class TransactionalTopic:
    """A transactional producer that fences its predecessors.

    Opening it fences earlier producers of the same name and aborts their transactions.

    Every method may raise KafkaException. The object is then unusable; whether its last transaction was committed shows
    in the last marker that a new object reads.

    Args:
        settings: The settings of a client.
        name: The name of the job and the sink together.
        timeout_ms: How long a transaction may take.
        share: The share that it writes, which needs a partition of markers; None for the whole sink.
        claimed: Makes the producer a claim of this topic of records, which is "" if the records name it: the claims of
            all jobs on a topic share one name. A claim writes a marker of the whole sink.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        timeout_ms: int,
        share: int | None = None,
        *,
        claimed: str | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._markers = markers_topic(name)
        self._partition = 0 if share is None else share + 1
        if share is None:
            self._create_markers()
        own = {
            "transactional.id": _transactional_id(name, share, claimed),
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
        self._producer = Held(Producer({**self._settings, **own}))
        within(_SECONDS, lambda: self._producer.client.init_transactions(_SECONDS))

    def last_marker(self) -> bytes | None:
        """Returns the last committed marker."""
        end = self._end_of(self._partition)  # only this producer writes there, so no transaction is open
        return _last_before(self._settings, TopicPartition(self._markers, self._partition, 0), end)

    def shares(self) -> int:
        """Returns the number of shares with a partition of markers."""
        admin = Held(AdminClient(self._settings))
        asked = admin.client.describe_topics(TopicCollection([self._markers]), request_timeout=_SECONDS)
        return len(answered(asked[self._markers], _SECONDS).partitions) - 1

    def add_shares(self, shares: int) -> None:
        """Adds partitions of markers until every share has a partition.

        Waits until brokers know the partitions.
        """
        admin = Held(AdminClient(self._settings))
        made = admin.client.create_partitions([NewPartitions(self._markers, shares + 1)])
        try:
            answered(made[self._markers], _SECONDS)
        except KafkaException as failure:
            if error_of(failure).code() != KafkaError.INVALID_PARTITIONS:  # another driver has added them
                raise
        for partition in range(shares + 1):
            self._end_of(partition)

    def write(self, records: Iterable[Mapping[str, Any]], marker: bytes) -> None:
        """Writes records and the marker in one transaction.

        The write takes as long as brokers continue to accept records.
        """
        self._producer.client.begin_transaction()
        for record in records:
            self._produce(record)
        self._produce({"topic": self._markers, "key": _MARKER_KEY, "value": marker, "partition": self._partition})
        left = len(self._producer.client)
        while left:
            before, left = left, within(_SECONDS, lambda: self._producer.client.flush(_SECONDS))
            if left >= before:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        while True:
            try:
                within(_SECONDS, lambda: self._producer.client.commit_transaction(_SECONDS))
            except KafkaException as failure:
                error = error_of(failure)
                if is_away(error) or not error.retriable():
                    raise
            else:
                return

    def _produce(self, record: Mapping[str, Any]) -> None:
        while True:
            try:
                self._producer.client.produce(**record)
            except BufferError:  # the queue is full; polling empties it
                if not within(_SECONDS, lambda: self._producer.client.poll(_SECONDS)):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            else:
                self._producer.client.poll(0)
                return

    def _create_markers(self) -> None:
        # In a variable: a garbage-collected client does not answer.
        admin = Held(AdminClient(self._settings))
        made = admin.client.create_topics([NewTopic(self._markers, 1, config=_MARKER_CONFIG)])
        try:
            answered(made[self._markers], _SECONDS)
        except KafkaException as failure:
            if error_of(failure).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _end_of(self, number: int) -> int:
        """Returns the end of a partition of markers, over all transactions.

        Waits for a partition that was just created.
        """
        give_up = time.monotonic() + _SECONDS
        while True:
            try:
                return _end(self._settings, TopicPartition(self._markers, number), IsolationLevel.READ_UNCOMMITTED)
            except KafkaException as failure:
                if error_of(failure).code() not in _UNKNOWN or time.monotonic() > give_up:
                    raise
            time.sleep(_RETRY_SECONDS)


def last_markers(settings: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Returns the last marker of each sink, with its topic's name.

    The sinks may be running: their markers are only read. Topics that are deleted meanwhile, and topics that the user
    must not read, are left out.
    """
    names = sorted(name for name in _topics(settings) if name.startswith(_TOPIC))
    with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="kafka-marker") as pool:
        found = zip(names, pool.map(lambda name: _last_marker(settings, name), names), strict=True)
        return [(name, marker) for name, marker in found if marker is not None]


def _topics(settings: Mapping[str, Any]) -> Collection[str]:
    admin = Held(AdminClient(dict(settings)))
    return within(_SECONDS, lambda: admin.client.list_topics(timeout=_SECONDS)).topics.keys()


def _last_marker(settings: Mapping[str, Any], topic: str) -> bytes | None:
    give_up = time.monotonic() + _SECONDS
    while True:
        try:
            return _newest_marker(settings, topic)
        except KafkaException as failure:
            error = error_of(failure)
        if error.code() not in _UNKNOWN | {KafkaError.TOPIC_AUTHORIZATION_FAILED}:
            raise KafkaException(error)
        if error.code() not in _UNKNOWN or topic not in _topics(settings):
            logger.warning("the markers in topic %s cannot be read: %s", topic, error.name())
            return None
        if time.monotonic() > give_up:  # it exists, but has no leader
            raise KafkaException(error)
        time.sleep(_RETRY_SECONDS)


def _newest_marker(settings: Mapping[str, Any], topic: str) -> bytes | None:
    end = _end(settings, TopicPartition(topic, 0), IsolationLevel.READ_COMMITTED)
    start = max(0, end - _NEWEST)
    newest = _last_before(settings, TopicPartition(topic, 0, start), end)
    return newest if newest is not None or start == 0 else _last_before(settings, TopicPartition(topic, 0, 0), end)


def _end(settings: Mapping[str, Any], partition: TopicPartition, isolation: IsolationLevel) -> int:
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = Held(AdminClient(dict(settings)))
    asked = admin.client.list_offsets({partition: latest}, isolation_level=isolation, request_timeout=_SECONDS)
    return offset_of(asked[partition], _SECONDS)


def _last_before(settings: Mapping[str, Any], partition: TopicPartition, end: int) -> bytes | None:
    """Returns the last committed record of a partition before an offset."""
    consumer = Held(
        Consumer(
            {
                **settings,
                "group.id": "keyscale",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,  # the end is not reported sooner
            }
        )
    )
    consumer.client.assign([partition])
    found: bytes | None = None
    while True:
        message = within(_SECONDS, lambda: consumer.client.poll(_SECONDS))
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        error, offset = message.error(), message.offset() or 0
        if error is None:
            found = message.value()
        elif error.code() != KafkaError._PARTITION_EOF:
            if not is_passing(error):
                raise KafkaException(error)
        elif offset >= end:
            return found

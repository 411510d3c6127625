"""A transactional Kafka producer with its topic of markers, for one sink of one job."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in __all__

from keyscale.jobs.kafka_client import answered, error_of, is_away, is_passing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECONDS = 30.0  # how long the brokers may take to answer, or to take the next record
_TOPIC = "keyscale-published-"
_MARKER_KEY = b"published"
_MARKER_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"}


def markers_topic(name: str) -> str:
    """Returns the topic of a sink's markers. A hash keeps names apart whose special characters are replaced."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{_TOPIC}{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:180]}-{digest}"


class TransactionalTopic:
    """A transactional producer. Opening it fences earlier producers of the same name and aborts their transactions.

    Every method may raise KafkaException. The object is then unusable; whether its last transaction was committed shows
    in the last marker that a new object reads.

    Args:
        settings: The settings of a client.
        name: The name of the job and the sink together.
        timeout_ms: How long a transaction may take.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, timeout_ms: int) -> None:
        self._settings = dict(settings)
        self._markers = markers_topic(name)
        self._create_markers()
        own = {
            "transactional.id": f"keyscale-{name}",
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
        self._producer = Producer({**self._settings, **own})
        self._producer.init_transactions(_SECONDS)

    def last_marker(self) -> bytes | None:
        """Returns the marker that was committed last."""
        end = self._end_of_markers()
        consumer = Consumer(
            {
                **self._settings,
                "group.id": "keyscale",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.assign([TopicPartition(self._markers, 0, 0)])
            found: bytes | None = None
            while True:
                message = consumer.poll(_SECONDS)
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
        finally:
            consumer.close()

    def write(self, records: Iterable[Mapping[str, Any]], marker: bytes) -> None:
        """Writes records and the marker in one transaction, however long it takes as long as brokers take records."""
        producer = self._producer
        producer.begin_transaction()
        for record in records:
            self._produce(record)
        self._produce({"topic": self._markers, "key": _MARKER_KEY, "value": marker, "partition": 0})
        left = len(producer)
        while left:
            before, left = left, producer.flush(_SECONDS)
            if left >= before:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        while True:
            try:
                producer.commit_transaction(_SECONDS)
            except KafkaException as failure:
                error = error_of(failure)
                if is_away(error) or not error.retriable():
                    raise
            else:
                return

    def _produce(self, record: Mapping[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(**record)
            except BufferError:  # the queue is full; polling drains it
                if not self._producer.poll(_SECONDS):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            else:
                self._producer.poll(0)
                return

    def _create_markers(self) -> None:
        # In a variable: a client that is garbage collected does not answer.
        admin = AdminClient(self._settings)
        made = admin.create_topics([NewTopic(self._markers, 1, config=_MARKER_CONFIG)])
        try:
            answered(made[self._markers], _SECONDS)
        except KafkaException as failure:
            if error_of(failure).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _end_of_markers(self) -> int:
        """Returns the end of the topic, over all transactions; none of this sink's is open any more."""
        partition = TopicPartition(self._markers, 0)
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        admin = AdminClient(self._settings)
        asked = admin.list_offsets(
            {partition: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_SECONDS
        )
        return int(answered(asked[partition], _SECONDS).offset)

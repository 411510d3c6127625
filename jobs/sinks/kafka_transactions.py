"""A transactional producer and the topic of its markers, both of one sink of one job."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it says not so

from jobs.kafka_client import error_of, is_passing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECONDS = 60.0
_TOPIC = "keyscale-published-"
_MARKER_KEY = b"published"
_MARKER_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3600000"}


def markers_topic(name: str) -> str:
    """The topic of a sink's markers. It takes fewer characters than a job's name: the hash keeps two of them apart."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{_TOPIC}{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:180]}-{digest}"


class TransactionalTopic:
    """Opening it ends what an earlier producer of the same name had begun, and shuts that producer out.

    Every method raises KafkaException; after that the object is of no more use, and whether a transaction under way was
    committed is known by the last marker of a new one.

    Args:
        settings: Of a client.
        name: Of the job and the sink together.
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
        """The marker that was committed last."""
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
        """Writes records and the marker: all of it or nothing."""
        producer = self._producer
        producer.begin_transaction()
        for record in records:
            self._produce(record)
        self._produce({"topic": self._markers, "key": _MARKER_KEY, "value": marker, "partition": 0})
        while True:
            try:
                producer.commit_transaction(_SECONDS)
            except KafkaException as failure:
                if not error_of(failure).retriable():
                    raise
            else:
                return

    def _produce(self, record: Mapping[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(**record)
            except BufferError:  # the queue is full: it is sent meanwhile
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _create_markers(self) -> None:
        # In a variable: it answers nothing any more once it is collected.
        admin = AdminClient(self._settings)
        made = admin.create_topics([NewTopic(self._markers, 1, config=_MARKER_CONFIG)])
        failure = made[self._markers].exception(_SECONDS)
        if isinstance(failure, KafkaException) and error_of(failure).code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if failure is not None:
            raise failure

    def _end_of_markers(self) -> int:
        """The end with all transactions, of which none of this sink's is open any more."""
        partition = TopicPartition(self._markers, 0)
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        admin = AdminClient(self._settings)
        asked = admin.list_offsets(
            {partition: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_SECONDS
        )
        return int(asked[partition].result().offset)

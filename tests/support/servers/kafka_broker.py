"""A real Kafka broker for tests: the local stack's, with data and a port of its own."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from keyscale.api.cli.process import free_port
from tests.suite.scratch import ROOT_VARIABLE
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from confluent_kafka import Message

SCRIPT = ROOT / "deploy" / "stack" / "kafka"
JARS = ROOT / ".keyscale" / "stack" / "kafka-jars"  # fetched once for all tests and the local stack
SECONDS = 60.0
STARTS = 3
"""Other programs may take a port, or the one after it, between the search for it and the start."""
TRANSACTIONS = "__transaction_state"
"""The topic in which a broker keeps the state of each transactional id."""


@contextmanager
def running_broker() -> Iterator[Broker]:
    """Starts a broker, fetching its jars at first use; stops it and deletes its data afterwards."""
    with ExitStack() as exits:
        yield _started(exits)


def _started(exits: ExitStack) -> Broker:
    starts_left = STARTS
    while True:
        starts_left -= 1
        directory = exits.enter_context(
            tempfile.TemporaryDirectory(prefix="keyscale-kafka-", dir=os.environ.get(ROOT_VARIABLE))
        )
        broker = Broker(directory, free_port())
        broker.control("install")
        exits.callback(broker.control, "stop")
        try:
            broker.control("start")
        except subprocess.CalledProcessError:
            if not starts_left:
                raise
        else:
            return broker


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, and what tests ask of it.

    Attributes:
        directory: Its data.
        port: Its port on this host.
    """

    directory: str
    port: int

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def control(self, command: Literal["install", "start", "stop"]) -> None:
        """Installs, starts or stops it. It keeps its data and its port."""
        environment = {
            **os.environ,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it does not live for long
            "KEYSCALE_STACK_DIR": self.directory,
            "KEYSCALE_STACK_KAFKA_JARS": str(JARS),
            "KEYSCALE_STACK_KAFKA_PORT": str(self.port),
        }
        subprocess.run([SCRIPT, command], env=environment, check=True, timeout=300)

    def create_topic(self, partitions: int = 1, *, name: str = "", **config: str) -> str:
        """Makes a topic, by default with a name of its own; gives the name."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        admin = self._admin()
        for made in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
            made.result(SECONDS)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        admin = self._admin()
        for made in admin.create_partitions([NewPartitions(topic, total)]).values():
            made.result(SECONDS)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Lets the records before an offset expire."""
        admin = self._admin()
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(SECONDS)

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic, and waits until the broker no longer knows it."""
        admin = self._admin()
        for done in admin.delete_topics([topic]).values():
            done.result(SECONDS)
        wait_until(lambda: topic not in admin.list_topics(timeout=SECONDS).topics, what=f"the end of {topic}")

    def recreate_topic(self, topic: str) -> None:
        """Deletes a topic and creates it again, and waits until readers see the new one."""
        admin = self._admin()
        asked = TopicCollection([topic])

        def identity() -> str | None:
            described = admin.describe_topics(asked)[topic]
            return None if described.exception(SECONDS) else str(described.result().topic_id)

        before = identity()
        for done in admin.delete_topics([topic]).values():
            done.result(SECONDS)

        def is_made() -> bool:  # a topic that was just deleted is there for a moment longer
            return admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(SECONDS) is None

        wait_until(is_made, what=f"a new topic {topic}")
        wait_until(lambda: identity() not in {None, before}, what=f"readers' sight of the new topic {topic}")

    def send(
        self,
        topic: str,
        values: Sequence[str],
        *,
        partition: int = 0,
        key: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(
                topic, value, key, partition, timestamp=timestamp_ms, headers=dict(headers) if headers else None
            )
        assert producer.flush(SECONDS) == 0

    def transactional(self, name: str) -> Producer:
        """A producer that is ready to begin a transaction."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": name})
        producer.init_transactions(SECONDS)
        return producer

    def send_in_transactions(self, topic: str, *, transactions: int, aborted_every: int) -> list[str]:
        """Sends one record per transaction and aborts every n-th; returns the values that were committed, in order.

        Each transaction leaves a marker, so every second offset is a gap, and each aborted one hides a record.
        """
        producer = self.transactional(f"{topic}-writer")
        committed = []
        for number in range(transactions):
            producer.begin_transaction()
            producer.produce(topic, str(number), partition=0)
            if number % aborted_every == 0:
                producer.flush(SECONDS)  # else an aborted record may never have left
                producer.abort_transaction(SECONDS)
            else:
                producer.commit_transaction(SECONDS)
                committed.append(str(number))
        self.settle(topic)
        return committed

    def compact(self, topic: str, records_max: int) -> None:
        """Waits until the broker has compacted a topic to at most so many records; each look adds one record."""

        def is_compacted() -> bool:
            self.send(topic, ["roll"], key="roll")  # a segment is closed by a record that comes after its time
            return len(self.messages(topic)) <= records_max

        wait_until(is_compacted, what=f"the compaction of {topic}")

    def settle(self, topic: str) -> None:
        """Waits until no transaction is open: a commit has happened a moment before its markers are in the topic."""
        admin = self._admin()
        numbers = admin.list_topics(topic, SECONDS).topics[topic].partitions
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}

        def ends(level: IsolationLevel) -> list[int]:
            answers = admin.list_offsets(asked, isolation_level=level, request_timeout=SECONDS)
            return [answers[partition].result().offset for partition in asked]

        wait_until(
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
            what=f"the end of all transactions of {topic}",
        )

    def messages(self, topic: str, *, committed: bool = True) -> list[Message]:
        """All records of a topic, for a reader of committed (or of all) records, once no transaction is open."""
        self.settle(topic)
        settings = {
            "bootstrap.servers": self.servers,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        partitions = list(consumer.list_topics(topic, SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(SECONDS)
            assert message is not None, f"no answer from {topic}"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        consumer.close()
        return found

    def transactional_ids(self) -> dict[str, list[tuple[int, int]]]:
        """The producers that have used each transactional id, as producer id and epoch: each opening adds one."""
        found: dict[str, list[tuple[int, int]]] = {}
        for message in self.messages(TRANSACTIONS):
            key, value = message.key() or b"", message.value()
            length = int.from_bytes(key[2:4])  # after the version of the key
            name = key[4 : 4 + length].decode()
            producers = found.setdefault(name, [])
            if value is not None:  # else the id has expired
                producer = struct.unpack(">qh", value[2:12])  # after the version of the value
                if producer not in producers:
                    producers.append(producer)
        return found

    def values(self, topic: str, *, committed: bool = True) -> list[str]:
        return sorted((message.value() or b"").decode() for message in self.messages(topic, committed=committed))

    def _admin(self) -> AdminClient:
        """Keep it in a variable: it answers nothing any more once it is collected."""
        return AdminClient({"bootstrap.servers": self.servers})

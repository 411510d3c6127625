"""Brokers of Kafka as far as the sink uses them: topics, transactions that fence each other, and markers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from keyscale.jobs.sinks import kafka_transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from confluent_kafka import TopicPartition

    from tests.support.sinks.driver import Host


@dataclass(eq=False, slots=True)
class Transaction:
    """A producer's records that appear together."""

    state: str = "open"


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in a partition's log; one without a value is the end of a transaction."""

    value: bytes | None
    transaction: Transaction


@dataclass(slots=True)
class Brokers:
    """The brokers.

    Attributes:
        host: The host of the driver, which an effect here may be the last one of.
        partitions: The log of each partition, by topic.
        epochs: The epoch of the newest producer of each transactional id.
        open: The open transaction of each transactional id.
    """

    host: Host
    partitions: dict[str, list[list[Entry]]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, Transaction] = field(default_factory=dict)

    def values(self, topic: str) -> list[bytes]:
        """All that a reader of committed transactions sees of a topic."""
        return [
            entry.value
            for log in self.partitions[topic]
            for entry in log[: self.stable_end(log)]
            if entry.value is not None and entry.transaction.state == "committed"
        ]

    def stable_end(self, log: list[Entry]) -> int:
        """The offset up to which no transaction of a partition is open."""
        return next((at for at, entry in enumerate(log) if entry.transaction.state == "open"), len(log))

    def end_transaction(self, transactional_id: str, state: str) -> None:
        transaction = self.open.pop(transactional_id, None)
        if transaction is None:
            return
        transaction.state = state
        for logs in self.partitions.values():
            for log in logs:
                if any(entry.transaction is transaction for entry in log):
                    log.append(Entry(None, transaction))

    def time_out(self, log: list[Entry]) -> None:
        """Aborts transactions that a reader waits for: only producers of killed drivers have left one open."""
        for transactional_id, transaction in list(self.open.items()):
            if any(entry.transaction is transaction for entry in log):
                self.abort(transactional_id)

    def abort(self, transactional_id: str) -> None:
        """Aborts a transaction, as brokers do by themselves: its producer is then fenced."""
        self.epochs[transactional_id] += 1
        self.end_transaction(transactional_id, "aborted")

    def log(self, partition: TopicPartition) -> list[Entry]:
        logs = self.partitions.get(partition.topic)
        if logs is None or partition.partition >= len(logs):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return logs[partition.partition]


class ModelProducer:
    """A transactional producer. An older one of the same id finds out when it commits that it is fenced."""

    def __init__(self, brokers: Brokers, settings: dict[str, Any]) -> None:
        self._brokers = brokers
        self._id = settings["transactional.id"]
        self._epoch = 0
        self._queue: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, _timeout: float) -> None:
        self._brokers.host.act()
        self._epoch = self._brokers.epochs[self._id] = self._brokers.epochs.get(self._id, 0) + 1
        self._brokers.end_transaction(self._id, "aborted")

    def begin_transaction(self) -> None:
        self._queue.clear()

    def produce(self, **record: Any) -> None:
        self._queue.append(record)

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, _timeout: float) -> int:
        for record in self._queue:
            self._brokers.host.act()
            if not self._is_fenced:
                transaction = self._brokers.open.setdefault(self._id, Transaction())
                logs = self._brokers.partitions[record["topic"]]
                logs[record.get("partition", 0)].append(Entry(record["value"], transaction))
        self._queue.clear()
        return 0

    def commit_transaction(self, _timeout: float) -> None:
        self._brokers.host.act()
        if self._is_fenced:
            raise KafkaException(KafkaError(KafkaError._FENCED))
        self._brokers.end_transaction(self._id, "committed")

    @property
    def _is_fenced(self) -> bool:
        return self._brokers.epochs[self._id] != self._epoch


class ModelAdmin:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def create_topics(self, topics: Sequence[Any]) -> dict[str, Future[None]]:
        return {each.topic: self._made(each.topic, each.num_partitions) for each in topics}

    def _made(self, topic: str, partitions: int) -> Future[None]:
        if topic in self._brokers.partitions:
            return failed(KafkaError.TOPIC_ALREADY_EXISTS)
        self._brokers.host.act()
        self._brokers.partitions[topic] = [[] for _ in range(partitions)]
        return done(None)

    def create_partitions(self, wanted: Sequence[Any]) -> dict[str, Future[None]]:
        answers: dict[str, Future[None]] = {}
        for each in wanted:
            logs = self._brokers.partitions[each.topic]
            if len(logs) >= each.new_total_count:
                answers[each.topic] = failed(KafkaError.INVALID_PARTITIONS)
                continue
            self._brokers.host.act()
            logs += [[] for _ in range(each.new_total_count - len(logs))]
            answers[each.topic] = done(None)
        return answers

    def describe_topics(self, _topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        del request_timeout
        return {name: done(SimpleNamespace(partitions=logs)) for name, logs in self._brokers.partitions.items()}

    def list_topics(self, timeout: float) -> Any:
        del timeout
        return SimpleNamespace(topics=self._brokers.partitions)

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], isolation_level: IsolationLevel, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        del request_timeout
        answers: dict[TopicPartition, Future[Any]] = {}
        for partition in wanted:
            log = self._brokers.log(partition)
            is_committed = isolation_level == IsolationLevel.READ_COMMITTED
            offset = self._brokers.stable_end(log) if is_committed else len(log)
            answers[partition] = done(SimpleNamespace(offset=offset))
        return answers


class ModelConsumer:
    """Reads one partition, committed transactions only."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def assign(self, partitions: list[TopicPartition]) -> None:
        [self._partition] = partitions
        self._at = self._partition.offset

    def poll(self, _timeout: float) -> Any:
        log = self._brokers.log(self._partition)
        self._brokers.time_out(log)
        while self._at < len(log):
            self._at += 1
            entry = log[self._at - 1]
            if entry.value is not None and entry.transaction.state == "committed":
                return _Message(None, self._at - 1, entry.value)
        return _Message(KafkaError(KafkaError._PARTITION_EOF), self._at, None)


@dataclass(frozen=True, slots=True)
class _Message:
    found_error: KafkaError | None
    found_at: int
    found: bytes | None

    def error(self) -> KafkaError | None:
        return self.found_error

    def offset(self) -> int:
        return self.found_at

    def value(self) -> bytes | None:
        return self.found


def done(value: Any) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_result(value)
    return answer


def failed(code: int) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    return answer


def use_brokers(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> None:
    """Makes the sink's clients talk to the model."""
    monkeypatch.setattr(kafka_transactions, "Producer", lambda settings: ModelProducer(brokers, settings))
    monkeypatch.setattr(kafka_transactions, "AdminClient", lambda _: ModelAdmin(brokers))
    monkeypatch.setattr(kafka_transactions, "Consumer", lambda _: ModelConsumer(brokers))
    monkeypatch.setattr(kafka_transactions, "within", lambda _, call: call())

"""The product's own sink of Kafka, on brokers in memory whose every effect takes time and may be the last one.

A topic keeps the records of batches that the job has gone back behind. So what readers see is judged by the batch that
wrote it: each row names its try of a batch, and the log says which tries are committed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from keyscale.jobs.sinks import kafka, kafka_output, kafka_transactions
from keyscale.jobs.sinks.kafka import KafkaSink
from tests.simulation.commit_faults import LATE_SECONDS, UNANSWERED_SECONDS, Commit, CommitFaults
from tests.simulation.file_sink import AWAY_SECONDS, EFFECT_SECONDS, SinkHost
from tests.simulation.own_mapping import OwnMapping
from tests.support.sinks.file_system import MappedFrame, ModelDirectory, ModelSession, TableFrame
from tests.support.sinks.kafka_brokers import Brokers, ModelAdmin, ModelConsumer, ModelProducer
from tests.support.sinks.kafka_staging import prepare, records_of_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyscale.jobs.sinks.sink import SinkContext
    from tests.simulation.auditor import CommittedTokens
    from tests.simulation.world import Process, World

TOPIC = "records"
SHARES = 2
OPEN_SECONDS_MAX = 10.0
"""The brokers abort a transaction for which a reader has waited for so long."""


@dataclass(slots=True)
class BrokerHost:
    """The brokers, as a client in any process meets them."""

    model: KafkaSinkModel

    def act(self) -> None:
        """Comes before each effect."""
        world, process = self.model.world, self.model.world.process
        world.moment("sink.effect.before")
        world.sleep(EFFECT_SECONDS)
        if self.model.is_away or process.host.is_cut_off:
            world.sleep(AWAY_SECONDS)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@dataclass(slots=True)
class KafkaSinkModel:
    """A topic that readers of committed transactions look at.

    Attributes:
        world: The world.
        directory: Where batches are staged.
        committed: Returns the tokens that the log has committed.
        faults: Of the brokers.
        is_away: Whether the brokers, and the directory, answer nobody.
        staged_rows: The rows of each try of a batch, by its unique id.
    """

    world: World
    directory: Path
    committed: Callable[[], CommittedTokens]
    faults: CommitFaults = field(default_factory=CommitFaults)
    is_away: bool = False
    staged_rows: dict[str, Counter[tuple[int, ...]]] = field(default_factory=dict)
    brokers: Brokers = field(init=False)

    def __post_init__(self) -> None:
        self.brokers = Brokers(cast("Any", BrokerHost(self)), {TOPIC: [[]]})

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """All that a reader sees of the batches in the job's history."""
        mine = {_unique(token) for token in self.committed().of_history}
        return [row for unique, row in self._visible() if unique in mine]

    @property
    def staged(self) -> list[str]:
        """What is staged, and no reader sees."""
        return sorted(str(path) for path in self.directory.glob("*/*/*"))

    def wrong(self) -> list[str]:
        """Returns what a reader sees of batches outside of the job's history, and must not see."""
        committed = {_unique(token) for token in self.committed().ever}
        found: dict[str, Counter[tuple[int, ...]]] = {}
        for unique, row in self._visible():
            found.setdefault(unique, Counter())[row] += 1
        uncommitted = len(found.keys() - committed)
        doubled = sum((rows - self.staged_rows[unique]).total() for unique, rows in found.items())
        return [
            *([f"readers see {uncommitted} batches that were not committed"] if uncommitted else []),
            *([f"readers see {doubled} records more often than their batch has them"] if doubled else []),
        ]

    def sink_of(self, process: Process) -> PlayedKafkaSink:
        """Returns the sink of a process."""
        session = ModelSession(cast("Any", SinkHost(cast("Any", self), process)), is_local=False)
        process.resources["sink session"] = session
        process.resources["kafka"] = self
        return PlayedKafkaSink(KafkaSink("brokers:9092", TOPIC, staging=str(self.directory)), session, self)

    def _visible(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for value in self.brokers.values(TOPIC):
            *row, unique = json.loads(value).values()
            yield unique, tuple(row)


@dataclass(slots=True)
class PlayedKafkaSink:
    """A `KafkaSink` that takes tables."""

    sink: KafkaSink
    session: ModelSession
    model: KafkaSinkModel
    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: pa.Table, context: SinkContext) -> str:
        columns = [frame.column(name).to_pylist() for name in frame.schema.names]
        self.model.staged_rows[context.unique] = Counter(zip(*columns, strict=True))
        named = frame.append_column("batch", pa.array([context.unique] * frame.num_rows, pa.string()))
        keys = named.column("key")
        remainders = pc.subtract(keys, pc.multiply(pc.divide(keys, SHARES), SHARES))
        parts = tuple(named.filter(pc.equal(remainders, share)) for share in range(SHARES))
        return self.sink.prepare(cast("Any", TableFrame(self.session, parts)), context)

    def publish(self, token: str) -> None:
        self.model.world.moment("sink.publish.before")
        self.sink.publish(token)
        self.model.world.moment("sink.published")

    def discard(self, token: str) -> None:
        self.sink.discard(token)

    def recover(self, context: SinkContext) -> None:
        self.model.world.moment("sink.recover.before")
        self.sink.recover(context)
        self.model.world.moment("sink.recovered")


class PlayedProducer(ModelProducer):
    """A producer of one process; its commits may fail."""

    def __init__(self, model: KafkaSinkModel, settings: dict[str, Any]) -> None:
        super().__init__(model.brokers, settings)
        self._model = model

    def commit_transaction(self, timeout: float) -> None:
        try:
            self._commit(timeout)
        except KafkaException:
            if self._is_fenced:
                self._model.world.reach("a producer was fenced in a transaction")
            raise

    def _commit(self, timeout: float) -> None:
        model, world = self._model, self._model.world
        match model.faults.draw(world):
            case Commit.WELL:
                super().commit_transaction(timeout)
            case Commit.REFUSED:
                model.brokers.host.act()
                raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))
            case Commit.LOST:
                model.brokers.abort(self._id)
                super().commit_transaction(timeout)
            case Commit.UNANSWERED:
                super().commit_transaction(timeout)
                world.sleep(UNANSWERED_SECONDS)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            case Commit.LATE:
                model.brokers.host.act()
                transaction = model.brokers.open.get(self._id)
                world.after(world.chance.choice(LATE_SECONDS), lambda: self._commit_late(transaction))
                world.sleep(UNANSWERED_SECONDS)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _commit_late(self, transaction: object) -> None:
        brokers = self._model.brokers
        if not self._is_fenced and transaction is not None and brokers.open.get(self._id) is transaction:
            brokers.end_transaction(self._id, "committed")


class PlayedConsumer(ModelConsumer):
    """A consumer that waits for open transactions, as long as the brokers let them be open."""

    def __init__(self, model: KafkaSinkModel) -> None:
        super().__init__(model.brokers)
        self._world = model.world

    def poll(self, timeout: float) -> Any:
        log = self._brokers.log(self._partition)
        give_up = self._world.now + OPEN_SECONDS_MAX
        while self._brokers.stable_end(log) < len(log) and self._world.now < give_up:
            self._world.sleep(0.5)
        return super().poll(timeout)


def patches(world: World) -> list[tuple[Any, str, object]]:
    """Returns the replacements that make the product's sink use such brokers."""

    def model() -> KafkaSinkModel:
        found: KafkaSinkModel = world.process.resources["kafka"]
        return found

    return [
        (kafka, "SparkSession", SimpleNamespace(active=lambda: world.process.resources["sink session"])),
        (kafka, "HadoopDirectory", ModelDirectory),
        (kafka, "DataFrame", MappedFrame),
        (KafkaSink, "prepare", prepare),
        (KafkaSink, "_records_of_shares", records_of_shares),
        (kafka_output, "_outputs", OwnMapping(world, "kafka outputs")),
        (kafka_transactions, "Held", lambda client: SimpleNamespace(client=client)),
        (kafka_transactions, "within", lambda _, call: call()),
        (kafka_transactions, "Producer", lambda settings: PlayedProducer(model(), settings)),
        (kafka_transactions, "Consumer", lambda _: PlayedConsumer(model())),
        (kafka_transactions, "AdminClient", lambda _: ModelAdmin(model().brokers)),
    ]


def _unique(token: str) -> str:
    unique: str = json.loads(token)["unique"]
    return unique

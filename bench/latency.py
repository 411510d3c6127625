"""`./keyscale bench latency`: the delay from Kafka records to readers.

It counts from a record's timestamp to its visibility in the sink.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.broker import ADDRESS, broker, create_topic
from bench.environments import kafka_connector_jars
from bench.measure import Contender, Rounds, measure
from bench.table import Table, count, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

OURS = "Keyscale, deduplicate"
SPARK = "Spark dropDuplicates"
SOURCES = {"KafkaSource": "python", "Spark's connector": "connector"}
PARTITIONS = 2
FIGURES = ("p50_ms", "p99_ms", "max_ms")


@dataclass(frozen=True, slots=True)
class LatencySizes:
    """The size of the measurement.

    Attributes:
        rate: Records per second.
        seconds: The duration of sending.
        warm_up_seconds: The part at the start that does not count.
        rounds: The number of runs of each contender.
        cores: The cores of each contender; the broker and the producer share the machine.
    """

    rate: int
    seconds: int
    warm_up_seconds: int
    rounds: int
    cores: int


def run_latency(root: Path, sizes: LatencySizes, only: Sequence[str], say: Callable[[str], None]) -> list[Table]:
    """Runs both contenders beside a broker, in turn; returns the tables."""
    jars_of_connector = kafka_connector_jars(root)
    sources = SOURCES if jars_of_connector else {"KafkaSource": "python"}
    words = [word.lower() for word in only]
    payload = _payload(root / "inputs", sizes)
    finished: list[Rounds] = []
    with broker(root / "stack") as jars:
        for number in range(sizes.rounds):
            contenders = []
            for source, kind in sources.items():
                for name, module in ((OURS, "bench.peers.latency_keyscale"), (SPARK, "bench.peers.latency_spark")):
                    contender = f"{name}, {source}"
                    if words and not any(word in contender.lower() for word in words):
                        continue
                    topic = f"events-{uuid.uuid4().hex}"
                    create_topic(root / "stack", topic, PARTITIONS)
                    of_connector = {"source": kind, "connector_jars": jars_of_connector}
                    options = _options(sizes, topic, jars, payload) | (of_connector if kind == "connector" else {})
                    contenders.append(Contender(contender, module, options))
            ordered = contenders if number % 2 == 0 else contenders[::-1]
            finished.append(measure(ordered, 1, root / "work", sizes.cores, say))
    return [_table(Rounds.joined(finished), sizes, source) for source in sources]


def run_intervals(
    root: Path, sizes: LatencySizes, intervals_ms: Sequence[int], say: Callable[[str], None]
) -> list[Table]:
    """Runs Keyscale beside a broker with each batch interval; returns the table."""
    payload = _payload(root / "inputs", sizes)
    finished: list[Rounds] = []
    with broker(root / "stack") as jars:
        for number in range(sizes.rounds):
            contenders = []
            for interval_ms in intervals_ms:
                topic = f"events-{uuid.uuid4().hex}"
                create_topic(root / "stack", topic, PARTITIONS)
                options = _options(sizes, topic, jars, payload) | {"batch_interval_ms": interval_ms}
                contenders.append(Contender(f"{interval_ms} ms", "bench.peers.latency_keyscale", options))
            ordered = contenders if number % 2 == 0 else contenders[::-1]
            finished.append(measure(ordered, 1, root / "work", sizes.cores, say))
    rounds = Rounds.joined(finished)
    title = f"{sizes.rate:,} records per second from Kafka to files by batch interval; median of {len(rounds)}"
    table = Table(title, ("interval", "p50 ms", "p99 ms", "worst ms", "CPU s", "directories per day"))
    for interval_ms in intervals_ms:
        name = f"{interval_ms} ms"
        per_day = rounds.median(name, "batches") * 86_400 / sizes.seconds
        cells = [rounds.median(name, figure) for figure in (*FIGURES, "cpu_seconds")]
        table.add(name, *map(count, [*cells, per_day]))
    return [table]


def _options(sizes: LatencySizes, topic: str, kafka_jars: Path, payload: Path) -> dict[str, Any]:
    return {
        "topic": topic,
        "address": ADDRESS,
        "source": "python",
        "kafka_jars": str(kafka_jars),
        "connector_jars": "",
        "payload": str(payload),
        "rate": sizes.rate,
        "seconds": sizes.seconds,
        "warm_up_seconds": sizes.warm_up_seconds,
        "cores": sizes.cores,
    }


def _table(rounds: Rounds, sizes: LatencySizes, source: str) -> Table:
    title = f"{sizes.rate:,} records per second from Kafka by {source} to files; median of {len(rounds)}"
    table = Table(title, ("contender", "p50 ms", "p99 ms", "worst ms", "spread of p50", "CPU s"))
    ours, spark = f"{OURS}, {source}", f"{SPARK}, {source}"
    for name in (ours, spark):
        cells = [count(rounds.median(name, figure)) for figure in FIGURES]
        table.add(name, *cells, percent(rounds.spread(name, "p50_ms")), count(rounds.median(name, "cpu_seconds")))
    ratios = [times(rounds.ratio(ours, spark, figure)) for figure in FIGURES]
    table.add("ours over Spark's (target: 1.00x)", *ratios, "-", "-")
    table.notes.append(f"{sizes.seconds} s each, of which the first {sizes.warm_up_seconds} s are not counted")
    return table


def _payload(root: Path, sizes: LatencySizes) -> Path:
    """Returns a file of ids, from which the producer takes random ones.

    About a tenth of its records repeat an earlier id.
    """
    ids = 5 * sizes.rate * sizes.seconds
    path = root / f"latency-{ids}.txt"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        raw = np.random.default_rng(5).bytes(16 * ids)
        lines = [str(uuid.UUID(bytes=raw[at : at + 16], version=4)) for at in range(0, len(raw), 16)]
        path.write_text("\n".join(lines), encoding="ascii")
    return path

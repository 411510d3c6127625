"""A Kafka sink stages each record once, and finds those that the brokers would refuse before it writes any."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale import KafkaSink
from keyscale.jobs.errors import (
    InvalidTopologyError,
    SinkForbiddenError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from keyscale.jobs.sinks import kafka, kafka_output, kafka_topics
from keyscale.jobs.sinks.kafka_topics import TopicLimits
from keyscale.jobs.sinks.sink import SinkContext
from tests.support.sinks.driver import Host
from tests.support.sinks.file_system import MappedFrame, ModelDirectory, use_model
from tests.support.sinks.kafka_brokers import Brokers, ModelProducer, use_brokers
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, PlayedSession, frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COLUMNS = ["key", "value", "topic", "partition", "headers"]
CONTEXT = SinkContext("job", "out", 7, 3, "unique")
LIMITS = {"two": TopicLimits(2, 1000), "compacted": TopicLimits(1, 200, needs_keys=True)}


class Directory:
    """In place of the directory of topics; notes which topics it is asked for."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.failure: Exception | None = None

    def limits(self, names: Iterable[str]) -> dict[str, TopicLimits]:
        self.asked.append(set(names))
        if self.failure is not None:
            raise self.failure
        return {name: LIMITS[name] for name in names if name in LIMITS}


class Letters:
    """A dead letter sink."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.columns: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def prepare(self, frame: PlayedFrame, context: SinkContext) -> str:
        self.columns, self.rows = frame.columns, frame.collect()
        self.calls.append(("prepare", context.uid))
        return "letters"

    def publish(self, token: str) -> None:
        self.calls.append(("publish", token))

    def discard(self, token: str) -> None:
        self.calls.append(("discard", token))

    def recover(self, context: SinkContext) -> None:
        self.calls.append(("recover", context.uid))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> PlayedSession:
    found = PlayedSession(Host())
    for module in (kafka, kafka_topics):
        monkeypatch.setattr(module, "F", played_columns)
    use_model(monkeypatch, found, kafka)
    monkeypatch.setattr(kafka, "DataFrame", MappedFrame)
    monkeypatch.setattr(kafka_output, "_outputs", OrderedDict())
    return found


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch, session: PlayedSession) -> list[dict[str, Any]]:
    """The records that the sink's transactions write; the markers are in the model of the brokers."""
    use_brokers(monkeypatch, Brokers(session.host, {}))
    found: list[dict[str, Any]] = []
    produce = ModelProducer.produce

    def noted(producer: ModelProducer, **record: Any) -> None:
        if record["topic"] in LIMITS:
            found.append(record)
        else:
            produce(producer, **record)

    monkeypatch.setattr(ModelProducer, "produce", noted)
    return found


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    found = Directory()
    monkeypatch.setattr(kafka, "TopicDirectory", lambda _: found)
    return found


def record(value: Any = "v", topic: str | None = "two", **given: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"value": value, "topic": topic} | given


def sink(path: Path, topic: str | None = None, **options: Any) -> KafkaSink:
    return KafkaSink("x:1", topic, staging=f"{path}/staging/", **options)


HEADERS: list[dict[str, Any]] = [{"key": "h" * 20, "value": b"v" * 300}, {"key": None, "value": None}]
REFUSED = [
    (record("no topic", None), "no topic"),
    (record("unknown", "three"), "no such topic"),
    (record("before the first", partition=-1), "no such partition"),
    (record("behind the last", partition=2), "no such partition"),
    (record("keyless", "compacted"), "no key, which a compacted topic needs"),
    (record("x" * 123, "compacted", key="k"), "too large"),
    (record("x" * 500, key="k" * 84, headers=HEADERS), "too large"),
]
ACCEPTED = [
    record("first", partition=0),
    record("last", partition=1),
    record("any"),
    record("x" * 121, "compacted", key="k"),
    record("x" * 499, key="k" * 83, headers=HEADERS),
    record(None, "compacted", key="gone"),
]


def frame(columns: list[str], *partitions: list[dict[str, Any]]) -> Any:
    return reduce(PlayedFrame.union, [frame_of(*rows, schema=columns) for rows in partitions])


def as_staged(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: row[name].encode() for name in ("key", "value") if row[name] is not None}


def test_exactly_the_records_that_the_brokers_would_refuse_are_dead_letters(
    produced: list[dict[str, Any]], directory: Directory, tmp_path: Path
) -> None:
    letters = Letters()
    of = sink(tmp_path, dead_letters=letters)
    rows = [*(row for row, _ in REFUSED), *ACCEPTED]
    token = of.prepare(frame(COLUMNS, rows[::2], [], rows[1::2]), CONTEXT)
    assert of.dead_letters_of(token) == len(REFUSED)
    assert directory.asked == [{"two", "three", "compacted"}]
    assert letters.columns == [*COLUMNS, "error"]
    wanted = [as_staged(row) | {"error": reason} for row, reason in REFUSED]
    assert sorted(letters.rows, key=repr) == sorted(wanted, key=repr)
    stored = msgspec.json.decode(token)
    assert (stored["batch_bytes_max"], stored["refusal"]["record_bytes_max"]) == (200, 1_000_000)
    assert (stored["topic"], stored["staging"], stored["shares"]) == (None, f"{tmp_path}/staging", 3)
    of.publish(token)
    written = [{name: value for name, value in as_staged(row).items() if value is not None} for row in ACCEPTED]
    for row in written:
        if "headers" in row:
            row["headers"] = [(each["key"], each["value"]) for each in HEADERS]
    assert sorted(produced, key=repr) == sorted(written, key=repr)
    assert letters.calls == [("prepare", "out-dead-letters"), ("publish", "letters")]
    assert not list(tmp_path.rglob("part-*"))
    of.discard(token)
    of.recover(CONTEXT)
    assert letters.calls[2:] == [("discard", "letters"), ("recover", "out-dead-letters")]


def test_a_topic_of_the_sink_takes_the_records_without_a_topic(
    produced: list[dict[str, Any]], directory: Directory, tmp_path: Path
) -> None:
    of = sink(tmp_path, "two", writers=1, config={"message.max.bytes": 140})
    of._file_records = 2
    rows = [record(f"{number}", None, partition=number % 2) for number in range(5)]
    token = of.prepare(frame(COLUMNS, [*rows, record("k" * 104, "compacted", key="")]), CONTEXT)
    assert directory.asked == [{"two"}, {"compacted"}]
    stored = msgspec.json.decode(token)
    assert [stored[name] for name in ("batch_bytes_max", "shares", "topic", "refusal")] == [200, 3, "two", None]
    with pytest.raises(SinkRowsRefusedError, match="1 with too large"):
        of.prepare(frame(COLUMNS, [record("k" * 105, None)]), replace(CONTEXT, unique="again"))
    of.publish(token)
    found = [(each["topic"], each["value"], each.get("partition")) for each in produced]
    wanted = [("two", str(number).encode(), number % 2) for number in range(5)]
    assert found == [*wanted, ("compacted", b"k" * 104, None)]
    plain = sink(tmp_path, "two")
    token = plain.prepare(frame(["value"], [{"value": "alone"}]), replace(CONTEXT, batch_id=8))
    plain.publish(token)
    assert produced[6:] == [{"topic": "two", "value": b"alone"}]


@pytest.mark.usefixtures("session")
def test_a_batch_that_is_refused_leaves_nothing_staged(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def staged(of: KafkaSink, *rows: dict[str, Any], columns: list[str] | None = None) -> None:
        of.prepare(frame(columns or COLUMNS, list(rows)), CONTEXT)

    with pytest.raises(SinkRowsRefusedError, match=r"batch 7 would be refused: 1 with no such topic; 2 with no topic$"):
        staged(sink(tmp_path), record("a", None), record("b", None), record("c", "three"), record("d"))
    for topic, columns in ((None, ["value"]), ("two", ["key"]), ("two", ["value", "id"])):
        with pytest.raises(SinkRowsRefusedError, match=f"takes value, key, .* has {', '.join(columns)}$"):
            staged(sink(tmp_path, topic), columns=columns)
    with pytest.raises(SinkRowsRefusedError, match="the topic three does not exist"):
        staged(sink(tmp_path, "three"), record())
    directory.failure = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(SinkUnavailableError, match="output of sink out: _ALL_BROKERS_DOWN"):
        staged(sink(tmp_path), record())
    assert not list(tmp_path.rglob("part-*"))

    def refuse(_: ModelDirectory) -> None:
        raise SinkPublishError("gone") if directory.failure else SinkForbiddenError("no right")

    monkeypatch.setattr(ModelDirectory, "delete", refuse)
    with pytest.raises(SinkUnavailableError):
        staged(sink(tmp_path), record())
    directory.failure = None

    def away(_: ModelDirectory) -> None:
        raise SinkUnavailableError("away")

    monkeypatch.setattr(ModelDirectory, "delete", away)
    with pytest.raises(SinkUnavailableError, match="away"):
        staged(sink(tmp_path), record("a", None))
    monkeypatch.setattr(ModelDirectory, "require_right", refuse)
    with pytest.raises(SinkForbiddenError, match="no right"):
        staged(sink(tmp_path), record("a", None))


def test_a_sink_without_a_writer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTopologyError, match="at least one writer, not 0"):
        sink(tmp_path, "two", writers=0)

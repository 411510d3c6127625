"""What a Kafka source asks its brokers, with which settings, and what becomes of their refusals."""

from __future__ import annotations

import datetime as dt
import pickle
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from keyscale.jobs.errors import InvalidTopologyError, SourceUnavailableError
from keyscale.jobs.sources import kafka
from keyscale.jobs.sources.kafka import KafkaSource, positions_at, split_name, topic_partition
from keyscale.jobs.sources.spark_kafka import SparkKafkaSource

if TYPE_CHECKING:
    from collections.abc import Iterable


class Brokers:
    """Brokers with the topics `a` (two partitions) and `b` (one), and clients that note their settings."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.levels: list[IsolationLevel] = []
        self.refusals: list[int] = []
        self.topics = {"a": 2, "b": 1, "__consumer_offsets": 1}
        self.seconds = 0.0

    def client(self, settings: dict[str, Any]) -> Brokers:
        self.settings.append(settings)
        return self

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def answer(self, value: Any) -> Future[Any]:
        made: Future[Any] = Future()
        if self.refusals:
            made.set_exception(KafkaException(KafkaError(self.refusals.pop())))
        else:
            made.set_result(value)
        return made

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        assert timeout > 0
        error = KafkaError(self.refusals.pop()) if self.refusals else None
        names: Iterable[str] = self.topics if topic is None else [topic]
        found = {
            name: SimpleNamespace(error=error, partitions=dict.fromkeys(range(self.topics[name]))) for name in names
        }
        return SimpleNamespace(topics=found)

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], isolation_level: IsolationLevel, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        assert request_timeout > 0
        self.levels.append(isolation_level)
        return {each: self.answer(SimpleNamespace(offset=10 + each.partition)) for each in wanted}

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        return {name: self.answer(SimpleNamespace(topic_id=f"id-{name}")) for name in topics.topic_names}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(kafka, "AdminClient", found.client)
    monkeypatch.setattr(kafka, "within", lambda _, call: call())
    monkeypatch.setattr(kafka, "time", found)
    return found


def test_positions_have_the_offset_and_the_id_of_their_own_topic(brokers: Brokers) -> None:
    source = KafkaSource("x:1", ["a", "b"], config={"isolation.level": "read_uncommitted", "group.id": "g", "x": 1})
    found = source.discover({"a/0"})
    assert found == {
        "a/1": {"offset": 11, "topic_id": "id-a"},
        "b/0": {"offset": 10, "topic_id": "id-b"},
    }
    assert brokers.settings == [{"bootstrap.servers": "x:1", "log_level": 2, "x": 1}], (
        "one client, no consumer's settings"
    )
    assert brokers.levels == [IsolationLevel.READ_UNCOMMITTED]
    plain = KafkaSource("x:1", "a")
    assert plain.earliest(["a/0", "b/0"]) == {"a/0": {"offset": 10, "topic_id": "id-a"}}
    assert brokers.levels[1:] == [IsolationLevel.READ_COMMITTED]
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - pickled here
    assert (copy._admin, copy._topics, copy._config) == (None, ("a", "b"), source._config)
    source.close()
    source.discover({"a/0", "a/1", "b/0"})
    assert len(brokers.settings) == 3, "a closed source opens a new client"


def test_a_source_of_one_topic_or_several_has_the_columns_of_sparks_connector() -> None:
    source = KafkaSource("x:1", "a", include_headers=True)
    assert source.split_columns == ("topic", "partition")
    assert source.schema.startswith("key binary, value binary, topic string, partition int, offset bigint, timestamp ")
    assert source.schema == KafkaSource("x:1", "a").schema + ", headers array<struct<key: string, value: binary>>"
    assert source.records_between({"offset": 3, "topic_id": "i"}, 10) == 7
    with pytest.raises(InvalidTopologyError, match="needs a time zone"):
        KafkaSource("x:1", "a", starting=dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(InvalidTopologyError, match="cannot set these Kafka settings: enable"):
        KafkaSource("x:1", "a", config={"enable.auto.commit": True})


def test_positions_of_sparks_record_are_of_unknown_topics() -> None:
    found = positions_at({"a/b": {"0": 5, "12": 7}})
    assert found.reached == {
        "a/b/0": {"offset": 5, "topic_id": ""},
        "a/b/12": {"offset": 7, "topic_id": ""},
    }
    assert found.ranges() == []
    assert split_name(topic_partition("a/b/12")) == "a/b/12"


@pytest.mark.parametrize(
    ("code", "tries"),
    [(KafkaError.LEADER_NOT_AVAILABLE, 1), (KafkaError._NOENT, 3), (KafkaError.NOT_LEADER_FOR_PARTITION, 2)],
)
def test_a_partition_that_is_being_created_or_moved_is_asked_for_again(brokers: Brokers, code: int, tries: int) -> None:
    source = KafkaSource("x:1", "b")
    brokers.refusals = [code] * tries
    assert source.discover(()) == {"b/0": {"offset": 10, "topic_id": "id-b"}}
    assert brokers.seconds == pytest.approx(tries * 0.2)
    assert len(brokers.settings) == 1


@pytest.mark.parametrize(
    ("timeout_ms", "waits_seconds"),
    [(60_000, 10.0), (3000, 3.0)],
)
def test_a_topic_that_is_not_there_is_waited_for_shorter_than_brokers(
    brokers: Brokers, timeout_ms: int, waits_seconds: float
) -> None:
    source = KafkaSource("x:1", ["b", "a"], timeout_ms=timeout_ms)
    brokers.refusals = [KafkaError.UNKNOWN_TOPIC_OR_PART] * 999
    with pytest.raises(SourceUnavailableError, match="Kafka topic b cannot be read: UNKNOWN_TOPIC_OR_PART"):
        source.discover(())
    assert brokers.seconds == pytest.approx(waits_seconds, abs=0.5)
    brokers.refusals = [KafkaError._ALL_BROKERS_DOWN]
    waited = brokers.seconds
    with pytest.raises(SourceUnavailableError, match="Kafka does not answer: _ALL_BROKERS_DOWN"):
        source.earliest(["a/0"])
    assert brokers.seconds == waited, "brokers that are away are not asked again in the same batch"
    source.earliest(["a/0"])
    assert len(brokers.settings) == 3, "after each failure the client is replaced"


def test_a_stream_of_sparks_finds_topics_by_its_pattern_and_only_assigned_partitions(brokers: Brokers) -> None:
    by_pattern = SparkKafkaSource("x:1", pattern="a|__c.*", starting="earliest")
    assert list(by_pattern.discover(())) == ["a/0", "a/1"], "Kafka's own topics are left out"
    brokers.topics["ab"] = 1
    assert "ab/0" not in by_pattern.discover({"a/0"}), "the whole name fits the pattern"
    assigned = SparkKafkaSource("x:1", ["a", "b"], partitions={"a": [1], "b": [0, 5]}, starting="earliest")
    assert list(assigned.discover(())) == ["a/1", "b/0"]

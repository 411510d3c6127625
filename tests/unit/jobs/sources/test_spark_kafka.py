"""The driver counts the records of a stream of Spark's own Kafka source by the options and offsets of Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from keyscale.jobs.errors import SourceRecordsLostError
from keyscale.jobs.sources.kafka import KafkaSource, split_name
from keyscale.jobs.sources.spark_kafka import SparkKafkaSource, kafka_of
from keyscale.jobs.sources.waiting_records import WaitingRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVERS = {"kafka.bootstrap.servers": "b:9092"}
ENDS = {"orders": {0: 10, 1: 7}, "orders-eu": {0: 3}, "clicks": {0: 99}}


class Broker:
    """Answers for the topics in `ends`; the earliest offset is 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends = {topic: dict(ends) for topic, ends in ENDS.items()}
        monkeypatch.setattr(SparkKafkaSource, "_names", lambda _: sorted(self.ends))
        monkeypatch.setattr(KafkaSource, "_listed", lambda _, topic: self.partitions(topic))
        monkeypatch.setattr(KafkaSource, "_offsets", lambda _, asked, which: self.offsets(asked, which))
        monkeypatch.setattr(KafkaSource, "_topic_ids", lambda _, topics: dict.fromkeys(topics, "id"))

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self.ends[topic]]

    def offsets(self, asked: Sequence[TopicPartition], which: Any) -> dict[str, int]:
        is_earliest = which._value == -2
        return {split_name(each): 0 if is_earliest else self.ends[each.topic][each.partition] for each in asked}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def waiting(options: dict[str, str], reached: dict[str, dict[str, int]] | None) -> WaitingRecords:
    source = kafka_of(SERVERS | options)
    assert source is not None
    found = WaitingRecords(source, iter(range(0, 9000, 60)).__next__)
    found.ask(None if reached is None else json.dumps(reached), None)
    return found


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("options", "reached", "left"),
    [
        ({"subscribe": "orders, clicks"}, {"orders": {"0": 10, "1": 5}, "clicks": {"0": 99}}, {"orders/1": 2}),
        ({"subscribepattern": "orders.*"}, {"orders": {"0": 10, "1": 7}}, {"orders-eu/0": 3}),
        ({"assign": json.dumps({"orders": [1]})}, {"orders": {"1": 6}}, {"orders/1": 1}),
        ({"subscribe": "orders", "startingoffsets": "earliest"}, None, {"orders/0": 10, "orders/1": 7}),
        ({"subscribe": "orders"}, None, {}),
    ],
)
def test_the_records_after_sparks_offsets_wait(
    options: dict[str, str], reached: dict[str, dict[str, int]] | None, left: dict[str, int]
) -> None:
    found = waiting(options, reached)
    counted = found.by_split(None if reached is None else json.dumps(reached), None)
    assert counted is not None
    assert {split: count for split, count in counted.items() if count} == left


def test_a_partition_that_is_added_later_counts_from_its_beginning(broker: Broker) -> None:
    reached = {"orders": {"0": 10, "1": 7}}
    found = waiting({"subscribe": "orders"}, reached)
    broker.ends["orders"][2] = 4
    found.ask(json.dumps(reached), None)
    counted = found.by_split(json.dumps(reached), None)
    assert counted == {"orders/0": 0, "orders/1": 0, "orders/2": 4}


def test_a_topic_that_was_created_again_is_a_loss(broker: Broker) -> None:
    broker.ends["clicks"][0] = 2
    with pytest.raises(SourceRecordsLostError):
        waiting({"subscribe": "clicks"}, {"clicks": {"0": 99}})


@pytest.mark.parametrize(
    ("options", "config"),
    [
        (
            {"kafka.fetch.max.bytes": "9", "kafka.isolation.level": "read_committed"},
            {"isolation.level": "read_committed"},
        ),
        (
            {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                "username='me' password=\"p;w\";",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": "/ca.pem",
                "kafka.ssl.endpoint.identification.algorithm": "",
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "me",
                "sasl.password": "p;w",
                "ssl.ca.location": "/ca.pem",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
    ],
)
def test_the_settings_of_a_connection_are_those_of_sparks_client(
    options: dict[str, str], config: dict[str, str]
) -> None:
    source = kafka_of(SERVERS | {"subscribe": "orders"} | options)
    assert source is not None
    assert source._config == {"isolation.level": "read_uncommitted"} | config


@pytest.mark.parametrize(
    "options",
    [
        {"kafka.ssl.truststore.location": "/trust.jks"},
        {"kafka.ssl.keystore.location": "/key.jks"},
        {"kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;"},
        {"kafka.sasl.login.callback.handler.class": "aws"},
        {"subscribepattern": "(?<name>orders)(?U)"},
    ],
)
def test_a_connection_that_only_java_knows_is_not_watched(options: dict[str, str]) -> None:
    subscribed: dict[str, str] = {} if "subscribepattern" in options else {"subscribe": "orders"}
    assert kafka_of(SERVERS | subscribed | options) is None


def test_options_without_servers_or_topics_are_of_no_kafka() -> None:
    assert kafka_of({"subscribe": "orders"}) is None
    assert kafka_of(SERVERS) is None


@pytest.mark.parametrize("of", [{"subscribe": "a, b"}, {"assign": '{"a": [1], "b": [0]}'}, {"subscribepattern": "a|b"}])
@pytest.mark.parametrize(
    ("begins", "starting"),
    [({}, "latest"), ({"startingoffsets": "earliest"}, "earliest"), ({"startingoffsets": '{"a":{"1":5}}'}, "latest")],
)
def test_each_way_to_name_topics_keeps_where_the_stream_begins(
    of: dict[str, str], begins: dict[str, str], starting: str
) -> None:
    source = kafka_of({"kafka.bootstrap.servers": "x:1", "kafka.sasl.mechanism": "PLAIN", **of, **begins})
    assert source is not None
    assert (source._servers, source._starting) == ("x:1", starting)
    assert source._config == {"isolation.level": "read_uncommitted", "sasl.mechanism": "PLAIN"}
    assert source._topics == (() if "subscribepattern" in of else ("a", "b"))
    assert source._assigned == ({"a": [1], "b": [0]} if "assign" in of else None)

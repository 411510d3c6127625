"""A Kafka sink learns the limits of its topics from the brokers, and waits only once for a topic that is absent."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from keyscale.jobs.sinks import kafka_topics
from keyscale.jobs.sinks.kafka_topics import RECORD_BYTES_MAX, Refusal, TopicDirectory, TopicLimits

if TYPE_CHECKING:
    from collections.abc import Iterable


class Brokers:
    """Brokers with some topics, and a clock that goes on when a caller waits for them."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, str | None] | int] = {}
        self.asked: list[str] = []
        self.created: dict[str, int] = {}
        self.seconds = 50.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:  # noqa: ARG002
        return {name: self._topic(name) for name in topics.topic_names}

    def describe_configs(self, resources: Iterable[Any], request_timeout: float) -> dict[Any, Future[Any]]:  # noqa: ARG002
        return {each: self._config(self.configs[each.name]) for each in resources}

    def list_topics(self, name: str, timeout: float) -> None:  # noqa: ARG002
        """Creates the topic if the brokers were asked often enough."""
        self.asked.append(name)
        if self.asked.count(name) == self.created.get(name):
            self.configs[name] = {}

    def _topic(self, name: str) -> Future[Any]:
        if name not in self.configs:
            return failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return answer(SimpleNamespace(partitions=[None] * len(name)))

    @staticmethod
    def _config(config: dict[str, str | None] | int) -> Future[Any]:
        if isinstance(config, int):
            return failed(config)
        return answer({name: SimpleNamespace(value=value) for name, value in config.items()})


def answer(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    played = Brokers()
    monkeypatch.setattr(kafka_topics, "AdminClient", lambda _: played)
    monkeypatch.setattr(kafka_topics, "time", played)
    return played


def test_the_limits_of_a_topic_are_the_limits_of_its_own_config(brokers: Brokers) -> None:
    brokers.configs = {
        "a": {"max.message.bytes": "2000", "cleanup.policy": "delete"},
        "bb": {"max.message.bytes": "3000", "cleanup.policy": "compact,delete"},
        "ccc": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "dddd": {"max.message.bytes": None},
    }
    assert TopicDirectory({}).limits(["a", "bb", "", "ccc", "a", "dddd"]) == {
        "a": TopicLimits(1, 2000),
        "bb": TopicLimits(2, 3000, needs_keys=True),
        "ccc": TopicLimits(3),
        "dddd": TopicLimits(4),
    }
    assert brokers.asked == []


def test_no_topic_is_asked_for_without_names(brokers: Brokers) -> None:
    assert TopicDirectory({}).limits([]) == {}
    assert brokers.seconds == 50.0


def test_a_topic_that_the_brokers_create_when_asked_is_waited_for(brokers: Brokers) -> None:
    brokers.created = {"new": 3}
    assert TopicDirectory({}).limits(["new"]) == {"new": TopicLimits(3)}
    assert brokers.asked == ["new"] * 3


def test_an_absent_topic_is_waited_for_once_and_found_when_it_is_there(brokers: Brokers) -> None:
    directory = TopicDirectory({})
    assert directory.limits(["gone"]) == {}
    waited, asked = brokers.seconds, len(brokers.asked)
    assert waited - 50.0 == pytest.approx(5.0, abs=0.3)
    assert directory.limits(["gone"]) == {}
    assert (brokers.seconds, len(brokers.asked)) == (waited, asked)
    brokers.configs["gone"] = {}
    assert directory.limits(["gone"]) == {"gone": TopicLimits(4)}


def test_a_refused_description_fails_the_batch(brokers: Brokers) -> None:
    brokers.configs["a"] = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException):
        TopicDirectory({}).limits(["a"])


@pytest.mark.parametrize(
    ("operations", "may_write"),
    [
        (None, True),
        ([], True),
        ([AclOperation.READ, AclOperation.WRITE], True),
        ([AclOperation.ALL], True),
        ([AclOperation.READ, AclOperation.DESCRIBE], False),
    ],
)
def test_a_user_may_write_to_a_topic_unless_the_brokers_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, operations: list[AclOperation] | None, may_write: bool
) -> None:
    class Admin:
        def describe_topics(self, topics: Any, *, include_authorized_operations: bool, request_timeout: float) -> Any:
            assert (topics.topic_names, include_authorized_operations) == (["a"], True)
            assert request_timeout > 0
            return {"a": answer(SimpleNamespace(authorized_operations=operations))}

    monkeypatch.setattr(kafka_topics, "AdminClient", lambda _: Admin())
    assert TopicDirectory({}).may_write("a") is may_write


@pytest.mark.parametrize(
    ("limits", "batch", "payload"),
    [
        ({}, RECORD_BYTES_MAX, {}),
        ({"a": TopicLimits(1)}, RECORD_BYTES_MAX, {"a": 5000 - 36}),
        ({"a": TopicLimits(1, 3000), "b": TopicLimits(1, 9000)}, 3000, {"a": 3000 - 78, "b": 5000 - 36}),
    ],
)
def test_records_fit_the_client_and_their_topic_and_batches_the_smallest_topic(
    limits: dict[str, TopicLimits], batch: int, payload: dict[str, int]
) -> None:
    refusal = Refusal(limits, record_bytes_max=5000)
    assert refusal.batch_bytes_max == batch
    assert {name: refusal._payload_bytes_max(each) for name, each in limits.items()} == payload

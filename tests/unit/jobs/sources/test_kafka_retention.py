"""How long a Kafka source keeps records follows from the settings of its topics."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale.jobs.errors import SourceUnavailableError
from keyscale.jobs.sources.kafka import KafkaSource


def topic(policy: str, retention_ms: int) -> dict[str, Any]:
    settings = {"cleanup.policy": policy, "retention.ms": str(retention_ms)}
    return {name: SimpleNamespace(value=value) for name, value in settings.items()}


class Admin:
    """Brokers that answer each topic's settings in turn, or fail with a code."""

    def __init__(self, *answers: dict[str, Any] | int) -> None:
        self._answers = answers

    def describe_configs(self, topics: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        assert request_timeout > 0
        asked: dict[Any, Future[Any]] = {}
        for each, answer in zip(topics, self._answers, strict=True):
            asked[each] = Future()
            if isinstance(answer, int):
                asked[each].set_exception(KafkaException(KafkaError(answer)))
            else:
                asked[each].set_result(answer)
        return asked


def retention_ms(*answers: dict[str, Any] | int) -> int | None:
    source = KafkaSource("x:1", [f"t{number}" for number in range(len(answers))], timeout_ms=300)
    source._client = lambda: Admin(*answers)  # type: ignore[method-assign,assignment,return-value]
    return source.retention_ms()


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ([topic("delete", 9000)], 9000),
        ([topic("delete", 9000), topic("compact,delete", 8000)], 8000),
        ([topic("delete", 9000), topic("compact", 10)], 9000),
        ([topic("delete", -1)], None),
        ([topic("delete", -1), topic("delete", 0)], 0),
        ([KafkaError.TOPIC_AUTHORIZATION_FAILED], None),
    ],
)
def test_a_source_keeps_records_for_the_shortest_retention_of_the_topics_that_delete_them(
    topics: list[Any], expected: int | None
) -> None:
    assert retention_ms(*topics) == expected


def test_brokers_that_do_not_answer_say_nothing_about_the_retention() -> None:
    with pytest.raises(SourceUnavailableError):
        retention_ms(KafkaError._TIMED_OUT)

"""Brokers that do not answer are recognised, and not taken for those that refuse."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale.jobs.kafka_client import answered, error_of, is_away


def test_no_answer_in_time_is_an_error_of_brokers_that_are_away() -> None:
    with pytest.raises(KafkaException) as failure:
        answered(Future(), 0.001)
    assert is_away(error_of(failure.value))


def test_an_answer_is_returned_and_a_refusal_raised() -> None:
    answer: Future[int] = Future()
    answer.set_result(7)
    assert answered(answer, 1) == 7
    refusal: Future[int] = Future()
    refusal.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException) as failure:
        answered(refusal, 1)
    assert not is_away(error_of(failure.value))

"""Brokers that do not answer are recognised, and not taken for those that refuse; nobody waits for a client's end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from keyscale.jobs.kafka_client import Held, answered, error_of, is_away, offset_of, within

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_the_offset_of_a_leader_that_died_is_an_error_of_brokers_that_are_away() -> None:
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(offset=0))
    assert offset_of(answer, 1) == 0
    lost: Future[Any] = Future()
    lost.set_result(SimpleNamespace(offset=OFFSET_INVALID))
    with pytest.raises(KafkaException) as failure:
        offset_of(lost, 1)
    assert is_away(error_of(failure.value))


class SlowClient:
    """A client whose end, or call, takes until a test allows it. It tells in which thread it ended."""

    def __init__(self, may_go_on: threading.Event, ended: Future[threading.Thread]) -> None:
        self._may_go_on = may_go_on
        self._ended = ended

    def call(self, answer: int) -> int:
        self._may_go_on.wait()
        return answer

    def refuse(self, code: int) -> int:
        raise KafkaException(KafkaError(code))

    def __del__(self) -> None:
        self._may_go_on.wait()
        self._ended.set_result(threading.current_thread())


@pytest.fixture
def may_go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_clients_call_is_answered_or_refused(may_go_on: threading.Event) -> None:
    held = Held(SlowClient(may_go_on, Future()))
    may_go_on.set()
    assert within(10, lambda: held.client.call(7)) == 7
    with pytest.raises(KafkaException) as failure:
        within(10, lambda: held.client.refuse(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not is_away(error_of(failure.value))


def test_a_clients_call_that_stands_is_given_up_as_if_brokers_were_away(may_go_on: threading.Event) -> None:
    held = Held(SlowClient(may_go_on, Future()))
    with pytest.raises(KafkaException) as failure:
        within(0.01, lambda: held.client.call(7))
    assert is_away(error_of(failure.value))


def test_closing_a_client_does_not_wait_for_its_end(may_go_on: threading.Event) -> None:
    ended: Future[threading.Thread] = Future()
    held = Held(SlowClient(may_go_on, ended))
    held.end()  # returns, though the client's end stands
    held.end()
    assert not ended.done()
    may_go_on.set()
    assert ended.result(10) is not threading.current_thread()


def test_a_client_that_nothing_holds_ends_in_a_thread_of_its_own_also_after_it_has_refused(
    may_go_on: threading.Event,
) -> None:
    ended: Future[threading.Thread] = Future()

    def use() -> None:
        held = Held(SlowClient(may_go_on, ended))
        with pytest.raises(KafkaException):
            within(10, lambda: held.client.refuse(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    gc.disable()  # nothing may keep the client until garbage is looked for
    try:
        use()
        assert not ended.done()
        may_go_on.set()
        assert ended.result(10) is not threading.current_thread()
    finally:
        gc.enable()


AT_ITS_END = """
from keyscale.jobs.kafka_client import Held

class Client:
    def __del__(self):
        pass

class Circle:
    def __init__(self):
        self.me, self.held = self, Held(Client())

kept = Circle()  # garbage that is looked for when the interpreter ends
"""


def test_a_process_ends_that_holds_a_client() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_ITS_END], timeout=60, check=False)
    assert ended.returncode == 0

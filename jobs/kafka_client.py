"""The Kafka client of the source and the sink.

Holds its settings, its time limits and the meaning of its errors.

librdkafka computes deadlines from the wall clock: in its calls, in its threads and when a client ends. If the host's
clock is set back by an hour, a wait takes an hour longer. So every wait here has its own time limit.
"""

from __future__ import annotations

from _thread import start_new_thread
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from .errors import InvalidTopologyError
from .secret import Secret, revealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo

_Answer = TypeVar("_Answer")
_Client = TypeVar("_Client")
_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }
)
"""Errors that the client reports while it retries by itself."""
_FORBIDDEN = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def client_settings(
    servers: str, config: Mapping[str, str | int | bool | Secret], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of a librdkafka client.

    Args:
        servers: Addresses of brokers, separated by commas.
        config: The user's further settings, by librdkafka's names, such as security.protocol.
        fixed: The settings that exactly-once processing depends on.

    Raises:
        InvalidTopologyError: The user sets a fixed setting.
        SecretNotNamedError, MissingSecretError: A secret is not there.
    """
    taken = sorted({*fixed, "bootstrap.servers"} & set(config))
    if taken:
        raise InvalidTopologyError(f"a job cannot set these Kafka settings: {', '.join(taken)}")
    users = {name: revealed(value) if isinstance(value, Secret) else value for name, value in config.items()}
    return {"bootstrap.servers": servers, "log_level": 2, **users, **fixed}


def error_of(failure: KafkaException | KafkaError) -> KafkaError:
    """Returns the error in an exception."""
    if isinstance(failure, KafkaError):
        return failure
    found = failure.args[0] if failure.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL)


def answered(answer: Future[_Answer], timeout_seconds: float) -> _Answer:
    """Returns the brokers' answer.

    Raises:
        KafkaException: They refuse, or have not answered in time.
    """
    try:
        return answer.result(timeout_seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
    finally:
        del answer  # the failure's traceback would keep it, and it keeps the failure


def offset_of(answer: Future[ListOffsetsResultInfo], timeout_seconds: float) -> int:
    """Returns the offset of a partition in the brokers' answer.

    If the partition's leader dies before it answers, the client gives an invalid offset and no error.

    Raises:
        KafkaException: The brokers refuse, have not answered in time, or the leader has died.
    """
    offset = int(answered(answer, timeout_seconds).offset)
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))
    return offset


class Held(Generic[_Client]):
    """Holds a client and ends it in a separate thread.

    The caller does not wait for that thread.

    Args:
        client: The client. Keep no other reference to it, not even a local variable: a traceback may keep local
            variables.
    """

    def __init__(self, client: _Client) -> None:
        self._only = [client]

    @property
    def client(self) -> _Client:
        return self._only[0]

    def end(self) -> None:
        """Ends the client, which cannot be used any more."""
        only, self._only = self._only, []
        if only:
            # Not `threading`: its start waits for the thread, which never runs once the interpreter ends.
            with suppress(RuntimeError):
                start_new_thread(only.clear, ())

    def __del__(self) -> None:
        self.end()


def within(seconds: float, call: Callable[[], _Answer]) -> _Answer:
    """Returns the result of a client call, within a time limit.

    Args:
        seconds: Time limit. After it, the call continues in its thread and its client cannot be used again.
        call: The call. It takes the client from its holder itself: a bound method would keep the client.

    Raises:
        KafkaException: The brokers refuse, or have not answered in time.
    """
    answer: Future[_Answer] = Future()
    Thread(target=_give, args=(answer, call), name="kafka-call", daemon=True).start()
    try:
        return answered(answer, seconds)
    finally:
        del answer


def _give(answer: Future[_Answer], call: Callable[[], _Answer]) -> None:
    try:
        answer.set_result(call())
    except BaseException as failure:  # noqa: BLE001 - the caller's
        answer.set_exception(failure.with_traceback(None))  # the traceback's frames would keep the client


def is_away(error: KafkaError) -> bool:
    """Returns whether no broker answers."""
    return error.code() in _AWAY


def is_forbidden(error: KafkaError) -> bool:
    """Returns whether the brokers refuse for want of a right."""
    return error.code() in _FORBIDDEN


def is_passing(error: KafkaError) -> bool:
    """Returns whether the client retries by itself."""
    return is_away(error) or (error.retriable() and not error.fatal())

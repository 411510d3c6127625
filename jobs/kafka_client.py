"""The Kafka client of the source and the sink: its settings, and the meaning of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from keyscale.jobs.errors import InvalidTopologyError
from keyscale.jobs.secret import Secret, revealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

_Answer = TypeVar("_Answer")
_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }
)
"""Errors that the client reports while it retries by itself."""


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
        MissingSecretError: The environment lacks a secret.
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


def is_away(error: KafkaError) -> bool:
    """Returns whether no broker answers."""
    return error.code() in _AWAY


def is_passing(error: KafkaError) -> bool:
    """Returns whether the client retries by itself."""
    return is_away(error) or (error.retriable() and not error.fatal())

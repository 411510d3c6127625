"""What the Kafka source and the Kafka sink have in common: how brokers are addressed, and what their errors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from jobs.errors import InvalidTopologyError
from jobs.secret import Secret, revealed

if TYPE_CHECKING:
    from collections.abc import Mapping

_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }
)
"""Told while the client tries again by itself."""


def client_settings(
    servers: str, config: Mapping[str, str | int | bool | Secret], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a client of librdkafka.

    Args:
        servers: Addresses of brokers, comma separated.
        config: The user's further settings by librdkafka's names, such as security.protocol.
        fixed: What exactly once rests on.

    Raises:
        InvalidTopologyError: The user sets what is fixed.
        MissingSecretError: A secret is not there.
    """
    taken = sorted({*fixed, "bootstrap.servers"} & set(config))
    if taken:
        message = f"Kafka settings that are not the job's to choose: {', '.join(taken)}"
        raise InvalidTopologyError(message)
    users = {name: revealed(value) if isinstance(value, Secret) else value for name, value in config.items()}
    return {"bootstrap.servers": servers, "log_level": 2, **users, **fixed}


def error_of(failure: KafkaException | KafkaError) -> KafkaError:
    """The error in an exception."""
    if isinstance(failure, KafkaError):
        return failure
    found = failure.args[0] if failure.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL)


def is_passing(error: KafkaError) -> bool:
    """Whether the client itself goes on trying."""
    return error.code() in _PASSING or (error.retriable() and not error.fatal())

"""The addresses of control planes in the object store.

Each replica of the control plane keeps one object, `control-planes/<name>.json`, up to date. A driver reads all of them
when its control plane does not answer. Everyone with write access to the store can add an address, and any program can
listen where a control plane has ended. So a driver sends its token only on a connection that has proved that it knows
the hash of the token (`keyscale.address_proof`).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from keyscale.address_proof import Challenge
from keyscale.state.doors.objects import ObjectNotFoundError
from keyscale.state.doors.paths import CONTROL_PLANES, control_plane

from .messages import Message

if TYPE_CHECKING:
    from keyscale.state.doors.objects import ObjectStore

UNKNOWN = "unknown attempt"
"""The subject of a control plane's proof that it does not know an attempt."""
ADDRESSES_MAX = 100
ADDRESS_BYTES_MAX = 10_000
FORGOTTEN_AFTER_MS = 24 * 3600 * 1000


class ControlAddress(Message):
    """The address of a control plane at one time."""

    version: Literal[1] = 1
    url: str
    recorded_at_ms: int


class Proof(Message):
    """A control plane's proof that it knows a key."""

    proof: str


def publish(store: ObjectStore, name: str, address: ControlAddress) -> None:
    """Writes a replica's address to the store and deletes outdated addresses."""
    store.put(control_plane(name), address.model_dump_json().encode())
    oldest_ms = address.recorded_at_ms - FORGOTTEN_AFTER_MS
    store.delete([info.path for info in store.list(CONTROL_PLANES) if info.modified_ms < oldest_ms])


def withdraw(store: ObjectStore, name: str) -> None:
    """Removes a replica's address from the store."""
    store.delete([control_plane(name)])


def read_addresses(store: ObjectStore) -> list[ControlAddress]:
    """Returns the addresses in the store, newest first.

    Other objects are skipped.
    """
    found = []
    for position, info in enumerate(store.list(CONTROL_PLANES)):
        if position >= ADDRESSES_MAX:
            break
        if info.size_bytes > ADDRESS_BYTES_MAX:
            continue
        try:
            found.append(ControlAddress.model_validate(json.loads(store.get(info.path))))
        except (ObjectNotFoundError, ValidationError, ValueError):
            continue
    return sorted(found, key=lambda address: address.recorded_at_ms, reverse=True)


def attempt_challenge(url: str, attempt: str, token: str) -> Challenge:
    """Returns the question whether a control plane knows an attempt.

    Args:
        url: The control plane's address.
        attempt: The attempt, as `<job>:<number>`.
        token: Its token.
    """
    key = hashlib.sha256(token.encode()).hexdigest()
    return Challenge(url.rstrip("/"), "/driver/proof", key, {"attempt": attempt})


def unknown_challenge(url: str, attempt: str, token: str) -> Challenge:
    """Returns the question whether a control plane's database has lost an attempt.

    The control plane computes the token from its salt. Arguments as for `attempt_challenge`.
    """
    key = hashlib.sha256(token.encode()).hexdigest()
    salt = token.partition(".")[0]
    return Challenge(url.rstrip("/"), "/driver/unknown", key, {"attempt": attempt, "salt": salt}, subject=UNKNOWN)

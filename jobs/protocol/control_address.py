"""The addresses of control planes in the object store.

Each replica of the control plane keeps one object, `control-planes/<name>.json`, up to date. A driver reads all of them
when its control plane does not answer. Everyone with write access to the store can add an address, so a driver verifies
each address first: it sends a nonce, and only a control plane that knows the hash of the attempt's token can compute
the proof. The proof covers the address, so that a proof of another address is worthless. The driver sends the token
itself only after that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from keyscale.state.layout import CONTROL_PLANES, control_plane
from keyscale.state.objects.errors import ObjectNotFoundError

from .messages import Message

if TYPE_CHECKING:
    from keyscale.state.objects.object_store import ObjectStore

ADDRESSES_MAX = 100
ADDRESS_BYTES_MAX = 10_000
FORGOTTEN_AFTER_MS = 24 * 3600 * 1000


class ControlAddress(Message):
    """The address of a control plane at one time."""

    version: Literal[1] = 1
    url: str
    recorded_at_ms: int


class Proof(Message):
    """A control plane's proof that it knows an attempt."""

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


def prove(token_sha256: str, nonce: str, url: str) -> str:
    """Returns the proof of knowing a token's hash, for one address."""
    return hmac.new(token_sha256.encode(), f"{nonce} {url}".encode(), hashlib.sha256).hexdigest()

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from state.objects.errors import ConditionalCreateUnsupportedError, ObjectCorruptError, ObjectExistsError

if TYPE_CHECKING:
    from state.objects.store import ObjectStore


def probe(store: ObjectStore) -> None:
    """Refuse a store on which exactly once cannot be had, before anything relies on it.

    Creates one object twice under `probe/`, reads it back, and removes it.

    Raises:
        ConditionalCreateUnsupportedError: The second create succeeded: the store ignores the condition.
        ObjectCorruptError: The store does not give back what it was given.
        StoreUnavailableError: The store is away.
        StoreRefusedError: The credentials or the bucket are wrong.
    """
    path = f"probe/{uuid.uuid4().hex}"
    store.create(path, b"first")
    try:
        try:
            store.create(path, b"second")
        except ObjectExistsError:
            pass
        else:
            raise ConditionalCreateUnsupportedError("the store overwrote an object that it was told only to create")
        if store.get(path) != b"first":
            raise ObjectCorruptError("the store gave back other bytes than it was given")
    finally:
        store.delete([path])

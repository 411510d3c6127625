"""Object stores: where everything durable is, behind one protocol with a conditional create.

The store on S3 is `state.objects.s3`: `open_store` imports it where it is asked for.
"""

from __future__ import annotations

from state.objects.errors import (
    ConditionalCreateUnsupportedError,
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUrlError,
)
from state.objects.local import LocalObjectStore
from state.objects.opening import open_store
from state.objects.probe import probe
from state.objects.store import ObjectInfo, ObjectStore, check_path

__all__ = [
    "ConditionalCreateUnsupportedError",
    "InvalidObjectPathError",
    "LocalObjectStore",
    "ObjectCorruptError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectStoreError",
    "StoreFullError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "StoreUrlError",
    "check_path",
    "open_store",
    "probe",
]

"""Object stores: opening, access and errors."""

from __future__ import annotations

from ..errors import DiskForbiddenError
from ..objects.errors import (
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreForbiddenError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUrlError,
)
from ..objects.object_store import ObjectInfo, ObjectStore, probe
from ..objects.opening import canonical_url, open_store

__all__ = [
    "DiskForbiddenError",
    "InvalidObjectPathError",
    "ObjectCorruptError",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectTooLargeError",
    "StoreForbiddenError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "StoreUrlError",
    "canonical_url",
    "open_store",
    "probe",
]

"""Object stores: opening, access, grants and errors."""

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
from ..objects.s3_grant import Grant, assume

__all__ = [
    "DiskForbiddenError",
    "Grant",
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
    "assume",
    "canonical_url",
    "open_store",
    "probe",
]

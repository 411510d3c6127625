from __future__ import annotations

from typing import ClassVar, Literal

from state.errors import KeyscaleError


class ObjectStoreError(KeyscaleError):
    """Root of what an object store can fail with."""

    code = "STATE_OBJECT_STORE"
    domain: ClassVar[Literal["user", "external", "internal"]] = "external"
    retryable = False
    advice = "See the message; check the store's address, credentials and health."


class ObjectNotFoundError(ObjectStoreError):
    """No object is at the path."""

    code = "STATE_OBJECT_NOT_FOUND"
    advice = "The object was deleted or never written; restore from another checkpoint."


class ObjectExistsError(ObjectStoreError):
    """A conditional create found its path taken.

    After a lost response the object may be the caller's own from an earlier try: read it back before concluding.
    """

    code = "STATE_OBJECT_EXISTS"
    advice = "Another writer was first; nothing was changed."


class StoreUnavailableError(ObjectStoreError):
    """The store did not answer in time or failed; whether a write took effect is unknown until it is read back."""

    code = "STATE_STORE_UNAVAILABLE"
    retryable = True
    advice = "The store is away or overloaded. It is tried again; check its health if this goes on."


class StoreRefusedError(ObjectStoreError):
    """The store answered and refused: credentials, permission, a bucket that is not there."""

    code = "STATE_STORE_REFUSED"
    domain = "user"
    advice = "Check the bucket's name, the credentials and what they may do."


class StoreFullError(ObjectStoreError):
    """The disk under the store or under a download's target is full or read-only."""

    code = "STATE_STORE_FULL"
    retryable = True
    advice = "Free space on the disk named in the message, or make it writable; work goes on by itself."


class ObjectCorruptError(ObjectStoreError):
    """An object's length or hash is not the one that was recorded when it was written."""

    code = "STATE_CHECKSUM_MISMATCH"
    advice = "The object was damaged in the store; an earlier checkpoint is used where there is one."


class InvalidObjectPathError(ObjectStoreError):
    """A path that is empty, absolute, too long, or climbs out of the store."""

    code = "STATE_OBJECT_PATH_INVALID"
    domain = "internal"
    advice = "This is a defect of Keyscale; please report it."


class StoreUrlError(ObjectStoreError):
    """A store URL that is neither file:///directory nor s3://bucket/prefix."""

    code = "STATE_STORE_URL_INVALID"
    domain = "user"
    advice = "Give file:///absolute/directory or s3://bucket/prefix."


class ConditionalCreateUnsupportedError(ObjectStoreError):
    """The store overwrites where it was told to create only: exactly once cannot be had on it."""

    code = "STATE_STORE_IGNORES_CONDITION"
    domain = "user"
    advice = "Use a store that honours If-None-Match: * on writes (AWS S3, MinIO, Ceph, SeaweedFS in recent versions)."

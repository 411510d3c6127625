"""The errors of object stores."""

from __future__ import annotations

from typing import ClassVar, Literal

from keyscale.errors import KeyscaleError


class ObjectStoreError(KeyscaleError):
    """Root of the errors of object stores."""

    code = "STATE_OBJECT_STORE"
    domain: ClassVar[Literal["user", "external", "internal"]] = "external"
    retryable = False
    advice = "See the message; check the store's address, credentials and health."


class ObjectNotFoundError(ObjectStoreError):
    """The path does not lead to an object."""

    code = "STATE_OBJECT_NOT_FOUND"
    advice = "The object was deleted or never written; restore from another checkpoint."


class ObjectExistsError(ObjectStoreError):
    """A conditional create found an object at its path.

    After a lost response the object may be the caller's own: read it back to find out.
    """

    code = "STATE_OBJECT_EXISTS"
    advice = "Another writer was first; nothing was changed."


class StoreUnavailableError(ObjectStoreError):
    """The store failed or did not answer in time.

    Whether a write took effect is unknown until the object is read back.
    """

    code = "STATE_STORE_UNAVAILABLE"
    retryable = True
    advice = "The store is unreachable or overloaded. Keyscale tries again; check the store's health if this continues."


class StoreRefusedError(ObjectStoreError):
    """The store refused the request: credentials, permission or a missing bucket."""

    code = "STATE_STORE_REFUSED"
    advice = (
        "Check the bucket's name, the credentials and their permissions. On a Spark cluster the workers need the"
        " credentials, too, in their environment."
    )


class StoreForbiddenError(StoreRefusedError):
    """The process lacks a right on the store, or valid credentials."""

    code = "STATE_STORE_FORBIDDEN"
    advice = (
        "Give the user the right that the message names: in a directory, for example, with `chown -R USER DIRECTORY`; "
        "in S3, by correct credentials whose policy allows the request. Then start the job if it has FAILED "
        "(`./keyscale jobs start JOB --wait`)."
    )


class StoreFullError(ObjectStoreError):
    """The disk of the store or download is full or read-only."""

    code = "STATE_STORE_FULL"
    retryable = True
    advice = "Free space on the disk of the store or of the download, or make it writable; the job then continues."


class ObjectCorruptError(ObjectStoreError):
    """An object's length or hash differs from the recorded value."""

    code = "STATE_CHECKSUM_MISMATCH"
    advice = "The object was damaged in the store; an earlier checkpoint is used if there is one."


class ObjectTooLargeError(ObjectStoreError):
    """An object is larger than its reader takes into memory."""

    code = "STATE_OBJECT_TOO_LARGE"
    advice = (
        "Keyscale does not write objects of this size there: find the writer and delete the object. "
        "An earlier checkpoint is then used."
    )


class InvalidObjectPathError(ObjectStoreError):
    """A path is empty, absolute, too long, or leaves the store."""

    code = "STATE_OBJECT_PATH_INVALID"
    domain = "internal"
    advice = "This is a defect of Keyscale; please report it."


class StoreUrlError(ObjectStoreError):
    """A store URL is neither file:///directory nor s3://bucket/prefix."""

    code = "STATE_STORE_URL_INVALID"
    domain = "user"
    advice = "Give file:///absolute/directory or s3://bucket/prefix."


class ConditionalCreateUnsupportedError(ObjectStoreError):
    """The store overwrites an object on a conditional create.

    It cannot guarantee exactly once.
    """

    code = "STATE_STORE_IGNORES_CONDITION"
    domain = "user"
    advice = "Use a store that honours If-None-Match: * on writes (AWS S3, MinIO, Ceph, SeaweedFS in recent versions)."

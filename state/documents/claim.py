"""A claim: the owner of a restored snapshot, as in Flink.

With NO_CLAIM the snapshot stays with its owner: the job's first checkpoint copies its files. With CLAIM the snapshot
becomes the job's: checkpoints reference its files, and retention deletes it once it is subsumed. A claim file beside
the manifest names the owner. It is created conditionally, so that only one of two jobs can claim a savepoint; the
retention of the original owner leaves a claimed savepoint alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.identifiers import JobId

from ..objects.errors import ObjectExistsError, ObjectNotFoundError
from .checked_document import decode_document, document_bytes, encode_document
from .manifest import SnapshotKind

if TYPE_CHECKING:
    from ..objects.object_store import ObjectStore
    from .manifest import Manifest

CLAIM_NAME = "claim.json"
KIND = "claim"
FORMAT_VERSION = 1


class ClaimMode(StrEnum):
    """The owner of a snapshot after a restore."""

    NO_CLAIM = "no_claim"
    CLAIM = "claim"


class Claim(msgspec.Struct, frozen=True):
    """The content of the file beside a claimed manifest."""

    job_id: JobId


class ClaimRefusedError(KeyscaleError):
    """A snapshot cannot be claimed, or another job has claimed it already."""

    code = "STATE_CLAIM_REFUSED"
    domain = "user"
    advice = "Start from a savepoint that no other job has claimed; or take a new savepoint and start from that."


def claim_path(manifest_path: str) -> str:
    """Returns the path of a manifest's claim."""
    return f"{manifest_path.rpartition('/')[0]}/{CLAIM_NAME}"


def take_claim(store: ObjectStore, manifest: Manifest, job_id: JobId) -> None:
    """Makes a savepoint the job's own; a repeated call is harmless.

    Raises:
        ClaimRefusedError: Another job has claimed it, or it is another job's checkpoint, which shares files with other
            checkpoints.
    """
    if manifest.kind is not SnapshotKind.SAVEPOINT:
        if manifest.job_id == job_id:
            return  # its own
        raise ClaimRefusedError(
            f"{manifest.path} is a checkpoint that shares files with other checkpoints of job {manifest.job_id!r}; "
            "only a savepoint can be claimed"
        )
    try:
        store.create(claim_path(manifest.path), encode_document(KIND, FORMAT_VERSION, Claim(job_id)))
    except ObjectExistsError:
        check_claim(store, manifest, job_id)


def check_claim(store: ObjectStore, manifest: Manifest, job_id: JobId) -> None:
    """Refuses a snapshot that another job has claimed and may delete."""
    owner = claimant_of(store, manifest.path)
    if owner not in {None, job_id}:
        raise ClaimRefusedError(f"job {owner!r} has claimed {manifest.path}")


def claimant_of(store: ObjectStore, manifest_path: str) -> JobId | None:
    """Returns the job that has claimed a snapshot, or None.

    Raises:
        DocumentCorruptError, FormatTooNewError: The claim cannot be read.
        StoreUnavailableError: The store is unavailable.
    """
    claim = read_claim(store, claim_path(manifest_path))
    return None if claim is None else claim.job_id


def read_claim(store: ObjectStore, path: str) -> Claim | None:
    """Returns the claim at a path; None if it does not exist."""
    try:
        return decode_document(document_bytes(store, path, KIND), KIND, FORMAT_VERSION, Claim, path)
    except ObjectNotFoundError:
        return None

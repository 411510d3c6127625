"""Who owns the files of a snapshot that a job is restored from: after Flink's claim modes.

With NO_CLAIM the snapshot stays its owner's: the job's first checkpoint takes copies, and needs nothing of it afterwards. With
CLAIM it becomes the job's: checkpoints refer to its files as they are, and retention deletes it once it is subsumed. A mark beside
the manifest, created on condition that there is none, says whose it is: of two jobs that claim one savepoint one is refused,
and the clean-up of the job that took it leaves it alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from state.errors import KeyscaleError
from state.identifiers import JobId
from state.manifest import SnapshotKind
from state.objects import ObjectExistsError, ObjectNotFoundError
from state.sealed import seal, unseal

if TYPE_CHECKING:
    from state.manifest import Manifest
    from state.objects import ObjectStore

CLAIM_NAME = "claim.json"
KIND = "claim"
FORMAT_VERSION = 1


class ClaimMode(StrEnum):
    """Whose a snapshot is once a job is restored from it."""

    NO_CLAIM = "no_claim"
    CLAIM = "claim"


class Claim(msgspec.Struct, frozen=True):
    """The mark beside a claimed manifest."""

    job_id: JobId


class ClaimRefusedError(KeyscaleError):
    """A snapshot cannot become the job's, or is another job's already."""

    code = "STATE_CLAIM_REFUSED"
    domain = "user"
    advice = "Start from a savepoint that no other job has claimed; or take a new savepoint and start from that."


def claim_path(manifest_path: str) -> str:
    """Where the mark of a manifest's claim is."""
    return f"{manifest_path.rpartition('/')[0]}/{CLAIM_NAME}"


def take_claim(store: ObjectStore, manifest: Manifest, job_id: JobId) -> None:
    """Make a savepoint the job's. Taking it again is harmless.

    Raises:
        ClaimRefusedError: It is another job's by now, or a checkpoint of another job, whose files that job's other checkpoints
            may need.
    """
    if manifest.kind is not SnapshotKind.SAVEPOINT:
        if manifest.job_id == job_id:
            return  # its own
        raise ClaimRefusedError(
            f"{manifest.path} is a checkpoint that shares files with others of job {manifest.job_id!r}; a savepoint can be claimed"
        )
    try:
        store.create(claim_path(manifest.path), seal(KIND, FORMAT_VERSION, Claim(job_id)))
    except ObjectExistsError:
        check_claim(store, manifest, job_id)


def check_claim(store: ObjectStore, manifest: Manifest, job_id: JobId) -> None:
    """Refuse to start from a snapshot that another job has claimed, which may delete it any time.

    Raises:
        ClaimRefusedError: Another job has.
    """
    claim = read_claim(store, claim_path(manifest.path))
    if claim is not None and claim.job_id != job_id:
        raise ClaimRefusedError(f"job {claim.job_id!r} has claimed {manifest.path}")


def read_claim(store: ObjectStore, path: str) -> Claim | None:
    """The mark at a path; None if there is none."""
    try:
        return unseal(store.get(path), KIND, FORMAT_VERSION, Claim, path)
    except ObjectNotFoundError:
        return None

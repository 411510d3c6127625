"""A job's snapshots, for readers: manifests, claims, verification and deletion."""

from __future__ import annotations

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import claimant_of
from ..documents.job_counters import NOTHING_COUNTED, JobCounters
from ..documents.job_record import (
    JobRecord,
    RecordedArtifact,
    RecordedOrigin,
    RecordedRestore,
    read_job_record,
    write_job_record,
)
from ..documents.manifest import UID_CHARACTERS_MAX, FileHandle, Manifest, SnapshotKind, read_manifest
from ..documents.source_positions import SourcePositions, read_positions
from ..inspection.job_facts import (
    files_problem,
    find_snapshot,
    first_commit_after,
    has_committed,
    keeps_output,
    newest_attempt,
    newest_counters,
)
from ..inspection.verification import Verification, verify
from ..retention.deleted_job import DeletedObjects, delete_job_objects
from ..retention.deletion_plan import RetentionError
from ..retention.snapshot_deletion import SnapshotObjects, delete_snapshot, snapshot_objects

__all__ = [
    "NOTHING_COUNTED",
    "UID_CHARACTERS_MAX",
    "DeletedObjects",
    "DocumentCorruptError",
    "FileHandle",
    "FormatTooNewError",
    "JobCounters",
    "JobRecord",
    "Manifest",
    "RecordedArtifact",
    "RecordedOrigin",
    "RecordedRestore",
    "RetentionError",
    "SnapshotKind",
    "SnapshotObjects",
    "SourcePositions",
    "Verification",
    "claimant_of",
    "delete_job_objects",
    "delete_snapshot",
    "files_problem",
    "find_snapshot",
    "first_commit_after",
    "has_committed",
    "keeps_output",
    "newest_attempt",
    "newest_counters",
    "read_job_record",
    "read_manifest",
    "read_positions",
    "snapshot_objects",
    "verify",
    "write_job_record",
]

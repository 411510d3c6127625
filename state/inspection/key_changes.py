"""Reads the changes of one key from a job's changelogs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..documents.log_entries import BatchCommitted
from ..layout import Layout
from ..log.commit_log import CommitLog
from ..log.resolution import last_rewind
from ..objects.errors import ObjectNotFoundError
from .changelog_mutations import changelog_mutations
from .state_point import check_own_changelog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from keyscale.identifiers import JobId, OperatorUid

    from ..objects.object_store import ObjectStore


class KeyChange(NamedTuple):
    """A change of one stored entry.

    Attributes:
        batch_id: The batch that made it.
        attempt: The attempt that committed the batch.
        committed_at_ms: When the batch was committed.
        family: The state, or the timers.
        key: The stored key.
        value: The stored value; None: the batch removed the entry.
    """

    batch_id: int
    attempt: int
    committed_at_ms: int
    family: str
    key: bytes
    value: bytes | None


def key_changes(
    store: ObjectStore,
    job_id: JobId,
    uid: OperatorUid,
    *,
    key_group: int,
    ranges: Mapping[str, tuple[bytes, bytes]],
    scratch: Path,
) -> Iterator[KeyChange]:
    """Yields a key's changes in the stored batches, the oldest first.

    The history begins with the oldest batch of the log that was not cleaned up, or with the last rewind.

    Args:
        store: The job's object store.
        job_id: The job.
        uid: The operator.
        key_group: The key group of the key.
        ranges: The ranges of stored keys with the key's entries, by state.
        scratch: An existing directory for temporary files.

    Raises:
        ForeignStateError: The log names objects of another job.
        KeyscaleError: The store does not answer, or an object is missing or damaged.
    """
    known: dict[tuple[str, bytes], bytes] = {}
    for commit in _commits(store, job_id):
        for handle in commit.operators.get(uid, []):
            if handle is None or key_group not in handle.key_groups:
                continue
            check_own_changelog(handle, job_id)
            try:
                mutations = list(changelog_mutations(store, handle, known=known, scratch=scratch, ranges=ranges))
            except ObjectNotFoundError:
                continue  # cleaned up, before its log entry
            for family, key, value in mutations:
                if value is None:
                    known.pop((family, key), None)
                else:
                    known[family, key] = value
                yield KeyChange(commit.batch_id, commit.attempt, commit.committed_at_ms, family, key, value)


def _commits(store: ObjectStore, job_id: JobId) -> Iterator[BatchCommitted]:
    entries = CommitLog(store, Layout(job_id)).stored()
    for _, entry in entries[last_rewind(entries) or 0 :]:
        if isinstance(entry, BatchCommitted):
            yield entry

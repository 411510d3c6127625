"""The history of the output that a job's sinks keep.

A job that goes back to a snapshot takes the later output back, for good. A snapshot of the history that the job has
left then needs output that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import UnsetType

from ..documents.rewind import Rewind
from ..documents.state_version import NO_BATCH
from .resolution import resolve

if TYPE_CHECKING:
    from ..documents.log_entries import AttemptOpened
    from ..documents.manifest import Manifest
    from .commit_log import CommitLog

OutputHistory: TypeAlias = tuple[Rewind, ...] | UnsetType
"""The rewinds in the history of the output, the oldest first; unset if an earlier version has rewound the job."""


def output_history(log: CommitLog) -> OutputHistory:
    """Returns the history of the output that the sinks keep now."""
    newest = log.newest_rewind()
    if newest is None:
        return ()
    if newest.restored_from is None and log.has_commit_since_rewind():
        return (Rewind(newest.attempt, NO_BATCH),)
    return newest.output_history


def output_history_after(opening: AttemptOpened, manifest: Manifest | None, log: CommitLog) -> OutputHistory:
    """Returns the history of the output after a rewind.

    Args:
        opening: The opening of the attempt, before it is in the log.
        manifest: The snapshot to go back to; None: the output stays until the first batch.
        log: The job's log.
    """
    if manifest is None:
        return output_history(log)
    return resolve(manifest, [(1, opening)], log.job_id).rewinds


def keeps_output_of(history: OutputHistory, manifest: Manifest) -> bool:
    """Returns whether sinks keep the output of their job's snapshot.

    Pure. Two histories share all batches up to the first rewind that only one of them has.
    """
    if isinstance(history, UnsetType) or not isinstance(manifest.forked_from, UnsetType):
        return True
    of_snapshot = () if isinstance(manifest.rewinds, UnsetType) else manifest.rewinds
    return all(rewind.batch_id >= manifest.batch_id for rewind in {*history} ^ {*of_snapshot})

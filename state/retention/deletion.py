"""Deletes files that retained checkpoints do not need.

It gathers the facts for `plan_deletion` and carries out the plan.

An older attempt's driver that is still alive does no harm. It checks whether it is fenced after it has listed the
manifests and before it deletes. A new attempt first opens, which fences the older driver, and then chooses the newest
manifest to start from. So either the older driver notices the fence, or it retains the manifest that the new attempt
starts from. Files that the new attempt uploads carry its number, so they are never in the older driver's list. The
older driver checks again before each group of objects, so that it soon ends.

An object cannot be written again between its last check and its deletion: each name belongs to one checkpoint or task
(`keyscale.state.layout`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.failpoints import failpoint

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import CLAIM_NAME, read_claim
from ..documents.manifest import Manifest, read_manifest
from ..layout import MANIFEST_NAME, Layout
from ..log.commit_log import CommitLog
from ..objects.errors import ObjectNotFoundError
from .deletion_plan import RetentionFacts, claimed_by, directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.identifiers import JobId

    from ..objects.object_store import ObjectInfo, ObjectStore
    from .deletion_plan import DeletionPlan

logger = logging.getLogger(__name__)

DELETES_AT_A_TIME = 500
LISTINGS = 5
"""Tries to list and read the manifests. A manifest that all of them miss is unreadable, not deleted."""


def gather_facts(store: ObjectStore, job_id: JobId, now_ms: int, log: CommitLog | None = None) -> RetentionFacts:
    """Reads the input of a plan.

    Objects are listed before manifests are read; later objects are not considered.

    Args:
        store: The object store.
        job_id: The job.
        now_ms: Milliseconds since the epoch, as close to the store's clock as possible.
        log: The job's log. Passes that share one read each opening once.

    Raises:
        DocumentCorruptError: An opening or a claim is damaged.
        StoreUnavailableError: The store is unavailable.
    """
    log = log or CommitLog(store, Layout(job_id))
    for _ in range(LISTINGS - 1):
        facts, is_complete = _gather(store, job_id, now_ms, log)
        if is_complete:
            return facts
    return _gather(store, job_id, now_ms, log)[0]


def _gather(store: ObjectStore, job_id: JobId, now_ms: int, log: CommitLog) -> tuple[RetentionFacts, bool]:
    """Returns the facts, and whether every listed manifest was found."""
    layout = Layout(job_id)
    objects = list(store.list(layout.job))
    positions = [position for info in objects if (position := layout.log_position(info.path)) is not None]
    openings = log.openings(positions)
    foreign = {directory_of(path) for path in claimed_by(openings) if not path.startswith(layout.job)}
    objects += [info for directory in sorted(foreign) for info in store.list(directory)]
    manifests: dict[str, Manifest] = {}
    unreadable: set[str] = set()
    is_complete = True
    for info in objects:
        if info.path.rpartition("/")[2] != MANIFEST_NAME or not info.path.startswith(
            (layout.checkpoints, layout.savepoints, *foreign)
        ):
            continue
        try:
            manifests[info.path] = read_manifest(store, info.path)
        except (DocumentCorruptError, FormatTooNewError):
            unreadable.add(info.path)
        except ObjectNotFoundError:  # its user has deleted it: a newer manifest, not listed yet, may name its files
            unreadable.add(info.path)
            is_complete = False
    lost = {
        directory_of(info.path)
        for info in objects
        if info.path.startswith(layout.savepoints) and info.path.endswith(f"/{CLAIM_NAME}")
        if (claim := read_claim(store, info.path)) is not None and claim.job_id != job_id
    }
    facts = RetentionFacts(job_id, objects, manifests, frozenset(unreadable), openings, now_ms, frozenset(lost))
    return facts, is_complete


@dataclass(frozen=True, slots=True)
class Deleted:
    """The objects that a pass has deleted."""

    objects: int = 0
    size_bytes: int = 0

    def plus(self, objects: Sequence[ObjectInfo]) -> Deleted:
        """Returns the sum with further objects."""
        return Deleted(self.objects + len(objects), self.size_bytes + sum(info.size_bytes for info in objects))


def delete_planned(store: ObjectStore, plan: DeletionPlan, is_overtaken: Callable[[], bool] = lambda: False) -> Deleted:
    """Deletes the objects of a plan; may die at any step.

    The next plan deletes the rest. An object that was written again since it was listed is kept.

    Args:
        store: The object store.
        plan: The objects.
        is_overtaken: Whether a newer attempt has begun: then the deletion ends.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    deleted = Deleted()
    if is_overtaken():
        return deleted
    store.delete([info.path for info in plan.manifests])
    deleted = deleted.plus(plan.manifests)
    failpoint("retention.manifests_deleted")
    for start in range(0, len(plan.files), DELETES_AT_A_TIME):
        if is_overtaken():
            break
        some = plan.files[start : start + DELETES_AT_A_TIME]
        unchanged = [info for info in some if store.head(info.path) == info]
        store.delete([info.path for info in unchanged])
        deleted = deleted.plus(unchanged)
        failpoint("retention.files_deleted")
    if deleted.objects:
        logger.info("deleted %d objects, %d bytes", deleted.objects, deleted.size_bytes)
    return deleted

"""Deletes files that no retained checkpoint needs: gathers the facts for `plan_deletion` and carries out its plan.

An older attempt's driver that is still alive does no harm. It checks whether it is fenced after it has listed the
manifests and before it deletes. A new attempt first opens, which fences the older one, and then chooses the newest
manifest to start from. So either the older driver notices that it is fenced, or the manifest that the new attempt
starts from is among those that the older driver retains. Files that the new attempt uploads carry its number, so they
are never in the older driver's list. It checks again before each group of objects, so that it soon ends.

Between the last look at an object and its deletion nobody can write it again: no two checkpoints and no two tasks use
one name (`keyscale.state.layout`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import CLAIM_NAME, read_claim
from ..documents.manifest import Manifest, read_manifest
from ..layout import MANIFEST_NAME, Layout
from ..log.commit_log import CommitLog
from ..objects.errors import ObjectNotFoundError
from ..syncpoint import reach
from .deletion_plan import RetentionFacts, claimed_by, directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..identifiers import JobId
    from ..objects.object_store import ObjectInfo, ObjectStore
    from .deletion_plan import DeletionPlan

logger = logging.getLogger(__name__)

_DELETES_AT_A_TIME = 500
_LISTINGS = 5
"""A manifest that is listed again and again and never found was not deleted in the meantime: it cannot be read."""


def gather_facts(store: ObjectStore, job_id: JobId, now_ms: int, log: CommitLog | None = None) -> RetentionFacts:
    """Reads the input of a plan. Objects are listed before manifests are read; later objects are not considered.

    Args:
        store: The object store.
        job_id: The job.
        now_ms: Milliseconds since the epoch, as close to the store's clock as possible.
        log: The job's log. If passes share one, each opening is read once.

    Raises:
        DocumentCorruptError: An opening or a claim is damaged.
        StoreUnavailableError: The store is unavailable.
    """
    log = log or CommitLog(store, Layout(job_id))
    for _ in range(_LISTINGS - 1):
        facts, is_complete = _gather(store, job_id, now_ms, log)
        if is_complete:
            return facts
    return _gather(store, job_id, now_ms, log)[0]


def _gather(store: ObjectStore, job_id: JobId, now_ms: int, log: CommitLog) -> tuple[RetentionFacts, bool]:
    """Returns the facts, and whether each manifest that was listed was found."""
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
        except ObjectNotFoundError:  # its user has deleted it: a newer one, not listed yet, may name its files
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
        """Returns it with further objects."""
        return Deleted(self.objects + len(objects), self.size_bytes + sum(info.size_bytes for info in objects))


def delete_planned(store: ObjectStore, plan: DeletionPlan, is_overtaken: Callable[[], bool] = lambda: False) -> Deleted:
    """Deletes what was planned. It may die at any step; the next plan deletes the rest.

    An object that was written again since it was listed is not deleted.

    Args:
        store: The object store.
        plan: The objects.
        is_overtaken: Whether a newer attempt has begun: then nothing more is deleted.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    deleted = Deleted()
    if is_overtaken():
        return deleted
    store.delete([info.path for info in plan.manifests])
    deleted = deleted.plus(plan.manifests)
    reach("retention.manifests_deleted")
    for start in range(0, len(plan.files), _DELETES_AT_A_TIME):
        if is_overtaken():
            break
        some = plan.files[start : start + _DELETES_AT_A_TIME]
        unchanged = [info for info in some if store.head(info.path) == info]
        store.delete([info.path for info in unchanged])
        deleted = deleted.plus(unchanged)
        reach("retention.files_deleted")
    if deleted.objects:
        logger.info("deleted %d objects, %d bytes", deleted.objects, deleted.size_bytes)
    return deleted

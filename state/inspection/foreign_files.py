"""Files in a manifest that do not belong to its job.

A job writes its own manifests. A reader with more rights than the job, such as the control plane, must not read another
job's files for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import claimant_of
from ..layout import MANIFEST_NAME, Layout, LocationError, job_of_manifest

if TYPE_CHECKING:
    from ..documents.manifest import Manifest
    from ..objects.object_store import ObjectStore


def foreign_files(store: ObjectStore, manifest: Manifest) -> list[str]:
    """Returns the paths of a manifest's files that are foreign.

    Files in the job's folder and in savepoints that it has claimed are its own.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    own = Layout(manifest.job_id).job
    others = [file.path for file in manifest.files() if not file.path.startswith(own)]
    manifests = {path: _manifest_beside(path) for path in others}
    claimed = {path for path in set(manifests.values()) if path is not None and _is_claimed(store, path, manifest)}
    return [path for path in others if manifests[path] not in claimed]


def _manifest_beside(path: str) -> str | None:
    """Returns the manifest of the savepoint that contains a file, or None."""
    found = "/".join([*path.split("/")[:3], MANIFEST_NAME])
    try:
        job_of_manifest(found)
    except LocationError:
        return None
    return found


def _is_claimed(store: ObjectStore, path: str, manifest: Manifest) -> bool:
    try:
        owner = claimant_of(store, path)
    except (DocumentCorruptError, FormatTooNewError):
        return False
    return owner == manifest.job_id

"""Choosing what to start from: the newest checkpoint or savepoint whose files are all there, and loudly if it is an older one."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.errors import KeyscaleError
from state.layout import MANIFEST_NAME, Layout
from state.log import BaseDisownedError, CommitLog, LogGapError, ResumePoint, log_start, resolve
from state.manifest import Manifest, read_manifest
from state.objects import ObjectNotFoundError
from state.sealed import DocumentCorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state.identifiers import JobId
    from state.objects import ObjectStore

logger = logging.getLogger(__name__)
_READERS = 16
_SAME_TIME_MS = 5_000  # stores tell an object's time to a second or so


class NothingUsableError(KeyscaleError):
    """The job has checkpoints, and not one of them can be used."""

    code = "STATE_NO_USABLE_CHECKPOINT"
    domain = "external"
    advice = "Restore the missing or damaged objects from a backup of the store; the message says what is wrong with the newest."


@dataclass(frozen=True, slots=True)
class SkippedManifest:
    """A checkpoint that cannot be started from, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Base:
    """What to start from.

    Attributes:
        manifest: None for a job that has neither checkpoint nor savepoint: it starts from its log alone.
        skipped: Newer ones that cannot be used. The job loses nothing by that as long as its log is complete.
    """

    manifest: Manifest | None
    skipped: tuple[SkippedManifest, ...] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """Where a job's history stands, and what its state is put together from."""

    base: Base
    resume: ResumePoint


def recover(store: ObjectStore, job_id: JobId, hint: str | None, *, excluded: Iterable[str] = ()) -> Recovery:
    """Find the newest base that the job's history goes on from, and where the history stands.

    Bases that are damaged, or whose history was disowned by a rewind, are passed over. Arguments as `choose_base`.

    Raises:
        NothingUsableError: There are manifests, and the job can go on from none of them.
        HistoryError, StateSchemaMismatchError, DocumentCorruptError: The log cannot be made sense of.
        LogGapError: There is no manifest, and the log does not begin at its beginning.
    """
    log = CommitLog(store, Layout(job_id))
    passed_over = set(excluded)
    while True:
        base = choose_base(store, job_id, hint, excluded=passed_over)
        try:
            return Recovery(base, resolve(base.manifest, log.history(base.manifest), job_id))
        except (BaseDisownedError, LogGapError) as error:
            if base.manifest is None:
                raise
            logger.warning("passing over %s: %s", base.manifest.path, error)
            passed_over.add(base.manifest.path)


def choose_base(store: ObjectStore, job_id: JobId, hint: str | None, *, excluded: Iterable[str] = ()) -> Base:
    """Find what a job's attempt starts from. Call it after the attempt has been opened in the log.

    Only then is it certain that no older attempt's clean-up deletes what this returns; see `state.retention`.

    Args:
        store: The object store.
        job_id: The job.
        hint: Path of the manifest that the control plane knows of: perhaps not the newest one by now, perhaps of another
            job. None if it knows of none.
        excluded: Paths of manifests that have been tried in vain, such as one of whose files is damaged.

    Raises:
        NothingUsableError: There are manifests, and none of them can be used.
        FormatTooNewError: A newer version wrote one of them: an older one must not be used behind its back.
    """
    checkpoints, savepoints = _published(store, job_id)
    search = _Search(store, job_id, hint, excluded)
    search.read([*checkpoints, *([hint] if hint is not None and hint not in checkpoints else [])])
    newest = search.newest_usable()
    # A savepoint that is older than a usable checkpoint is never the newest: it need not even be read.
    since_ms = 0 if newest is None else checkpoints.get(newest.path, 0) - _SAME_TIME_MS
    search.read(path for path, modified_ms in savepoints.items() if modified_ms >= since_ms)
    newest = search.newest_usable()
    if newest is not None:
        for skip in search.skipped.values():
            logger.error("skipping %s: %s", skip.path, skip.reason)
    elif search.skipped:
        raise NothingUsableError("; ".join(f"{skip.path}: {skip.reason}" for skip in [*search.skipped.values()][:3]))
    return Base(newest, tuple(search.skipped.values()))


class _Search:
    """For the newest manifest that can be used: what was read so far, and what cannot be used of it."""

    def __init__(self, store: ObjectStore, job_id: JobId, hint: str | None, excluded: Iterable[str]) -> None:
        self.skipped = {path: SkippedManifest(path, "the job cannot go on from it") for path in sorted(excluded)}
        self._store = store
        self._job_id = job_id
        self._hint = hint
        self._manifests: dict[str, Manifest] = {}

    def read(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.skipped or path in self._manifests:
                continue
            try:
                self._manifests[path] = read_manifest(self._store, path)
            except (DocumentCorruptError, ObjectNotFoundError) as error:
                self.skipped[path] = SkippedManifest(path, str(error))

    def newest_usable(self) -> Manifest | None:
        ranked = sorted(
            self._manifests.values(), key=lambda found: _rank(found, self._job_id, self._hint), reverse=True
        )
        for manifest in ranked:
            if manifest.path in self.skipped:
                continue
            missing = missing_files(self._store, manifest)
            if not missing:
                return manifest
            reason = f"{len(missing)} files are missing or cut off, such as {missing[0]}"
            self.skipped[manifest.path] = SkippedManifest(manifest.path, reason)
        return None


def missing_files(store: ObjectStore, manifest: Manifest) -> list[str]:
    """Paths of a manifest's files that are not there in their recorded length. (Hashes are checked as files are read.)."""
    files = list({file.path: file for file in manifest.files()}.values())
    with ThreadPoolExecutor(_READERS, thread_name_prefix="head") as readers:
        found = list(readers.map(lambda file: store.head(file.path), files))
    return [
        file.path for file, info in zip(files, found, strict=True) if info is None or info.size_bytes != file.size_bytes
    ]


def _rank(manifest: Manifest, job_id: JobId, hint: str | None) -> tuple[int, int, bool, int]:
    """The higher, the sooner it is started from.

    Of several forms of one savepoint (see `state.map_migration`) that is the first one, unless another is hinted at.
    """
    return (log_start(manifest, job_id), manifest.checkpoint_id, manifest.path == hint, -manifest.created_at_ms)


def _published(store: ObjectStore, job_id: JobId) -> tuple[dict[str, int], dict[str, int]]:
    """The job's checkpoints and its savepoints: paths of their manifests, and when they were published."""
    layout = Layout(job_id)
    checkpoints, savepoints = (
        {info.path: info.modified_ms for info in store.list(prefix) if info.path.rpartition("/")[2] == MANIFEST_NAME}
        for prefix in (layout.checkpoints, layout.savepoints)
    )
    return checkpoints, savepoints

"""Chooses the base of a restore: the newest snapshot with complete files.

This is the first step of a restore. `keyscale.state.restore.plan` then decides what each subtask needs,
`keyscale.state.restore.rebuild` carries the plan out, and `keyscale.state.subtask.store` opens the result. A skipped
newer base is logged as an error.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError
from keyscale.units import counted

from ..documents.checked_document import DocumentCorruptError
from ..documents.log_entries import AttemptOpened
from ..documents.manifest import Manifest, read_manifest
from ..layout import MANIFEST_NAME, Layout
from ..objects.errors import ObjectNotFoundError
from .commit_log import CommitLog, LogGapError
from .resolution import BaseDisownedError, ResumePoint, last_rewind, manifest_rank, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyscale.identifiers import JobId

    from ..documents.log_entries import LogEntry
    from ..objects.object_store import ObjectStore

logger = logging.getLogger(__name__)
_READERS = 16
_SAME_TIME_MS = 5_000  # modification times in stores are exact to about a second


class NothingUsableError(KeyscaleError):
    """The job has checkpoints, but cannot use any."""

    code = "STATE_NO_USABLE_CHECKPOINT"
    domain = "external"
    advice = "Restore the missing or damaged objects, which the message names, from a backup of the object store."


@dataclass(frozen=True, slots=True)
class SkippedManifest:
    """A checkpoint or savepoint that cannot be used, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreBase:
    """The checkpoint to start from, if one exists.

    Attributes:
        manifest: None for a job without checkpoints and savepoints, which starts from its log alone.
        skipped: Newer manifests that cannot be used. With a complete log the job loses nothing by skipping them.
    """

    manifest: Manifest | None
    skipped: tuple[SkippedManifest, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """The beginning of a job's history in its log.

    It is the last rewind, or the first attempt.

    Attributes:
        position: The entry's position. The job's own manifests from before it do not count.
        restored_from: Path of the manifest that the history continues from; None for a history without one.
    """

    position: int
    restored_from: str | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The base of a restore, and the point to resume from."""

    base: RestoreBase
    resume: ResumePoint


def recover(store: ObjectStore, job_id: JobId, hint: str | None, *, excluded: Iterable[str] = ()) -> Recovery:
    """Finds the newest base of the job's history, and the history's end.

    Damaged and disowned bases are skipped. The log names the base of the last rewind, even if the base is another job's
    and the hint differs. Arguments as for `choose_base`.

    Raises:
        NothingUsableError: Manifests exist, but the job cannot continue from any.
        HistoryError, StateSchemaMismatchError, DocumentCorruptError: The log contradicts itself or is damaged.
        LogGapError: No manifest exists, and the first entries of the log are missing.
    """
    log = CommitLog(store, Layout(job_id))
    passed_over = set(excluded)
    start: HistoryStart | None = None
    while True:
        base = choose_base(store, job_id, hint, excluded=passed_over, start=start)
        entries: list[tuple[int, LogEntry]] = []
        try:
            entries = log.history(base.manifest)
            return Recovery(base, resolve(base.manifest, entries, job_id))
        except BaseDisownedError as error:
            if start is not None and base.manifest is None:
                raise
            start = _start(entries)
            _pass_over(base, passed_over, error)
        except LogGapError as error:
            if base.manifest is None:
                raise
            _pass_over(base, passed_over, error)


def _pass_over(base: RestoreBase, passed_over: set[str], error: Exception) -> None:
    if base.manifest is not None:
        logger.warning("passing over %s: %s", base.manifest.path, error)
        passed_over.add(base.manifest.path)


def _start(entries: Sequence[tuple[int, LogEntry]]) -> HistoryStart | None:
    position, entry = entries[last_rewind(entries) or 0]
    return HistoryStart(position, entry.restored_from) if isinstance(entry, AttemptOpened) else None


def choose_base(
    store: ObjectStore,
    job_id: JobId,
    hint: str | None,
    *,
    excluded: Iterable[str] = (),
    start: HistoryStart | None = None,
) -> RestoreBase:
    """Finds the base of an attempt that is open in the log.

    Only after the opening is it certain that an older attempt's clean-up does not delete the result; see
    `keyscale.state.retention.deletion`.

    Args:
        store: The object store.
        job_id: The job.
        hint: Path of the manifest that the control plane knows, which may be outdated or of another job; None if it
            knows none.
        excluded: Paths of manifests that have already failed, for example with a damaged file.
        start: The start of the job's history, if known: only its manifest and the job's later manifests then count.

    Raises:
        NothingUsableError: Manifests exist, but none can be used.
        FormatTooNewError: A newer version wrote a manifest; an older manifest must not silently replace it.
    """
    checkpoints, savepoints = _published(store, job_id)
    search = _Search(store, job_id, hint, excluded, start)
    named = {hint, start.restored_from if start is not None else None} - {None}
    search.read([*checkpoints, *(path for path in named if path is not None and path not in checkpoints)])
    newest = search.newest_usable()
    # A savepoint older than a usable checkpoint is never the newest, so it is not read.
    since_ms = 0 if newest is None else checkpoints.get(newest.path, 0) - _SAME_TIME_MS
    search.read(path for path, modified_ms in savepoints.items() if modified_ms >= since_ms)
    newest = search.newest_usable()
    if newest is not None:
        for skip in search.skipped.values():
            if skip.path not in search.excluded:
                logger.error("skipping %s: %s", skip.path, skip.reason)
    elif search.skipped and (start is None or start.restored_from is not None):
        raise NothingUsableError("; ".join(f"{skip.path}: {skip.reason}" for skip in [*search.skipped.values()][:3]))
    return RestoreBase(newest, tuple(search.skipped.values()))


class _Search:
    """The search for the newest usable manifest, with the skipped ones."""

    def __init__(
        self, store: ObjectStore, job_id: JobId, hint: str | None, excluded: Iterable[str], start: HistoryStart | None
    ) -> None:
        self.excluded = frozenset(excluded)
        self.skipped = {path: SkippedManifest(path, "the job cannot continue from it") for path in sorted(excluded)}
        self._store = store
        self._job_id = job_id
        self._hint = hint
        self._start = start
        self._manifests: dict[str, Manifest] = {}

    def read(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.skipped or path in self._manifests:
                continue
            try:
                manifest = read_manifest(self._store, path)
                if self._is_of_this_history(manifest):
                    self._manifests[path] = manifest
                else:
                    self.skipped[path] = SkippedManifest(path, "the job was rewound since")
            except (DocumentCorruptError, ObjectNotFoundError) as error:
                self.skipped[path] = SkippedManifest(path, str(error))

    def _is_of_this_history(self, manifest: Manifest) -> bool:
        if self._start is None or manifest.path == self._start.restored_from:
            return True
        return manifest.job_id == self._job_id and manifest.log_position >= self._start.position

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
            reason = f"{counted(len(missing), 'file')} missing or truncated, such as {missing[0]}"
            self.skipped[manifest.path] = SkippedManifest(manifest.path, reason)
        return None


def missing_files(store: ObjectStore, manifest: Manifest) -> list[str]:
    """Returns the paths of a manifest's files that are missing or truncated.

    Hashes are checked when files are read.
    """
    files = list({file.path: file for file in manifest.files()}.values())
    with ThreadPoolExecutor(_READERS, thread_name_prefix="head") as readers:
        found = list(readers.map(lambda file: store.head(file.path), files))
    return [
        file.path for file, info in zip(files, found, strict=True) if info is None or info.size_bytes != file.size_bytes
    ]


def _rank(manifest: Manifest, job_id: JobId, hint: str | None) -> tuple[tuple[int, int], bool, int]:
    """Returns a sort key; the manifest with the highest key is preferred.

    Several savepoints may hold the same state in different forms (see `keyscale.state.inspection.map_migration`). The
    first of them is preferred, unless the hint names another.
    """
    return (manifest_rank(manifest, job_id), manifest.path == hint, -manifest.created_at_ms)


def _published(store: ObjectStore, job_id: JobId) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the publishing times of checkpoints and savepoints, by manifest path."""
    layout = Layout(job_id)
    checkpoints, savepoints = (
        {info.path: info.modified_ms for info in store.list(prefix) if info.path.rpartition("/")[2] == MANIFEST_NAME}
        for prefix in (layout.checkpoints, layout.savepoints)
    )
    return checkpoints, savepoints

"""Checks of the object store and of snapshots in it.

Drivers do everything else with the store.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, CheckpointId, JobId
from keyscale.state.doors.catalogue import (
    DocumentCorruptError,
    FormatTooNewError,
    claimant_of,
    files_problem,
    find_snapshot,
    first_commit_after,
    has_committed,
    keeps_output,
    newest_attempt,
    newest_counters,
    read_manifest,
)
from keyscale.state.doors.objects import ObjectNotFoundError, open_store, probe
from keyscale.state.doors.paths import Layout, LocationError, location_of, split_location

from .errors import PlanTimeoutError, RestoreSourceError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyscale.state.doors.catalogue import JobCounters, Manifest
    from keyscale.state.doors.objects import ObjectStore

T = TypeVar("T")

READ_BYTES_MAX = 64 << 20
"""The largest object that the control plane reads into memory. Jobs can write objects of any size."""
_HEALTH_TTL_S = 10.0
_NO_MANIFEST = (ObjectNotFoundError, DocumentCorruptError, FormatTooNewError)


@dataclass(frozen=True, slots=True)
class PublishedSavepoint:
    """A savepoint with a manifest in the store.

    Attributes:
        location: Its manifest's location.
        checkpoint_id: Its number.
        batch_id: The batch that it was taken after.
        state_size: The size of its files, in bytes.
        created_at_ms: When its manifest was written.
    """

    location: str
    checkpoint_id: CheckpointId
    batch_id: int
    state_size: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot with all its files in the store.

    Attributes:
        manifest: Its manifest.
        claimed_by: The id of the job that has claimed it, as its claim names it; None: unclaimed.
        keeps_output: Whether the sinks of its job keep its output. They have taken some of it back if the job went back
            behind the snapshot.
    """

    manifest: Manifest
    claimed_by: str | None
    keeps_output: bool


def open_to_read(store_url: str) -> ObjectStore:
    """Opens a store for reading objects of limited size.

    Raises:
        StoreUrlError: The URL has an unknown form.
    """
    return open_store(store_url, get_bytes_max=READ_BYTES_MAX)


@contextmanager
def store_failures(*, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Converts a store's errors to StoreUnavailableError.

    Args:
        but: Errors that the caller handles itself.

    Raises:
        StoreUnavailableError: The store does not answer, or answers incorrectly.
    """
    try:
        yield
    except but:
        raise
    except KeyscaleError as error:
        raise StoreUnavailableError(f"{error.code}: {error}") from error
    except OSError as error:
        raise StoreUnavailableError(f"{type(error).__name__}: {error.strerror or 'no access'}") from error


def read_within(limit_ms: int, read: Callable[[], T], *, what: str, but: tuple[type[Exception], ...] = ()) -> T:
    """Reads from a store for a request, within a time limit.

    Args:
        limit_ms: The limit.
        read: Reads, in a separate thread. A hanging thread is abandoned.
        what: The name of the object in the error.
        but: Errors that the caller handles itself.

    Raises:
        PlanTimeoutError: The object was not read in time.
        StoreUnavailableError: The store does not answer.
    """
    reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
    try:
        reading = reader.submit(read)
        if not wait([reading], limit_ms / 1000).done:
            raise PlanTimeoutError(f"{what} was not read within {limit_ms} ms")
        with store_failures(but=but):
            return reading.result()
    finally:
        reader.shutdown(wait=False)


class StoreCheck:
    """Checks object stores by their URL."""

    def __init__(self, url: str, on_checked: Callable[[float, bool], None] = lambda *_: None) -> None:
        """Creates a check of the configured store.

        Args:
            url: The store's URL.
            on_checked: Called after each check of this store, with its seconds and whether it has failed.
        """
        self._on_checked = on_checked
        self._url = url
        self._lock = threading.Lock()
        self._checked_at_s = float("-inf")
        self._problem: str | None = None

    def require_usable(self, url: str) -> None:
        """Checks that a store answers and honours conditional creates.

        Raises:
            StoreUnavailableError: The store does not answer, or does not honour conditional creates.
        """
        try:
            probe(open_to_read(url))
        except KeyscaleError as error:
            raise StoreUnavailableError(f"{error.code}: {error} {error.advice}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{type(error).__name__}: {error.strerror or 'no access'}") from error

    def problem(self) -> str | None:
        """Returns the problem of the configured store, if any.

        The check is at most ten seconds old. During another caller's check, the result is the previous result: if a
        store hangs, only one caller waits.
        """
        if not self._lock.acquire(blocking=False):
            return self._problem
        try:
            if time.monotonic() - self._checked_at_s > _HEALTH_TTL_S:
                began_s = time.monotonic()
                try:
                    self.require_usable(self._url)
                except StoreUnavailableError as error:
                    self._problem = error.detail
                else:
                    self._problem = None
                self._checked_at_s = time.monotonic()
                self._on_checked(self._checked_at_s - began_s, self._problem is not None)
            return self._problem
        finally:
            self._lock.release()

    def confirms_checkpoint(
        self, store_url: str, job_id: str, *, attempt: int, checkpoint_id: int, savepoint_id: str | None
    ) -> bool:
        """Reads from the store whether an attempt completed a checkpoint.

        The attempt must have committed the checkpoint's batches.

        Raises:
            StoreUnavailableError: The store does not answer. Ask again; do not guess.
        """
        with store_failures():
            store = open_to_read(store_url)
            manifest = find_snapshot(store, JobId(job_id), CheckpointId(checkpoint_id), savepoint_id)
            if manifest is None:
                return False
            if (manifest.job_id, manifest.checkpoint_id, manifest.attempt) != (job_id, checkpoint_id, attempt):
                return False
            return has_committed(store, manifest, Attempt(attempt))

    def newest_attempt(self, store_url: str, job_id: str) -> int:
        """Returns the highest attempt in a job's commit log; 0 without one.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        with store_failures():
            return newest_attempt(open_to_read(store_url), JobId(job_id))

    def counters(self, store_url: str, job_id: str, *, limit_ms: int) -> JobCounters:
        """Returns a job's counters after the last commit in its log.

        A driver that dies or is killed has not reported all of them.

        Raises:
            StoreUnavailableError: The store does not answer.
            PlanTimeoutError: The log was not read in time.
        """

        def read() -> JobCounters:
            return newest_counters(open_to_read(store_url), JobId(job_id))

        return read_within(limit_ms, read, what="the commit log")

    def find_savepoint(self, store_url: str, job_id: str, savepoint_id: str) -> PublishedSavepoint | None:
        """Reads from the store whether a savepoint was published.

        Its driver ended without reporting it.

        Raises:
            StoreUnavailableError: The store does not answer. Ask again: never guess.
        """
        with store_failures():
            manifest = find_snapshot(open_to_read(store_url), JobId(job_id), CheckpointId(0), savepoint_id)
        if manifest is None:  # without a readable manifest the savepoint does not exist
            return None
        return PublishedSavepoint(
            location=location_of(store_url, Layout(JobId(job_id)).manifest(CheckpointId(0), savepoint_id)),
            checkpoint_id=manifest.checkpoint_id,
            batch_id=manifest.batch_id,
            state_size=sum(file.size_bytes for file in manifest.files()),
            created_at_ms=manifest.created_at_ms,
        )

    def first_commit_after(self, store_url: str, job_id: str, location: str, *, attempt: int) -> int | None:
        """Reads when later attempts committed their first batch after a snapshot.

        Returns:
            Milliseconds since the epoch; None without such a commit, or if the log is damaged: jobs can then continue
            only from the snapshot.

        Raises:
            StoreUnavailableError: The store does not answer. Ask again: never guess.
        """
        with store_failures():
            path = split_location(location)[1]
            return first_commit_after(open_to_read(store_url), JobId(job_id), path, Attempt(attempt))

    def read_snapshot(self, store_url: str, path: str, *, limit_ms: int) -> FoundSnapshot:
        """Reads a snapshot's manifest, and checks that its files exist.

        Args:
            store_url: The store.
            path: Where the manifest is.
            limit_ms: Time limit: a job can name any number of files.

        Raises:
            RestoreSourceError: A job could not start from the snapshot.
            StoreUnavailableError: The store does not answer.
            PlanTimeoutError: The snapshot was not read in time.
        """
        location = location_of(store_url, path)

        def read() -> FoundSnapshot:
            store = open_to_read(store_url)
            manifest: Manifest = read_manifest(store, path)
            if manifest.path != path:
                raise RestoreSourceError(f"{location}: the manifest there belongs to {manifest.path}")
            if (problem := files_problem(store, manifest)) is not None:
                raise RestoreSourceError(f"{location}: {problem}")
            return FoundSnapshot(manifest, claimant_of(store, path), keeps_output(store, manifest))

        try:
            return read_within(limit_ms, read, what="the snapshot", but=(RestoreSourceError, *_NO_MANIFEST))
        except _NO_MANIFEST as error:
            raise RestoreSourceError(f"{location}: no manifest can be read there") from error

    def keeps_output(self, store_url: str, location: str, *, limit_ms: int) -> bool:
        """Reads whether the sinks of a snapshot's job keep the snapshot's output.

        True if the snapshot cannot be read: its restore says why.

        Raises:
            StoreUnavailableError: The store does not answer.
            PlanTimeoutError: The snapshot was not read in time.
        """

        def read() -> bool:
            store = open_to_read(store_url)
            try:
                manifest = read_manifest(store, split_location(location)[1])
            except (LocationError, *_NO_MANIFEST):
                return True
            return keeps_output(store, manifest)

        return read_within(limit_ms, read, what="the snapshot")

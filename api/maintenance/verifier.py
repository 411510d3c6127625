"""The verifier: checks checkpoints and savepoints in separate threads.

It stores the results with them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, checkpoints, events
from keyscale.errors import KeyscaleError
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.source_retention import source_retention
from keyscale.jobs.protocol.storable_text import storable
from keyscale.state.doors.catalogue import (
    DocumentCorruptError,
    FormatTooNewError,
    SourcePositions,
    Verification,
    claimant_of,
    read_positions,
    verify,
)
from keyscale.state.doors.objects import ObjectCorruptError, ObjectTooLargeError
from keyscale.state.doors.paths import split_location
from keyscale.vocabulary import AttemptStage, CommandStatus

from ..database_clock import shared_now_ms
from ..errors import TooManyInFlightError
from ..lifecycle.current_report import reports_now
from ..store_check import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.models import Checkpoint, Job
    from keyscale.jobs.protocol.messages import SourceMetrics
    from keyscale.state.doors.catalogue import Manifest
    from keyscale.state.doors.objects import ObjectStore

AT_ONCE = 2
BEAT_S = 2.0
PROBLEM_CHARACTERS_MAX = 1000
UIDS_SHOWN_MAX = 20


class Verifier:
    """Verifies a few snapshots at a time.

    Args:
        sessions: The database.
        why_not: Returns why a job cannot start from a complete snapshot; None if it can.
    """

    def __init__(self, sessions: sessionmaker[Session], why_not: Callable[[Manifest, Job], str | None]) -> None:
        self._sessions = sessions
        self._why_not = why_not
        self._closing = threading.Event()
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify")

    def close(self) -> None:
        """Ends all verifications, which are shown as failed after a while."""
        self._closing.set()
        self._threads.shutdown(cancel_futures=True)

    def submit(self, job: Job, found: Checkpoint, begun: dict[str, Any]) -> None:
        """Begins a verification that is already stored as begun.

        Raises:
            TooManyInFlightError: Too many verifications are in progress.
        """
        if not self._free.acquire(blocking=False):
            raise TooManyInFlightError("new verifications must wait until a running verification ends")
        self._threads.submit(self._run, job, found, begun).add_done_callback(lambda _: self._free.release())

    def _run(self, job: Job, found: Checkpoint, begun: dict[str, Any]) -> None:
        beat_at_s = time.monotonic()

        def goes_on(so_far: Verification) -> bool:
            nonlocal beat_at_s
            if time.monotonic() - beat_at_s >= BEAT_S:
                beat_at_s = time.monotonic()
                with contextlib.suppress(SQLAlchemyError):  # the database may be back at the next beat
                    self._note(found, {**begun, **_shown(so_far), "beat_at_ms": shared_now_ms()})
            return not self._closing.is_set()

        path = split_location(found.external_path or "")[1]
        try:
            store = open_to_read(job.store_url)
            result = verify(store, path, hashes=begun["hashes"], goes_on=goes_on)
            unchecked: str | None = "its files are damaged or missing"
            if result.manifest is not None:
                if not result.problem_count:
                    unchecked = _look_at_sources(store, result.manifest, self._reported_sources(job.id), result)
                if claimant_of(store, path) not in {None, job.id}:
                    result.add("another job has claimed it")  # some readers of this text may not see that job
                if (problem := self._why_not(result.manifest, job)) is not None:
                    result.add(problem)
        except (KeyscaleError, OSError) as error:
            code = error.code if isinstance(error, KeyscaleError) else type(error).__name__
            failed = {"status": CommandStatus.FAILED, "problems": [_readable(f"{code}: {error}")], "problem_count": 1}
            self._note(found, {**begun, **failed, "ended_at_ms": now_ms()})
            return
        if self._closing.is_set():
            return
        ended = {
            "status": CommandStatus.COMPLETED,
            "restorable": not result.problem_count,
            "sources_checked": unchecked is None,
            "sources_unchecked": unchecked,
            "ended_at_ms": now_ms(),
        }
        self._note(found, {**begun, **_shown(result), **ended}, is_end=True)

    def _reported_sources(self, job_id: str) -> list[SourceMetrics] | None:
        """Returns the reported remaining records of a job's sources.

        Returns None if the job does not run.
        """
        with self._sessions() as session:
            attempt = attempts.of_stage(session, job_id, AttemptStage.ACTIVE)
            if attempt is None or attempt.metrics is None or not reports_now(attempt, now_ms=shared_now_ms()):
                return None
            return DriverMetrics.model_validate(attempt.metrics).sources

    def _note(self, found: Checkpoint, verification: dict[str, Any], *, is_end: bool = False) -> None:
        with self._sessions.begin() as session:
            checkpoints.note_verification(session, found.job_id, found.checkpoint_id, verification)
            if is_end:
                result = "can be restored" if verification["restorable"] else "cannot be restored"
                events.record(
                    session,
                    job_id=found.job_id,
                    at_ms=verification["ended_at_ms"],
                    kind="CHECKPOINT_VERIFIED",
                    message=f"checkpoint {found.checkpoint_id} was verified: it {result}",
                    checkpoint_id=found.checkpoint_id,
                    problems=verification["problem_count"],
                )


def _look_at_sources(
    store: ObjectStore, manifest: Manifest, reported: list[SourceMetrics] | None, result: Verification
) -> str | None:
    """Adds the problem of each split with lost records after the checkpoint.

    Returns:
        Why that is unknown for some sources; None if it is known for all.

    Raises:
        KeyscaleError: The store does not answer.
    """
    if manifest.positions is None:
        return "it holds no positions of sources"
    try:
        stored = read_positions(store, manifest.positions)
    except (ObjectCorruptError, ObjectTooLargeError, DocumentCorruptError, FormatTooNewError) as error:
        result.add(f"{manifest.positions.path} cannot be read: {error}")
        return "its positions cannot be read"
    if reported is None:
        return "the job does not run"
    if not isinstance(stored, SourcePositions) or not stored.batches:
        return "its positions have the form of an older version"
    found = source_retention(stored.sources, stored.batches[-1].ends, reported)
    for problem in found.problems:
        result.add(problem)
    if not found.unknown:
        return None
    uids = ", ".join(map(repr, found.unknown[:UIDS_SHOWN_MAX]))
    return _readable(f"these do not say which records they still have: {uids}")


def _shown(found: Verification) -> dict[str, Any]:
    names = ("files", "files_checked", "bytes_read", "problem_count")
    shown = {name: getattr(found, name) for name in names}
    return {**shown, "problems": [_readable(problem) for problem in found.problems]}


def _readable(text: str) -> str:
    """Makes text from a job storable and readable.

    The text may be a name in a manifest.
    """
    return storable(text[:PROBLEM_CHARACTERS_MAX])

"""The verifier: checks checkpoints and savepoints in threads of its own, and keeps what it finds with them."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from keyscale.api.database_clock import shared_now_ms
from keyscale.api.errors import TooManyInFlightError
from keyscale.api.store_check import open_to_read
from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events
from keyscale.db.statuses import CommandStatus
from keyscale.errors import KeyscaleError
from keyscale.state.documents.claim import claim_path, read_claim
from keyscale.state.inspection.verification import Verification, verify
from keyscale.state.layout import split_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.models import Checkpoint, Job
    from keyscale.state.documents.manifest import Manifest

AT_ONCE = 2
BEAT_S = 2.0


class Verifier:
    """Verifies a few snapshots at a time.

    Args:
        sessions: The database.
        why_not: Returns why a job cannot start from a snapshot, whose files are all there; None if it can.
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
        """Begins a verification whose beginning is stored.

        Raises:
            TooManyInFlightError: Too many are in progress.
        """
        if not self._free.acquire(blocking=False):
            raise TooManyInFlightError("no more verifications are begun until one ends")
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
            if result.manifest is not None:
                claim = read_claim(store, claim_path(path))
                if claim is not None and claim.job_id != job.id:
                    result.add("another job has claimed it")  # not everybody who reads this may see that job
                if (problem := self._why_not(result.manifest, job)) is not None:
                    result.add(problem)
        except (KeyscaleError, OSError) as error:
            code = error.code if isinstance(error, KeyscaleError) else type(error).__name__
            failed = {"status": CommandStatus.FAILED, "problems": [f"{code}: {error}"], "problem_count": 1}
            self._note(found, {**begun, **failed, "ended_at_ms": now_ms()})
            return
        if self._closing.is_set():
            return
        ended = {"status": CommandStatus.COMPLETED, "restorable": not result.problem_count, "ended_at_ms": now_ms()}
        self._note(found, {**begun, **_shown(result), **ended}, is_end=True)

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


def _shown(found: Verification) -> dict[str, Any]:
    names = ("files", "files_checked", "bytes_read", "problems", "problem_count")
    return {name: getattr(found, name) for name in names}

"""Tells open event streams about changes.

One poll of the database per second serves all streams.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from keyscale.db.repositories import job_versions
from keyscale.vocabulary import OperationStatus

from ..access.credentials import lapsed
from ..errors import TooManyInFlightError
from .subscriber import EVERY_TOPIC, Subject, Subscriber, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.repositories.job_versions import JobVersions

    from ..access.credentials import Credential
    from ..access.principal import Principal
    from ..shapes import Answer

logger = logging.getLogger(__name__)

POLL_S = 1.0
CHECK_S = 5.0
STREAMS_MAX = 1000
STREAMS_OF_USER_MAX = 50


class ChangeFeed:
    """A thread that polls the database while subscribers exist.

    A subscriber holds no connection.

    Args:
        sessions: The database.
        read_operations: Returns the existing operations among the given operations, by their ids.
        streams_max: Maximum number of open streams.
        streams_of_user_max: Maximum number of open streams per user.
        note_look: Counts a poll of the database.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        read_operations: Callable[[Session, Collection[str]], Mapping[str, Answer]],
        *,
        streams_max: int = STREAMS_MAX,
        streams_of_user_max: int = STREAMS_OF_USER_MAX,
        note_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._note_look = note_look
        self._read_operations = read_operations
        self._streams_max = streams_max
        self._streams_of_user_max = streams_of_user_max
        self._lock = threading.Lock()
        self._subscribers: set[Subscriber] = set()
        self._came = threading.Event()
        self._closing = threading.Event()
        self._is_away = False
        self._checked_at_s = float("-inf")
        self._all: dict[str, JobVersions] | None = None
        self._watched: dict[str, Mapping[str, str | None]] = {}
        self._operations: dict[str, Mapping[str, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="change-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end_all(self) -> None:
        """Ends all present and future streams.

        Readers may come back to another replica.
        """
        self._closing.set()
        self._came.set()
        with self._lock:
            subscribers = tuple(self._subscribers)
        for subscriber in subscribers:
            subscriber.end()

    def close(self) -> None:
        """Ends all streams, and the thread."""
        self.end_all()
        if self._thread.is_alive():
            self._thread.join()

    def open(
        self,
        subject: Subject,
        user: Principal,
        credential: Credential,
        *,
        operation: Mapping[str, Any] | None = None,
    ) -> Subscriber:
        """Returns a new subscriber.

        It must be called in an event loop, and the subscriber must be closed at its end.

        Args:
            subject: The subject of the stream.
            user: The reader.
            credential: The reader's credential.
            operation: The operation's current state, if the stream is about an operation.

        Raises:
            TooManyInFlightError: Too many streams are open.
        """
        with self._lock:
            of_user = sum(each.user.id == user.id for each in self._subscribers)
            if len(self._subscribers) >= self._streams_max or of_user >= self._streams_of_user_max:
                raise TooManyInFlightError(f"at most {self._streams_of_user_max} streams of a user are open at once")
            subscriber = Subscriber(
                subject,
                user,
                credential,
                operation=operation,
                is_ending=operation is not None and _has_ended(operation),
            )
            self._subscribers.add(subscriber)
        if self._closing.is_set():
            subscriber.end()
        self._came.set()
        return subscriber

    def drop(self, subscriber: Subscriber) -> None:
        """Forgets a subscriber."""
        with self._lock:
            self._subscribers.discard(subscriber)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._subscribers)

    def poll(self) -> None:
        """Polls the database once and tells all subscribers the changes.

        The number of statements is fixed.
        """
        self._note_look()
        with self._lock:
            subscribers = tuple(self._subscribers)
        try:
            with self._sessions() as session:
                self._check(session, subscribers)
                self._poll_all(session, [each for each in subscribers if each.subject == Subject()])
                self._poll_jobs(session, [each for each in subscribers if each.subject.job_id is not None])
                self._poll_operations(session, [each for each in subscribers if each.subject.operation_id is not None])
        except SQLAlchemyError as error:
            if not self._is_away:
                logger.warning("the streams cannot read changes: %s", type(error).__name__)
                for subscriber in subscribers:
                    subscriber.tell(is_away=True)
            self._is_away = True
            return
        if self._is_away:
            self._is_away = False
            for subscriber in subscribers:
                subscriber.tell(EVERY_TOPIC, None if subscriber.subject.job_id is None else [subscriber.subject.job_id])

    def _run(self) -> None:
        while not self._closing.is_set():
            if not self._subscribers:
                self._all, self._watched, self._operations = None, {}, {}
                self._came.wait()
                self._came.clear()
                continue
            try:
                self.poll()
            except Exception:  # the thread survives every error: a stream without changes still has its heartbeats
                logger.exception("a poll for changes failed")
            self._closing.wait(POLL_S)

    def _check(self, session: Session, subscribers: Sequence[Subscriber]) -> None:
        """Ends the streams with invalid tokens or sessions."""
        now_s = time.monotonic()
        if now_s - self._checked_at_s < CHECK_S:
            return
        self._checked_at_s = now_s
        over: set[Credential] = lapsed(session, {each.credential for each in subscribers})
        for subscriber in subscribers:
            if subscriber.credential in over:
                subscriber.end("over")

    def _poll_all(self, session: Session, subscribers: Sequence[Subscriber]) -> None:
        if not subscribers:
            self._all = None
            return
        before, now = self._all, job_versions.of_all_jobs(session)
        self._all = now
        if before is None:  # changes since the subscribers came are unknown
            for subscriber in subscribers:
                subscriber.tell(subscriber.subject.topics, None)
            return
        changed = [
            (job, topics)
            for job_id in before.keys() | now.keys()
            if (topics := _changed(before.get(job_id), now.get(job_id)))
            if (job := now.get(job_id) or before.get(job_id)) is not None
        ]
        scopes = {each.user.scope.key: each.user.scope for each in subscribers}
        seen = {
            key: [
                (job.id, topics)
                for job, topics in changed
                if scope.covers(job_id=job.id, name=job.name, labels=job.labels)
            ]
            for key, scope in scopes.items()
        }
        for subscriber in subscribers:
            if found := seen[subscriber.user.scope.key]:
                subscriber.tell({topic for _, topics in found for topic in topics}, [job_id for job_id, _ in found])

    def _poll_jobs(self, session: Session, subscribers: Sequence[Subscriber]) -> None:
        wanted = {each.subject.job_id for each in subscribers if each.subject.job_id is not None}
        now = job_versions.of_jobs(session, wanted) if wanted else {}
        before, self._watched = self._watched, now
        for subscriber in subscribers:
            job_id = subscriber.subject.job_id or ""
            if job_id not in now:
                subscriber.end("gone")
            elif (old := before.get(job_id)) is None:
                subscriber.tell(EVERY_TOPIC, [job_id])
            elif topics := [topic for topic in Topic if old[topic] != now[job_id][topic]]:
                subscriber.tell(topics, [job_id])

    def _poll_operations(self, session: Session, subscribers: Sequence[Subscriber]) -> None:
        wanted = {each.subject.operation_id for each in subscribers if each.subject.operation_id is not None}
        found = self._read_operations(session, wanted) if wanted else {}
        now: dict[str, Mapping[str, Any]] = {each: answer.model_dump(mode="json") for each, answer in found.items()}
        before, self._operations = self._operations, now
        for subscriber in subscribers:
            operation_id = subscriber.subject.operation_id or ""
            answer = now.get(operation_id)
            if answer is None:
                subscriber.end("gone")
                continue
            if answer != before.get(operation_id):
                subscriber.tell(operation=answer)
            if _has_ended(answer):
                subscriber.end()


def _has_ended(operation: Mapping[str, Any]) -> bool:
    return OperationStatus(operation["status"]).has_ended


def _changed(before: JobVersions | None, now: JobVersions | None) -> list[Topic]:
    if before is None or now is None:
        return [Topic.JOB, Topic.METRICS]
    return [topic for topic in (Topic.JOB, Topic.METRICS) if before.topics[topic] != now.topics[topic]]

"""A subscriber: an open event stream with its unsent changes.

It takes a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from ..access.credentials import Credential
    from ..access.principal import Principal

HEARTBEAT_S = 10.0
"""Proxies end a connection on which nothing is sent for about a minute."""
RECONNECT_MS = 2_000
JOBS_NAMED_MAX = 100


class Topic(StrEnum):
    """The parts of a job that may have changed."""

    JOB = "job"
    METRICS = "metrics"
    CHECKPOINTS = "checkpoints"
    OPERATIONS = "operations"
    EVENTS = "events"


EVERY_TOPIC = frozenset(Topic)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a stream.

    It is all jobs in its user's scope, or one job or operation.

    Attributes:
        job_id: The job.
        operation_id: The operation.
    """

    job_id: str | None = None
    operation_id: str | None = None

    @property
    def topics(self) -> frozenset[Topic]:
        """The topics that its messages may name."""
        if self.operation_id is not None:
            return frozenset()
        return frozenset({Topic.JOB, Topic.METRICS}) if self.job_id is None else EVERY_TOPIC


class Subscriber:
    """The changes of one stream.

    All methods except `tell` and `end` belong to the event loop that created it.

    unsent changes is merged, so that a slow reader costs no more than a fast reader.

    Args:
        subject: The subject of the stream.
        user: The reader.
        credential: The reader's credential.
        operation: The operation's current state, if the stream is about an operation.
        is_ending: Whether the subject has reached its final state.
    """

    def __init__(
        self,
        subject: Subject,
        user: Principal,
        credential: Credential,
        *,
        operation: Mapping[str, Any] | None = None,
        is_ending: bool = False,
    ) -> None:
        self.subject = subject
        self.user = user
        self.credential = credential
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._topics: set[Topic] = set(subject.topics)  # a reader that has just come may have missed anything
        self._jobs: set[str] | None = None if subject.job_id is None else {subject.job_id}
        self._operation = operation
        self._is_away = False
        self._end: str | None = None
        self._is_ending = is_ending

    def tell(
        self,
        topics: Collection[Topic] = (),
        job_ids: Collection[str] | None = (),
        *,
        operation: Mapping[str, Any] | None = None,
        is_away: bool = False,
    ) -> None:
        """Adds changes, from any thread.

        Args:
            topics: What has changed.
            job_ids: The jobs that changed; None: too many to name.
            operation: The operation's current state.
            is_away: Whether the database does not answer.
        """
        self._call(self._take, frozenset(topics), job_ids, operation, is_away)

    def end(self, event: str | None = None) -> None:
        """Ends the stream, from any thread.

        An event says why, unless the reader may simply come back.

        An event that says why is the last event.
        """
        self._call(self._take_end, event)

    async def messages(self, seconds: float) -> AsyncIterator[str]:
        """Yields the stream's text.

        Args:
            seconds: How long it lasts at most.
        """
        last_s = self._loop.time() + seconds
        yield f"retry: {RECONNECT_MS}\n\n"
        while True:
            for message in self._drain():
                yield message
            left_s = last_s - self._loop.time()
            if self._is_ending or left_s <= 0:
                return
            try:
                await asyncio.wait_for(self._news.wait(), min(HEARTBEAT_S, left_s))
            except TimeoutError:
                yield ": the stream lasts\n\n"

    def _call(self, method: Any, *arguments: Any) -> None:
        if not self._loop.is_closed():  # else the server has ended, and the stream with it
            self._loop.call_soon_threadsafe(method, *arguments)

    def _take(
        self,
        topics: frozenset[Topic],
        job_ids: Collection[str] | None,
        operation: Mapping[str, Any] | None,
        is_away: bool,
    ) -> None:
        if not self._topics:
            self._jobs = set()
        self._topics |= topics & self.subject.topics
        if job_ids is None or self._jobs is None or len(self._jobs | set(job_ids)) > JOBS_NAMED_MAX:
            self._jobs = None
        else:
            self._jobs |= set(job_ids)
        self._operation = operation or self._operation
        self._is_away = is_away
        self._news.set()

    def _take_end(self, event: str | None) -> None:
        self._end, self._is_ending = event, True
        if event is not None:
            self._topics, self._jobs, self._operation, self._is_away = set(), set(), None, False
        self._news.set()

    def _drain(self) -> list[str]:
        self._news.clear()
        found = []
        if self._is_away:
            found.append(written("away", {}))
        if self._topics:
            topics = [topic for topic in Topic if topic in self._topics]
            jobs = None if self._jobs is None else sorted(self._jobs)
            found.append(written("change", {"at_ms": now_ms(), "topics": topics, "job_ids": jobs}))
        if self._operation is not None:
            found.append(written("operation", self._operation))
        if self._end is not None:
            found.append(written(self._end, {}))
        self._topics, self._jobs, self._operation, self._is_away, self._end = set(), set(), None, False, None
        return found


def written(event: str, data: Mapping[str, Any]) -> str:
    """Formats a message of a stream.

    JSON has no line breaks, so its content cannot begin another field.
    """
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"

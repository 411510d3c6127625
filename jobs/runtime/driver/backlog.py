"""The thread that counts the records that no committed batch has read."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ...errors import SourceRecordsLostError
from ...protocol.messages import LAG_SPLITS_MAX, SourceLag
from ...sources.waiting_records import WaitingRecords
from ...spark_internals.checkpoint_directory import ends_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...sources.source import Source
    from ..control.driver_status import DriverStatus

logger = logging.getLogger(__name__)

ASK_SECONDS = 3.0
_POLL_SECONDS = 0.5


class Reached(NamedTuple):
    """How far a job has read its sources.

    Attributes:
        files: Files of Spark's checkpoint directory, by relative path.
        batch: Spark's number of the last committed batch; -1 before the first.
    """

    files: Mapping[str, str]
    batch: int


def source_lags(uids: Sequence[str], waiting: Sequence[Mapping[str, int]]) -> list[SourceLag]:
    """Returns the records that wait by source and split.

    The splits are those with most records. A source may have several inputs.
    """
    found: dict[str, Counter[str]] = {uid: Counter() for uid in uids}
    for uid, splits in zip(uids, waiting, strict=True):
        found[uid].update(splits)
    return [
        SourceLag(
            uid=uid, lag_records=splits.total(), splits=dict(splits.most_common(LAG_SPLITS_MAX // max(1, len(found))))
        )
        for uid, splits in found.items()
    ]


class Backlog:
    """Counts the records between the committed positions and the sources' present ends.

    It asks the sources every three seconds, beside the batches, and counts again after each commit.

    Args:
        sources: A copy of the source of each of Spark's inputs, in their order.
        reached: How far the job has read.
        status: Takes the number.
        clock: Returns seconds.
        uids: The uid of the source of each input; by default the uid of a job's only source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        reached: Reached,
        status: DriverStatus,
        clock: Callable[[], float] = time.monotonic,
        *,
        uids: Sequence[str] = (),
    ) -> None:
        self._uids = uids or [""] * len(sources)
        self._waiting = [WaitingRecords(source, clock) for source in sources]
        self._reached: Callable[[], Reached] = lambda: reached
        self._status = status
        self._clock = clock
        self._asked_at: float | None = None
        self._answered_at = clock()  # once the sources have answered, the time at which they were asked
        self._is_silent = False
        self._loss: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backlog", daemon=True)

    def follow(self, reached: Callable[[], Reached]) -> None:
        """Counts from the positions of a loop of batches from now on."""
        self._reached = reached

    @property
    def counts(self) -> bool:
        """Whether all sources count their records."""
        return bool(self._waiting)

    @property
    def loss(self) -> str | None:
        """What the sources have lost, such as a topic's records."""
        return self._loss

    @property
    def has_begun(self) -> bool:
        """Whether the job has read each input, and has its position."""
        return None not in self._ends()[0]

    def start(self) -> None:
        """Starts the thread.

        A job with a source that only Spark can ask has no thread.
        """
        if self._waiting:
            self._thread.start()

    def end(self) -> None:
        """Ends the thread, after the last answer of the sources.

        The thread reports no number from now on.
        """
        self._ended.set()

    def poll(self) -> None:
        """Counts once; asks the sources if the last answer is old."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= ASK_SECONDS:
            self._ask()
            self._asked_at = self._clock()
        committed, planned = self._ends()
        counts = [each.by_split(*ends) for each, *ends in zip(self._waiting, committed, planned, strict=True)]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and not self._ended.is_set():  # the sum of some sources would be too small
            lags = source_lags(self._uids, known)
            self._status.records_wait(
                sum(lag.lag_records for lag in lags), lags, age_s=self._clock() - self._answered_at
            )

    def _ask(self) -> None:
        committed, planned = self._ends()
        asked_at = self._clock()
        try:
            for each, *ends in zip(self._waiting, committed, planned, strict=True):
                each.ask(*ends)
        except SourceRecordsLostError as error:
            self._loss = str(error)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything; the batch reports it
            if not self._is_silent:
                logger.warning("the records that wait are not counted while a source does not answer: %s", error)
            self._is_silent = True
        else:
            self._is_silent, self._loss = False, None
            self._answered_at = asked_at

    def _ends(self) -> tuple[list[str | None], list[str | None]]:
        """Returns each input's records of the committed and the running batch."""
        files, batch = self._reached()
        count = len(self._waiting)
        return ends_of(files, batch, count), ends_of(files, batch + 1, count)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.poll()
            except Exception:  # a source that cannot count its records must not end the job
                logger.exception("the records that wait cannot be counted")
                break
            self._ended.wait(_POLL_SECONDS)
        for each in self._waiting:
            each.close()

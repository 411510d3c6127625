"""The output of a Kafka sink with its marker.

The driver has the output of the whole sink, a task the output of a share.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaException

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..errors import SinkForbiddenError, SinkOccupiedError, SinkTooSlowError, SinkUnavailableError
from ..kafka_client import error_of, is_away, is_forbidden
from ..operators.failures import CarriedFailure, TaskOrigin
from .kafka_transactions import TransactionalTopic, last_markers
from .published import Published, Step, is_rewound, next_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

logger = logging.getLogger(__name__)

_TRIES = 3
_REFUSED = {Step.REFUSE, Step.REPLACE}  # records of a topic cannot be taken back
_OPEN_MAX = 16

CLAIM_MS = 10_000
"""Time limit of a claim's transaction: shorter than the time that a reader of markers waits for a killed process's
transaction.
"""

WRITTEN = "share int, records bigint, ms bigint"
"""The schema of a task's result: its share, and how many records it has written in which time.

Without a number of records, the producer was stale: the share is to be written once more.
"""


class OutputMarker(msgspec.Struct, frozen=True):
    """The stored marker, with the topic of the sink's records.

    The topic lets sinks of other jobs compare.

    Attributes:
        attempt: As in Published.
        batch_id: As in Published.
        topic: None if the records name it; left out in markers of shares and of earlier versions.
        job_id: The job; left out as the topic is.
        uid: The sink's uid; left out as the topic is.
    """

    attempt: int
    batch_id: int
    topic: str | msgspec.UnsetType | None = msgspec.UNSET
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    uid: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def published(self) -> Published:
        return Published(self.attempt, self.batch_id)


class KafkaOutput:
    """A transactional producer with a known marker.

    It is opened when needed, and again after any doubt.

    Args:
        settings: The settings of a client.
        name: The name of the job and the sink together.
        uid: The sink's uid, for errors.
        timeout_ms: How long a transaction may take.
        share: The share; None for the sink as a whole.
        topic: For the sink as a whole, the topic of its records; None if they name it.
        job_id: For the sink as a whole, its job.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        uid: str,
        timeout_ms: int,
        share: int | None = None,
        *,
        topic: str | msgspec.UnsetType | None = msgspec.UNSET,
        job_id: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        self._settings = dict(settings)
        self._name = name
        self._uid = uid
        self._timeout_ms = timeout_ms
        self._share = share
        self._topic = topic
        self._job_id = job_id
        self._open: TransactionalTopic | None = None
        self._marker: OutputMarker | None = None

    def repeat(self, act: Callable[[TransactionalTopic], None]) -> None:
        """Runs an action, and retries it if Kafka refuses.

        Each try knows what is visible. After an error it is unknown whether the transaction was committed. Opening a
        new producer settles the transaction, and the marker shows the result. A late driver of an older attempt is
        fenced in the same way, and finally gives up.

        Raises:
            SinkUnavailableError: The brokers do not answer, or refuse.
        """
        for left in reversed(range(_TRIES)):
            try:
                act(self.opened())
            except KafkaException as failure:
                self.close()
                if not left or is_away(error_of(failure)) or is_forbidden(error_of(failure)):
                    raise output_error(self._uid, failure) from None
            except BaseException:
                self.close()  # a transaction may be open
                raise
            else:
                return

    def opened(self) -> TransactionalTopic:
        """Returns the producer, opened and with its marker known. May raise KafkaException."""
        if self._open is None:
            opened = TransactionalTopic(self._settings, self._name, self._timeout_ms, self._share)
            last = opened.last_marker()
            self._marker = None if last is None else msgspec.json.decode(last, type=OutputMarker)
            self._open = opened
        return self._open

    @property
    def is_open(self) -> bool:
        """Whether a producer is open, which another one may have fenced since."""
        return self._open is not None

    def close(self) -> None:
        """Closes the producer; the next use opens a new producer."""
        self._open = None

    def step(self, attempt: int, batch_id: int) -> Step:
        """Returns what to do with the output of a batch."""
        return next_step(self._published, attempt, batch_id)

    def claim_topic(self, published: Published, *, shared: bool) -> None:
        """Claims the topic for the job, unless this sink uses it already.

        Jobs that start at once with one topic claim it one after the other: a claim is a transaction under an id of the
        topic, and each new claim fences an unfinished claim.

        Args:
            published: The attempt that starts, with the job's last committed batch.
            shared: Whether sinks of other jobs may also write to the topic.

        Raises:
            SinkOccupiedError: A sink of another job writes to this topic, or a newer attempt has taken over.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """

        def act(_opened: TransactionalTopic) -> None:
            # A marker of an earlier version does not name the topic; it counts as a marker of this topic.
            if self._marker is not None and self._marker.topic in {self._topic, msgspec.UNSET}:
                return
            self._refuse_newer_attempt(published)
            claim = TransactionalTopic(self._settings, self._name, CLAIM_MS, claimed=self._topic or "")
            if not shared:
                self._refuse_other_jobs()
            marker = self._marker_of(self._published or published)
            claim.write((), msgspec.json.encode(marker))
            self._marker = marker

        self.repeat(act)

    def _refuse_newer_attempt(self, published: Published) -> None:
        if self._marker is not None and self._marker.attempt > published.attempt:
            raise SinkOccupiedError(f"attempt {self._marker.attempt} writes the output of sink {self._uid}")

    def _refuse_other_jobs(self) -> None:
        for name, last in last_markers(self._settings):
            other = _decoded(last)
            if other is not None and other.topic == self._topic and other.job_id != self._job_id:
                topic = "the topics that its records name" if self._topic is None else f"topic {self._topic}"
                raise SinkOccupiedError(
                    f"sink {other.uid} of job {other.job_id} writes to {topic}: give sink {self._uid} its own"
                    " topic; or, if both jobs shall write there, create it with shared=True; or, if that job will"
                    f" never run again, delete topic {name}"
                )

    def take_over(self, published: Published) -> None:
        """Sets the marker for an attempt that starts, and fences older attempts.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """

        def act(_opened: TransactionalTopic) -> None:
            self._refuse_newer_attempt(published)
            if self._share is None and is_rewound(self._published, published.batch_id):
                logger.warning(
                    "sink %s: the job has gone back to batch %d; records of later batches stay in Kafka and are"
                    " written again",
                    self._uid,
                    published.batch_id,
                )
            self.write((), published)

        self.repeat(act)

    def write(self, records: Iterable[Mapping[str, Any]], published: Published) -> None:
        """Writes records and the marker in one transaction. May raise KafkaException."""
        marker = self._marker_of(published)
        self.opened().write(records, msgspec.json.encode(marker))
        self._marker = marker

    def _marker_of(self, published: Published) -> OutputMarker:
        uid = self._uid if self._share is None else msgspec.UNSET
        return OutputMarker(published.attempt, published.batch_id, self._topic, self._job_id, uid)

    @property
    def has_begun(self) -> bool:
        """Whether an attempt of the job has opened the sink here.

        Here means on these brokers.

        Each attempt does so at its start.
        """
        return self._marker is not None

    @property
    def _published(self) -> Published | None:
        return None if self._marker is None else self._marker.published


@dataclass(frozen=True, slots=True)
class WriteShare:
    """Writes the only partition of a share of a batch.

    It uses its own transaction and its own marker.

    A written share is not written again, whichever task or driver wrote it.

    Attributes:
        settings: The settings of a client.
        name: The name of the job and the sink together.
        uid: The sink's uid.
        timeout_ms: How long a transaction may take.
        published: The batch, and its attempt.
        topic: The topic of all records; None if the records name it.
        share: The share.
    """

    settings: dict[str, Any] = field(repr=False)
    name: str
    uid: str
    timeout_ms: int
    published: Published
    topic: str | None
    share: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the records, then yields the share.

        A producer that was open before may be stale: another worker's task or a newer driver has opened a producer of
        the share since. It is then closed, and the share is to be written by another task, as the records were read.

        Raises:
            CarriedFailure: Brokers do not answer or refuse, or a newer attempt has taken over.
        """
        output = self._output()
        began_ms, was_open = _elapsed_ms(), output.is_open
        counted = _Counted(_records(batches, self.topic))
        written: int | None = None
        try:
            self._write(output, counted)
            written = counted.count
        except KafkaException as failure:
            output.close()
            error = self._error(failure, _elapsed_ms() - began_ms)
            if not was_open or not isinstance(error, SinkUnavailableError) or is_away(error_of(failure)):
                raise CarriedFailure(error, TaskOrigin(self.uid, self.share)) from None
            logger.info("sink %s: the producer of share %d is stale: %s", self.uid, self.share, error)
        except KeyscaleError as error:
            output.close()
            raise CarriedFailure(error, TaskOrigin(self.uid, self.share)) from None
        except BaseException:
            output.close()
            raise
        yield pa.RecordBatch.from_pydict(
            {
                "share": pa.array([self.share], pa.int32()),
                "records": pa.array([written], pa.int64()),
                "ms": pa.array([_elapsed_ms() - began_ms], pa.int64()),
            }
        )

    def _error(self, failure: KafkaException, took_ms: int) -> KeyscaleError:
        """Returns the error behind a failed transaction.

        The brokers abort a transaction that takes longer than its time limit, whatever their answer is called.
        """
        if took_ms < self.timeout_ms or is_away(error_of(failure)) or is_forbidden(error_of(failure)):
            return output_error(self.uid, failure)
        return SinkTooSlowError(
            f"share {self.share} of batch {self.published.batch_id} of sink {self.uid} took {took_ms} ms to write; its"
            f" timeout_ms is {self.timeout_ms}"
        )

    def _write(self, output: KafkaOutput, records: Iterable[Mapping[str, Any]]) -> None:
        output.opened()
        step = output.step(self.published.attempt, self.published.batch_id)
        if step in _REFUSED:  # an earlier attempt in this worker left the output; the job may have gone back since
            output.close()
            output.opened()
            step = output.step(self.published.attempt, self.published.batch_id)
        if step in _REFUSED:
            raise SinkOccupiedError(
                f"a newer attempt than {self.published.attempt} writes the output of sink {self.uid}"
            )
        if step is Step.APPLY:
            output.write(records, self.published)
            failpoint("kafka.share_written")

    def _output(self) -> KafkaOutput:
        """Returns this worker's output of the share.

        It stays open: the share's next batch is often written here.
        """
        key = (self.name, self.share, self.timeout_ms, repr(sorted(self.settings.items())))
        if key not in _outputs:
            _outputs[key] = KafkaOutput(self.settings, self.name, self.uid, self.timeout_ms, self.share)
        _outputs.move_to_end(key)
        while len(_outputs) > _OPEN_MAX:
            _outputs.popitem(last=False)
        return _outputs[key]


_outputs: OrderedDict[tuple[str, int, int, str], KafkaOutput] = OrderedDict()
"""This worker's outputs, most recently used last."""


class _Counted:
    """Counts records as they are read."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._records = records
        self.count = 0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for record in self._records:
            self.count += 1
            yield record


def _elapsed_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _records(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[dict[str, Any]]:
    common = {} if topic is None else {"topic": topic}
    for batch in batches:
        for row in batch.to_pylist():
            record = {name: value for name, value in row.items() if value is not None}
            if "headers" in record:
                record["headers"] = [(each["key"], each["value"]) for each in record["headers"] if each is not None]
            yield {**common, **record}


def _decoded(marker: bytes) -> OutputMarker | None:
    """Returns a marker of another sink.

    Returns None for foreign content, whatever its topic's name.
    """
    try:
        return msgspec.json.decode(marker, type=OutputMarker)
    except msgspec.DecodeError:
        return None


def output_error(uid: str, failure: KafkaException) -> KeyscaleError:
    """Returns the error of a sink whose output Kafka does not accept."""
    error = error_of(failure)
    if is_forbidden(error):
        return SinkForbiddenError(
            f"Kafka refuses the output of sink {uid}: {error.name()} ({error.str()}). The user needs the rights to"
            " describe and write the topic, to create, read, write and add partitions to the topics"
            " keyscale-published-*, and to use transactional ids that begin with keyscale-"
        )
    return SinkUnavailableError(f"Kafka does not accept the output of sink {uid}: {error.name()}")

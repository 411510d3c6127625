"""Kafka topics: the records of a batch appear in one transaction with the marker that the batch is there."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all PySpark code has it
from pyspark.sql.types import StructType

from jobs.errors import (
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from jobs.hadoop_files import HadoopDirectory
from jobs.kafka_client import client_settings, error_of
from jobs.sinks.kafka_transactions import TransactionalTopic
from jobs.sinks.published import Published, Step, next_step
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import Row

    from jobs.secret import Secret
    from jobs.sinks.contract import SinkContext

_COLUMNS = {"key", "value", "topic", "partition", "headers"}
_TRIES = 3


class _Token(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    columns: str  # the staged files' schema, as Spark's JSON: reading it from them would take a Spark job each


class KafkaSink:
    """Writes the columns of Spark's Kafka sink: `value`, and if there are `key`, `topic`, `partition`, `headers`.

    Exactly once for readers with `isolation.level=read_committed`; others also see records of transactions that were aborted.
    `prepare` stages the batch in files; after the commit `publish` writes them, through the driver, in one transaction with a
    marker in a topic of the sink's own, `keyscale-published-<job>-<uid>`. Kafka fences an older driver by the
    transactional id, and a batch that the marker contains is not written again.

    The records of a key are in a topic's partition in the order in which the key's subtask has put them out. A job that goes
    back to an earlier savepoint writes what comes after it again: a topic takes nothing back.

    Args:
        servers: Addresses of brokers, comma separated.
        topic: Where all records go; None: the column `topic` says it.
        staging: A directory for batches under way, at any address that Spark can write to, and that is still there after a crash.
        config: Further settings of librdkafka, such as security.protocol or compression.type; a password is a Secret.
        timeout_ms: How long a transaction may take, which the broker has to allow (transaction.max.timeout.ms).
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(
        self,
        servers: str,
        topic: str | None = None,
        *,
        staging: str,
        config: Mapping[str, str | int | bool | Secret] | None = None,
        timeout_ms: int = 300_000,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._staging_path = staging.rstrip("/")
        self._config = dict(config or {})
        self._timeout_ms = timeout_ms
        self._open: TransactionalTopic | None = None
        self._marker: Published | None = None

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Stages the batch.

        Raises:
            SinkRowsRefusedError: The columns are not those of a Kafka sink.
        """
        columns = set(frame.columns)
        if "value" not in columns or not columns <= _COLUMNS or (self._topic is None and "topic" not in columns):
            message = f"a Kafka sink takes value, key, topic, partition and headers; the stream has {', '.join(frame.columns)}"
            raise SinkRowsRefusedError(message)
        binary: dict[str, Column] = {name: F.col(name).cast("binary") for name in ("key", "value") if name in columns}
        records = frame.withColumns(binary)
        columns_json = records.schema.json()
        token = _Token(context.job_id, context.uid, context.batch_id, context.attempt, context.unique, columns_json)
        staging = self._staging(token)
        try:
            records.write.parquet(staging.path)
        except Exception:
            with contextlib.suppress(SinkPublishError):  # the first failure is the one to tell
                staging.delete()
            raise
        return msgspec.json.encode(token).decode()

    def publish(self, token: str) -> None:
        """Writes a batch in one transaction, unless it is there.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkPublishError: The staged files are gone.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """
        key = msgspec.json.decode(token, type=_Token)
        staging = self._staging(key)

        def write() -> None:
            step = next_step(self._marker, key.attempt, key.batch_id)
            if step is Step.APPLY and not staging.exists():
                # Another driver of the job may have written them since, and removed them.
                self._marker = self._last_marker()
                step = next_step(self._marker, key.attempt, key.batch_id)
                if step is Step.APPLY:
                    message = f"the staged records of batch {key.batch_id} of sink {key.uid} are gone"
                    raise SinkPublishError(message)
            if step is Step.REFUSE:
                message = f"a newer attempt than {key.attempt} writes the output of sink {key.uid}"
                raise SinkOccupiedError(message)
            if step is Step.APPLY:
                self._write(_records(staging, key.columns, self._topic), Published(key.attempt, key.batch_id))

        self._repeat(key, write)
        staging.delete()

    def discard(self, token: str) -> None:
        self._staging(msgspec.json.decode(token, type=_Token)).delete()

    def recover(self, context: SinkContext) -> None:
        """Takes the sink over for an attempt, and removes what earlier ones have staged.

        Raises:
            SinkOccupiedError: A newer attempt has it.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """

        def take_over() -> None:
            if self._marker is not None and self._marker.attempt > context.attempt:
                message = f"attempt {self._marker.attempt} writes the output of sink {context.uid}"
                raise SinkOccupiedError(message)
            self._write((), Published(context.attempt, context.batch_id))

        self._repeat(context, take_over)
        staged = self._staged(context.job_id, context.uid)
        for name in staged.names():
            if int(name.split("-")[1]) < context.attempt:
                staged.child(name).delete()

    def _repeat(self, of: SinkContext | _Token, act: Callable[[], None]) -> None:
        """Does what it is told until Kafka does not fail it, each time knowing what is visible.

        After an error it is unknown whether the transaction was committed: the producer is opened anew, which settles it, and
        the marker is read. A driver of an older attempt that comes late is shut out the same way, and in the end gives up.
        """
        for left in reversed(range(_TRIES)):
            try:
                if self._open is None:
                    self._open = self._opened(of)
                    self._marker = self._last_marker()
                act()
            except KafkaException as failure:
                self._open = None
                if not left:
                    message = f"Kafka does not take the output of sink {of.uid}: {error_of(failure).name()}"
                    raise SinkUnavailableError(message) from None
            except BaseException:
                self._open = None  # a transaction may be under way
                raise
            else:
                return

    def _opened(self, of: SinkContext | _Token) -> TransactionalTopic:
        settings = client_settings(self._servers, self._config, {})
        return TransactionalTopic(settings, f"{of.job_id}-{of.uid}", self._timeout_ms)

    def _last_marker(self) -> Published | None:
        assert self._open is not None  # noqa: S101 - `_repeat` has opened it
        last = self._open.last_marker()
        return None if last is None else msgspec.json.decode(last, type=Published)

    def _write(self, records: Iterable[Mapping[str, Any]], marker: Published) -> None:
        assert self._open is not None  # noqa: S101 - `_repeat` has opened it
        self._open.write(records, msgspec.json.encode(marker))
        self._marker = marker
        reach("kafka.written")

    def _staged(self, job_id: str, uid: str) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), f"{self._staging_path}/{job_id}/{uid}")

    def _staging(self, key: _Token) -> HadoopDirectory:
        return self._staged(key.job_id, key.uid).child(f"{key.batch_id}-{key.attempt}-{key.unique}")


def _records(staging: HadoopDirectory, columns: str, topic: str | None) -> Iterator[dict[str, Any]]:
    """The staged records, a file after the other: each has the records of a subtask in their order."""
    reader = SparkSession.active().read.schema(StructType.fromJson(json.loads(columns)))
    for name in sorted(staging.names()):
        if not name.startswith(("_", ".")):
            rows: Iterator[Row] = reader.parquet(staging.child(name).path).toLocalIterator(True)
            for row in rows:
                yield {**({} if topic is None else {"topic": topic}), **_without_nulls(row)}


def _without_nulls(row: Row) -> dict[str, Any]:
    record = {name: value for name, value in row.asDict().items() if value is not None}
    for name in ("key", "value"):
        if name in record:
            record[name] = bytes(record[name])
    if "headers" in record:
        record["headers"] = [
            (each["key"], None if each["value"] is None else bytes(each["value"])) for each in record["headers"]
        ]
    return record

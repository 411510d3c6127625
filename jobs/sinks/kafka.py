"""The Kafka sink: the records of a batch appear in one transaction with a marker of the batch."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark
from pyspark.sql.types import StructType

from keyscale.jobs.errors import SinkOccupiedError, SinkPublishError, SinkRowsRefusedError, SinkUnavailableError
from keyscale.jobs.kafka_client import client_settings, error_of, is_away
from keyscale.jobs.sinks.dead_letters import DeadLetters
from keyscale.jobs.sinks.kafka_topics import RECORD_BYTES_MAX, Refusal, TopicDirectory, TopicLimits, payload_bytes
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic
from keyscale.jobs.sinks.published import Published, Step, next_step
from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory
from keyscale.state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import Row

    from keyscale.jobs.secret import Secret
    from keyscale.jobs.sinks.sink import Sink, SinkContext

logger = logging.getLogger(__name__)

_COLUMNS = {"key", "value", "topic", "partition", "headers"}
_PAYLOAD = ("key", "value", "headers")
_TYPES = {"key": "binary", "partition": "int", "headers": "array<struct<key: string, value: binary>>"}
_BYTES = "_keyscale_bytes"
_TRIES = 3


class _Token(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    columns: str  # the staged files' schema as Spark's JSON; reading it from the files takes a Spark job
    batch_bytes_max: int = RECORD_BYTES_MAX
    refusal: Refusal | None = None  # the rule for the staged records that are not written; None if all are
    dead_letters: str | None = None


class KafkaSink:
    """Writes the columns of Spark's Kafka sink: `value`, and optionally `key`, `topic`, `partition` and `headers`.

    Output is exactly once for readers with `isolation.level=read_committed`; others also see records of aborted
    transactions. `prepare` stages the batch in files. After the commit, `publish` writes them through the driver, in
    one transaction with a marker in a separate topic, `keyscale-published-<job>-<uid>`. Kafka fences older drivers by
    the transactional id, and a batch that the marker covers is not written again.

    In a topic's partition, the records of a key are in the order in which the key's subtask emitted them. A job that
    goes back to an earlier savepoint writes later records again, since a topic cannot take records back.

    Records that the brokers would refuse are found before the commit: those without a topic, of a topic or partition
    that is not there, too large for the client (`message.max.bytes`) or, uncompressed, for the topic
    (`max.message.bytes`), or without a key in a compacted topic. They fail the batch, or become dead letters.

    Args:
        servers: Addresses of brokers, separated by commas.
        topic: The topic of all records; None to take it from the column `topic`.
        staging: A directory for staged batches, at any address that Spark can write to; it must survive a crash.
        config: Further settings of librdkafka, such as security.protocol or compression.type. Give passwords as a
            Secret.
        timeout_ms: How long a transaction may take; the broker must allow it (transaction.max.timeout.ms).
        dead_letters: A sink for refused records, which then do not fail the batch. It gets their columns and `error`,
            in batches that have any.
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
        dead_letters: Sink | None = None,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._staging_path = staging.rstrip("/")
        self._config = dict(config or {})
        self._timeout_ms = timeout_ms
        self._dead_letters = DeadLetters(dead_letters)
        self._directory: TopicDirectory | None = None
        self._batch_bytes_max = RECORD_BYTES_MAX
        self._open: TransactionalTopic | None = None
        self._marker: Published | None = None

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Stages the batch.

        Raises:
            SinkRowsRefusedError: The columns are not those of a Kafka sink, there is no such topic, or the brokers
                would refuse a record.
            SinkUnavailableError: The brokers do not answer.
        """
        columns = set(frame.columns)
        if "value" not in columns or not columns <= _COLUMNS or (self._topic is None and "topic" not in columns):
            raise SinkRowsRefusedError(
                "a Kafka sink takes value, key, topic, partition and headers;"
                f" the stream has {', '.join(frame.columns)}"
            )
        binary: dict[str, Column] = {name: F.col(name).cast("binary") for name in ("key", "value") if name in columns}
        limits = {} if self._topic is None else self._limits({self._topic})  # before the records are computed
        if self._topic is not None and not limits:
            raise SinkRowsRefusedError(f"there is no topic {self._topic}")
        records = frame.withColumns(binary)
        records = records.withColumn(_BYTES, payload_bytes(*(_column(records, name) for name in _PAYLOAD)))
        columns_json = records.schema.json()
        token = _Token(context.job_id, context.uid, context.batch_id, context.attempt, context.unique, columns_json)
        staging = self._staging(token)
        try:
            records.write.parquet(staging.path)
            token = self._checked(token, context, limits)
        except Exception:
            with contextlib.suppress(SinkPublishError):  # report the first failure, or that the system is away
                staging.delete()
            raise
        return msgspec.json.encode(token).decode()

    def _checked(self, token: _Token, context: SinkContext, limits: dict[str, TopicLimits]) -> _Token:
        """Stages records that the brokers would refuse as dead letters; returns the token of the others."""
        staged = _staged_records(self._staging(token).path, token)
        if "topic" in staged.columns:
            limits = limits | self._limits({row.topic for row in staged.select("topic").distinct().collect()} - {None})
        refusal = Refusal(limits, int(self._settings.get("message.max.bytes", RECORD_BYTES_MAX)))
        refused = staged.withColumn("error", _reason(staged, self._topic, refusal)).where("error IS NOT NULL")
        reasons = {row.error: row["count"] for row in refused.groupBy("error").count().collect()}
        token = msgspec.structs.replace(token, batch_bytes_max=refusal.batch_bytes_max)
        if not reasons:
            return token
        letters = self._dead_letters.prepare(refused.drop(_BYTES), reasons, context)
        return msgspec.structs.replace(token, refusal=refusal, dead_letters=letters)

    def _limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        """Returns the limits of those topics that exist."""
        try:
            self._directory = self._directory or TopicDirectory(self._settings)
            return self._directory.limits(names)
        except KafkaException as failure:
            self._directory = None
            raise SinkUnavailableError(f"Kafka does not describe its topics: {error_of(failure).name()}") from None

    def publish(self, token: str) -> None:
        """Makes a batch visible in one transaction, unless it is visible already.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkPublishError: The staged files are gone.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """
        key = msgspec.json.decode(token, type=_Token)
        staging = self._staging(key)
        if key.batch_bytes_max < self._batch_bytes_max:
            self._batch_bytes_max, self._open = key.batch_bytes_max, None

        def write() -> None:
            step = next_step(self._marker, key.attempt, key.batch_id)
            if step is Step.APPLY and not staging.exists():
                # Another driver of the job may have written and removed them.
                self._marker = self._last_marker()
                step = next_step(self._marker, key.attempt, key.batch_id)
                if step is Step.APPLY:
                    raise SinkPublishError(f"the staged records of batch {key.batch_id} of sink {key.uid} are gone")
            if step is Step.REFUSE:
                raise SinkOccupiedError(f"a newer attempt than {key.attempt} writes the output of sink {key.uid}")
            if step is Step.APPLY:
                self._write(_records(staging, key, self._topic), Published(key.attempt, key.batch_id))

        self._repeat(key, write)
        self._dead_letters.publish(key.dead_letters)
        staging.delete()

    def discard(self, token: str) -> None:
        key = msgspec.json.decode(token, type=_Token)
        self._dead_letters.discard(key.dead_letters)
        self._staging(key).delete()

    def recover(self, context: SinkContext) -> None:
        """Takes the sink over for an attempt, and removes batches that earlier runs have staged.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """

        def take_over() -> None:
            if self._marker is not None and self._marker.attempt > context.attempt:
                raise SinkOccupiedError(f"attempt {self._marker.attempt} writes the output of sink {context.uid}")
            self._write((), Published(context.attempt, context.batch_id))

        self._repeat(context, take_over)
        staged = self._staged(context.job_id, context.uid)
        left = [name for name in staged.names() if int(name.split("-")[1]) <= context.attempt]
        for name in left:
            staged.child(name).delete()
        if left:
            logger.info("sink %s: removed %d batches that earlier runs had staged", context.uid, len(left))
        self._dead_letters.recover(context)

    def _repeat(self, of: SinkContext | _Token, act: Callable[[], None]) -> None:
        """Runs an action, and retries it if Kafka refuses, each time knowing what is visible.

        After an error it is unknown whether the transaction was committed. Opening a new producer settles that, and the
        marker tells. A late driver of an older attempt is fenced in the same way, and finally gives up.
        """
        for left in reversed(range(_TRIES)):
            try:
                if self._open is None:
                    self._open = self._opened(of)
                    self._marker = self._last_marker()
                act()
            except KafkaException as failure:
                self._open = None
                if not left or is_away(error_of(failure)):
                    raise SinkUnavailableError(
                        f"Kafka does not accept the output of sink {of.uid}: {error_of(failure).name()}"
                    ) from None
            except BaseException:
                self._open = None  # a transaction may be open
                raise
            else:
                return

    def _opened(self, of: SinkContext | _Token) -> TransactionalTopic:
        settings = self._settings
        # Records that fit one by one must not be refused because the client sends them together.
        settings["batch.size"] = min(self._batch_bytes_max, int(settings.get("batch.size", RECORD_BYTES_MAX)))
        return TransactionalTopic(settings, f"{of.job_id}-{of.uid}", self._timeout_ms)

    @property
    def _settings(self) -> dict[str, Any]:
        return client_settings(self._servers, self._config, {})

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


def _records(staging: HadoopDirectory, token: _Token, topic: str | None) -> Iterator[dict[str, Any]]:
    """Yields the staged records file by file. Each file has the records of one subtask in their order."""
    for name in sorted(staging.names()):
        if not name.startswith(("_", ".")):
            records = _staged_records(staging.child(name).path, token)
            if token.refusal is not None:
                records = records.where(_reason(records, topic, token.refusal).isNull())
            rows: Iterator[Row] = records.drop(_BYTES).toLocalIterator(True)
            for row in rows:
                yield {**({} if topic is None else {"topic": topic}), **_without_nulls(row)}


def _staged_records(path: str, token: _Token) -> DataFrame:
    return SparkSession.active().read.schema(StructType.fromJson(json.loads(token.columns))).parquet(path)


def _reason(staged: DataFrame, topic: str | None, refusal: Refusal) -> Column:
    partition, key = (_column(staged, name) for name in ("partition", "key"))
    return refusal.reason(_topic_of(staged, topic), partition, key, F.col(_BYTES))


def _topic_of(records: DataFrame, topic: str | None) -> Column:
    return F.coalesce(_column(records, "topic"), F.lit(topic))


def _column(records: DataFrame, name: str) -> Column:
    """Returns an optional column; null if the records do not have it."""
    return F.col(name) if name in records.columns else F.lit(None).cast(_TYPES.get(name, "string"))


def _without_nulls(row: Row) -> dict[str, Any]:
    record = {name: value for name, value in row.asDict().items() if value is not None}
    for name in ("key", "value"):
        if name in record:
            record[name] = bytes(record[name])
    if "headers" in record:
        record["headers"] = [
            (each["key"], None if each["value"] is None else bytes(each["value"]))
            for each in record["headers"]
            if each is not None
        ]
    return record

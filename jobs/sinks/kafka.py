"""The Kafka sink.

Tasks write the records of a batch, each task in one transaction with a marker of the batch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark
from pyspark.sql.types import StructType

from keyscale.failpoints import failpoint

from ..errors import (
    InvalidTopologyError,
    SinkForbiddenError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from ..kafka_client import client_settings
from ..operators.failures import typed_failure
from ..spark_internals.hadoop_files import HadoopDirectory
from .dead_letters import DeadLetters
from .kafka_output import WRITTEN, KafkaOutput, WriteShare, output_error
from .kafka_topics import RECORD_BYTES_MAX, Refusal, TopicDirectory, TopicLimits, payload_bytes
from .kafka_transactions import check_transactions
from .published import Published, Step, decoded_token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column

    from ..secret import Secret
    from .kafka_transactions import TransactionalTopic
    from .sink import Sink, SinkContext

logger = logging.getLogger(__name__)

_COLUMNS = {"key", "value", "topic", "partition", "headers"}
_PAYLOAD = ("key", "value", "headers")
_TYPES = {"key": "binary", "partition": "int", "headers": "array<struct<key: string, value: binary>>"}
_CHECK = "_check"  # the name of a file by which the sink finds out whether it can stage
_BYTES = "_keyscale_bytes"
_CHUNK = re.compile(r"-c(\d+)\.")  # in the name of a file that Spark writes: its number among its task's files
_TRIES = 2
_TAKEN_OVER_AT_ONCE = 8


class _Token(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    columns: str  # the staged files' schema as Spark's JSON; reading it from the files takes a Spark job
    batch_bytes_max: int = RECORD_BYTES_MAX
    refusal: Refusal | None = None  # the rule for staged records that are not written; None if all records are written
    dead_letters: str | None = None
    dead_letter_rows: int = 0
    shares: int = 1  # the number of transactions that write its records
    width: int | None = None  # the number of transactions at a time; None if all are written at once
    # The sink's topic and config, which another program may have changed; left out by earlier versions.
    topic: str | msgspec.UnsetType | None = msgspec.UNSET
    staging: str | msgspec.UnsetType = msgspec.UNSET


class KafkaSink:
    """Writes the columns of Spark's Kafka sink.

    These are `value`, and optionally `key`, `topic`, `partition` and `headers`.

    Output is exactly once for readers with `isolation.level=read_committed`; other readers also see records of aborted
    transactions. `prepare` stages the batch in files, one or more per subtask. After the commit, `publish` runs tasks
    that write the files in parallel: each task writes its share, in one transaction with a marker in a separate topic,
    `keyscale-published-<job>-<uid>`. A share that its marker covers is not written again. Kafka fences the tasks of
    older drivers by the share's transactional id.

    In a topic's partition, the records of a key are in the order in which the key's subtask emitted them. A job that
    goes back to an earlier savepoint writes later records again, since a topic cannot take records back.

    Records that the brokers would refuse are found before the commit: records without a topic, with an unknown topic or
    partition, too large for the client (`message.max.bytes`) or, uncompressed, for the topic (`max.message.bytes`), or
    without a key in a compacted topic. Such records fail the batch, or become dead letters.

    Args:
        servers: Addresses of brokers, separated by commas.
        topic: The topic of all records; None to take it from the column `topic`.
        staging: A directory for staged batches, at any address that Spark can write to; it must survive a crash.
        config: Further settings of librdkafka, such as security.protocol or compression.type. Give passwords as a
            Secret.
        timeout_ms: How long a transaction may take; the broker must allow it (transaction.max.timeout.ms).
        dead_letters: A sink for refused records, which then do not fail the batch. It gets the records' columns and
            `error`, only in batches with refused records.
        writers: Maximum number of tasks that write a batch at a time, each in its own transaction; by default as many
            as Spark runs at a time. With 1, readers see a batch as a whole or not at all.
        shared: Whether other jobs may also write to the topic. The records of the jobs cannot be distinguished: a fork
            of the job still needs its own topic, which is then not checked.
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
        writers: int | None = None,
        shared: bool = False,
    ) -> None:
        if writers is not None and writers < 1:
            raise InvalidTopologyError(f"a Kafka sink needs at least one writer, not {writers}")
        self._servers = servers
        self._topic = topic
        self._writers = writers
        self._shared = shared
        self._staging_path = staging.rstrip("/")
        self._config = dict(config or {})
        self._timeout_ms = timeout_ms
        self._dead_letters = DeadLetters(dead_letters)
        self._directory: TopicDirectory | None = None
        self._batch_bytes_max = RECORD_BYTES_MAX
        self._output: KafkaOutput | None = None
        self._shares = 0  # the shares known to have markers
        self._file_records: int | None = None  # the records of a staged file, once a share has been slow

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Stages the batch.

        Raises:
            SinkRowsRefusedError: The columns do not fit a Kafka sink, the topic does not exist, or the brokers would
                refuse a record.
            SinkUnavailableError: The brokers do not answer.
        """
        columns = set(frame.columns)
        self._refuse_columns(frame.columns)
        binary: dict[str, Column] = {name: F.col(name).cast("binary") for name in ("key", "value") if name in columns}
        limits = self._limits_of_topic(context.uid)  # before the records are computed
        records = frame.withColumns(binary)
        records = records.withColumn(_BYTES, payload_bytes(*(_column(records, name) for name in _PAYLOAD)))
        columns_json = records.schema.json()
        place = (context.job_id, context.uid, context.batch_id, context.attempt, context.unique)
        token = _Token(*place, columns_json, topic=self._topic, staging=self._staging_path)
        staging = self._staging(token)
        try:
            split = {} if self._file_records is None else {"maxRecordsPerFile": self._file_records}
            records.write.options(**split).parquet(staging.path)
            token = with_shares(token, _data_files(staging), self._writers or _task_slots())
            token = self._checked(token, context, limits)
        except Exception:
            staging.require_right()  # Spark says only that it could not make a directory
            with contextlib.suppress(SinkPublishError):  # report the first failure, or the outage
                staging.delete()
            raise
        return msgspec.json.encode(token).decode()

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        """Tries the staging directory, a transaction and the right to write.

        Writes no record: readers with another isolation level would see it, though its transaction is aborted.

        Raises:
            SinkForbiddenError: A right is missing.
            SinkPublishError: The file system of the staging directory refuses.
            SinkRowsRefusedError: The columns do not fit, or the topic does not exist.
            SinkUnavailableError: The brokers or the file system do not answer.
        """
        self._refuse_columns(schema.names)
        self._limits_of_topic(context.uid)
        try:
            if self._topic is not None and self._directory is not None and not self._directory.may_write(self._topic):
                raise SinkForbiddenError(f"the user of sink {context.uid} may not write to topic {self._topic}")
            check_transactions(self._settings, _name(context), self._timeout_ms)
        except KafkaException as failure:
            raise output_error(context.uid, failure) from None
        staging = self._staged(context.job_id, context.uid).child(f"0-{context.attempt}-{context.unique}")
        staging.require_right()
        try:
            staging.write_text(_CHECK, "")
        finally:
            with contextlib.suppress(SinkForbiddenError, SinkPublishError, SinkUnavailableError):
                staging.delete()
        self._dead_letters.check(schema, context)

    def _refuse_columns(self, names: Sequence[str]) -> None:
        columns = set(names)
        if "value" not in columns or not columns <= _COLUMNS or (self._topic is None and "topic" not in columns):
            raise SinkRowsRefusedError(
                f"a Kafka sink takes value, key, topic, partition and headers; the stream has {', '.join(names)}"
            )

    def _limits_of_topic(self, uid: str) -> dict[str, TopicLimits]:
        """Returns the limits of the sink's topic.

        Returns none if the records name their topics.
        """
        limits = {} if self._topic is None else self._limits({self._topic}, uid)
        if self._topic is not None and not limits:
            raise SinkRowsRefusedError(f"the topic {self._topic} does not exist")
        return limits

    def _checked(self, token: _Token, context: SinkContext, limits: dict[str, TopicLimits]) -> _Token:
        """Stages records that the brokers would refuse as dead letters.

        Returns the token of the remaining records.
        """
        staged = _staged_records([self._staging(token).path], token)
        if "topic" in staged.columns:
            limits = limits | self._limits(
                {row.topic for row in staged.select("topic").distinct().collect()} - {None}, token.uid
            )
        refusal = Refusal(limits, int(self._settings.get("message.max.bytes", RECORD_BYTES_MAX)))
        refused = staged.withColumn("error", _reason(staged, self._topic, refusal)).where("error IS NOT NULL")
        reasons = {row.error: row["count"] for row in refused.groupBy("error").count().collect()}
        token = msgspec.structs.replace(token, batch_bytes_max=refusal.batch_bytes_max)
        if not reasons:
            return token
        letters = self._dead_letters.prepare(refused.drop(_BYTES), reasons, context)
        count = sum(reasons.values())
        return msgspec.structs.replace(token, refusal=refusal, dead_letters=letters, dead_letter_rows=count)

    def _limits(self, names: Collection[str], uid: str) -> dict[str, TopicLimits]:
        """Returns the limits of the existing topics."""
        try:
            self._directory = self._directory or TopicDirectory(self._settings)
            return self._directory.limits(names)
        except KafkaException as failure:
            self._directory = None
            raise output_error(uid, failure) from None

    def publish(self, token: str) -> None:
        """Makes a batch visible in its topic, unless it is visible already.

        The topic is the topic that the batch was staged for. Each share of the batch is written in one transaction.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkPublishError: The staged files are gone.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """
        key = decoded_token(token, _Token)
        if key is None:
            return
        sink = self._as_staged(key)
        staging = sink._staging(key)
        sink._output_of(key).repeat(lambda opened: sink._publish(key, opened, staging))
        self._dead_letters.publish(key.dead_letters)
        staging.delete()

    def _as_staged(self, key: _Token) -> KafkaSink:
        """Returns the sink as it was when a batch was staged.

        Another program may have given it another topic since.
        """
        topic = self._topic if isinstance(key.topic, msgspec.UnsetType) else key.topic
        staging = self._staging_path if isinstance(key.staging, msgspec.UnsetType) else key.staging
        if (topic, staging) == (self._topic, self._staging_path):
            return self
        return KafkaSink(
            self._servers,
            topic,
            staging=staging,
            config=self._config,
            timeout_ms=self._timeout_ms,
            writers=self._writers,
        )

    def _publish(self, key: _Token, opened: TransactionalTopic, staging: HadoopDirectory) -> None:
        output = self._output_of(key)
        step = output.step(key.attempt, key.batch_id)
        if step is Step.APPLY and not staging.exists():
            # Another driver of the job may have written and removed the staged files.
            output.close()
            output.opened()
            step = output.step(key.attempt, key.batch_id)
            if step is Step.APPLY and not output.has_begun:
                # The job wrote to other brokers, or its markers are gone.
                logger.warning("sink %s: batch %d is not found on these brokers", key.uid, key.batch_id)
                return
            if step is Step.APPLY:
                raise SinkPublishError(f"the staged records of batch {key.batch_id} of sink {key.uid} are gone")
        if step is Step.REFUSE:
            raise SinkOccupiedError(f"a newer attempt than {key.attempt} writes the output of sink {key.uid}")
        if step is Step.APPLY:
            self._write_shares(key, opened, staging)
            output.write((), Published(key.attempt, key.batch_id))
            failpoint("kafka.written")

    def _write_shares(self, key: _Token, opened: TransactionalTopic, staging: HadoopDirectory) -> None:
        """Writes the staged records in parallel tasks.

        A share that is already written is skipped.
        """
        if self._shares < key.shares:
            if opened.shares() < key.shares:
                opened.add_shares(key.shares)
            self._shares = key.shares
        written = [
            records.mapInArrow(self._share(key, share).run, WRITTEN)
            for share, records in enumerate(self._records_of_shares(key, staging))
        ]
        files = _data_files(staging)
        first = 0
        for shares in rounds_of(key, files):
            self._write_round(key, written[first : first + len(shares)], max(map(len, shares), default=1))
            first += len(shares)

    def _write_round(self, key: _Token, written: Sequence[DataFrame], files: int) -> None:
        """Writes shares at the same time.

        `files` is the number of files of the largest share. Each worker may have a stale producer of each share; a
        stale producer is closed when it fails, so that the rounds with stale producers end.
        """
        tries = 0
        while True:
            try:
                # A share's partition has the share's number, and so finds its worker.
                rows = reduce(DataFrame.union, written).collect()
            except Exception as failure:
                error, tries = typed_failure(failure), tries + 1
                if tries == _TRIES or not isinstance(error, SinkUnavailableError):
                    raise error from failure
            else:
                if all(row.records is not None for row in rows):
                    self._note_times(key, rows, files)
                    return

    def _note_times(self, key: _Token, rows: Sequence[Any], files: int) -> None:
        """Warns of slow shares, and splits the shares of later batches."""
        slowest = max(rows, key=lambda row: row.ms)
        if 2 * slowest.ms <= self._timeout_ms:
            return
        logger.warning(
            "sink %s: share %d of batch %d took %d ms to write; the limit, timeout_ms, is %d%s",
            key.uid,
            slowest.share,
            key.batch_id,
            slowest.ms,
            self._timeout_ms,
            "" if self._writers == 1 else "; later batches are written in more transactions",
        )
        if self._writers != 1:  # a single transaction makes a batch visible as a whole
            in_time = slowest.records * self._timeout_ms // (4 * slowest.ms)
            self._file_records = max(1, in_time // files)

    def _share(self, key: _Token, share: int) -> WriteShare:
        published = Published(key.attempt, key.batch_id)
        return WriteShare(self._producer_settings, _name(key), key.uid, self._timeout_ms, published, self._topic, share)

    def _records_of_shares(self, key: _Token, staging: HadoopDirectory) -> Iterator[DataFrame]:
        """Yields the records of each share, in one partition.

        A share has whole files, each with the records of one subtask.
        """
        for files in chain.from_iterable(rounds_of(key, _data_files(staging))):
            records = _staged_records([staging.child(name).path for name in files], key)
            if key.refusal is not None:
                records = records.where(_reason(records, self._topic, key.refusal).isNull())
            yield records.drop(_BYTES).coalesce(1)

    def dead_letters_of(self, token: str) -> int:
        return msgspec.json.decode(token, type=_Token).dead_letter_rows

    def discard(self, token: str) -> None:
        key = msgspec.json.decode(token, type=_Token)
        self._dead_letters.discard(key.dead_letters)
        self._staging(key).delete()

    def recover(self, context: SinkContext) -> None:
        """Takes the sink over for an attempt.

        Also removes batches that earlier runs have staged.

        Raises:
            SinkOccupiedError: A newer attempt has taken over, or another job writes there.
            SinkUnavailableError: The brokers do not answer, or refuse.
        """
        output = self._output_of(context)
        published = Published(context.attempt, context.batch_id)
        output.claim_topic(published, shared=self._shared)
        output.take_over(published)
        output.repeat(lambda opened: self._take_over_shares(context, opened.shares(), published))
        staged = self._staged(context.job_id, context.uid)
        left = [name for name in staged.names() if int(name.split("-")[1]) <= context.attempt]
        for name in left:
            staged.child(name).delete()
        if left:
            logger.info("sink %s: removed %d batches that earlier runs had staged", context.uid, len(left))
        self._dead_letters.recover(context)

    def _take_over_shares(self, context: SinkContext, shares: int, published: Published) -> None:
        """Fences older attempts in every share, so that their tasks stop writing."""
        settings = self._producer_settings
        outputs = [
            KafkaOutput(settings, _name(context), context.uid, self._timeout_ms, share) for share in range(shares)
        ]
        with ThreadPoolExecutor(_TAKEN_OVER_AT_ONCE, thread_name_prefix="kafka-share") as pool:
            list(pool.map(lambda output: output.take_over(published), outputs))
        self._shares = shares

    def _output_of(self, of: SinkContext | _Token) -> KafkaOutput:
        """Returns the output of the sink as a whole.

        Its marker is set once all shares of a batch are written.
        """
        if isinstance(of, _Token) and of.batch_bytes_max < self._batch_bytes_max:
            self._batch_bytes_max = of.batch_bytes_max
        if self._output is None:
            self._output = KafkaOutput(
                self._settings, _name(of), of.uid, self._timeout_ms, topic=self._topic, job_id=of.job_id
            )
        return self._output

    @property
    def _producer_settings(self) -> dict[str, Any]:
        settings = self._settings
        # Records that fit one by one must not be refused because the client sends them together.
        settings["batch.size"] = min(self._batch_bytes_max, int(settings.get("batch.size", RECORD_BYTES_MAX)))
        return settings

    @property
    def _settings(self) -> dict[str, Any]:
        return client_settings(self._servers, self._config, {})

    def _staged(self, job_id: str, uid: str) -> HadoopDirectory:
        return HadoopDirectory(SparkSession.active(), f"{self._staging_path}/{job_id}/{uid}")

    def _staging(self, key: _Token) -> HadoopDirectory:
        return self._staged(key.job_id, key.uid).child(f"{key.batch_id}-{key.attempt}-{key.unique}")


def _task_slots() -> int:
    return SparkSession.active().sparkContext.defaultParallelism


def _name(of: SinkContext | _Token) -> str:
    return f"{of.job_id}-{of.uid}"


def _data_files(staging: HadoopDirectory) -> list[str]:
    return sorted(name for name in staging.names() if not name.startswith(("_", ".")))


def with_shares(token: _Token, files: Sequence[str], writers: int) -> _Token:
    """Divides staged files among transactions.

    A subtask's output in several files is written file after file, which keeps its order.
    """
    width = max(1, min(len(_chunks(files)[0]) if files else 1, writers))
    divided = msgspec.structs.replace(token, shares=width, width=width)
    shares = list(chain.from_iterable(rounds_of(divided, files)))
    if len(shares) <= width:
        return msgspec.structs.replace(token, shares=width)
    return msgspec.structs.replace(divided, shares=len(shares))


def rounds_of(token: _Token, files: Sequence[str]) -> list[list[list[str]]]:
    """Returns the rounds of a batch: the files of each share.

    It depends only on the token and the files' names, so that every try writes the same shares.
    """
    width = token.width
    if width is None:
        return [[list(files[share :: token.shares]) for share in range(token.shares)]]
    return [[chunk[share::width] for share in range(min(width, len(chunk)))] for chunk in _chunks(files)]


def _chunks(files: Sequence[str]) -> list[list[str]]:
    """Returns the first files of all subtasks, then the second files..."""
    chunks: dict[int, list[str]] = {}
    for name in sorted(files):
        found = _CHUNK.search(name)
        chunks.setdefault(0 if found is None else int(found[1]), []).append(name)
    return [chunks[number] for number in sorted(chunks)]


def _staged_records(paths: Sequence[str], token: _Token) -> DataFrame:
    return SparkSession.active().read.schema(StructType.fromJson(json.loads(token.columns))).parquet(*paths)


def _reason(staged: DataFrame, topic: str | None, refusal: Refusal) -> Column:
    partition, key = (_column(staged, name) for name in ("partition", "key"))
    return refusal.reason(_topic_of(staged, topic), partition, key, F.col(_BYTES))


def _topic_of(records: DataFrame, topic: str | None) -> Column:
    return F.coalesce(_column(records, "topic"), F.lit(topic))


def _column(records: DataFrame, name: str) -> Column:
    """Returns an optional column; null if the records do not have it."""
    return F.col(name) if name in records.columns else F.lit(None).cast(_TYPES.get(name, "string"))

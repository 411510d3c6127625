"""Records appear in Kafka a batch at a time, once, and only those that were committed."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from keyscale import FileSink, KafkaSink, KafkaSource, SinkContext
from keyscale.jobs.errors import (
    InvalidTopologyError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from keyscale.jobs.sinks import kafka_output, kafka_topics, kafka_transactions
from keyscale.jobs.sinks.kafka import _Token
from keyscale.jobs.sinks.kafka_output import WRITTEN, KafkaOutput, WriteShare
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic, last_markers, markers_topic
from keyscale.jobs.sinks.published import Published
from tests.support.repository import ROOT
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

# A driver that is killed when all records of a transaction are in the topic, and the transaction is not committed.
INTERRUPTED = """
import sys
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic
from keyscale.jobs.sinks.published import Published
servers, topic, name, share = sys.argv[1:]
opened = TransactionalTopic({"bootstrap.servers": servers}, name, 300_000)
opened.add_shares(3)
opened = TransactionalTopic({"bootstrap.servers": servers}, name, 300_000, int(share))
opened._producer.client.begin_transaction()
for number in range(3):
    opened._produce({"topic": topic, "value": str(number).encode()})
opened._producer.client.flush(60)
print("written", flush=True)
sys.stdin.read()
"""

# A driver that is killed when its claim of the topic is in the topic of markers, and is not committed.
CLAIMING = """
import sys
from keyscale.jobs.sinks.kafka_output import CLAIM_MS
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic, markers_topic
servers, topic, name = sys.argv[1:]
settings = {"bootstrap.servers": servers}
TransactionalTopic(settings, name, 300_000)
claim = TransactionalTopic(settings, name, CLAIM_MS, claimed=topic)
claim._producer.client.begin_transaction()
claim._produce({"topic": markers_topic(name), "key": b"published", "value": b"a claim", "partition": 0})
claim._producer.client.flush(60)
print("written", flush=True)
sys.stdin.read()
"""


class Output:
    """A topic, and sinks that write to it: each is another driver's."""

    def __init__(self, kafka: Broker, staging: Path) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic()
        self.staging = staging

    def sink(self, **settings: Any) -> KafkaSink:
        return KafkaSink(self.kafka.servers, **{"topic": self.topic, "staging": str(self.staging), **settings})

    def context(self, batch_id: int = 0, *, attempt: int = 1, unique: str = "u") -> SinkContext:
        return SinkContext(job_id=self.topic, uid="out", batch_id=batch_id, attempt=attempt, unique=unique)

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.staging.glob("*/*/*"))

    @property
    def values(self) -> list[str]:
        return self.kafka.values(self.topic)

    @property
    def driver_producers(self) -> list[tuple[int, int]]:
        """The producers of the sink as a whole: one for each driver that took it over."""
        return self.kafka.transactional_ids()[f"keyscale-{self.topic}-out"]


@pytest.fixture
def output(kafka: Broker, tmp_path: Path) -> Output:
    return Output(kafka, tmp_path / "staging")


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr("CAST(id AS STRING) AS value")


def texts(start: int, end: int) -> list[str]:
    return sorted(str(number) for number in range(start, end))


def test_nothing_is_seen_before_publish_and_all_of_it_once_after_any_number_of_them(
    spark: SparkSession, output: Output
) -> None:
    first = output.sink()
    first.recover(output.context(-1))
    token = first.prepare(numbers(spark, 0, 5), output.context())
    assert output.values == []
    first.publish(token)
    first.publish(token)
    output.sink().publish(token)  # the next driver does not know whether the one before has
    assert output.values == texts(0, 5)
    assert output.staged() == []


@pytest.mark.parametrize("share", short_form([0, 2], [0]))
def test_a_transaction_that_a_killed_driver_left_open_is_never_seen(
    spark: SparkSession, output: Output, share: int
) -> None:
    """Whether the batch that is published next has that share or not."""
    sink = output.sink()
    sink.recover(output.context(-1))
    token = sink.prepare(numbers(spark, 0, 3), output.context())
    command = [sys.executable, "-c", INTERRUPTED, output.kafka.servers, output.topic, f"{output.topic}-out", str(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.kill()
    newer = output.sink()
    newer.publish(token)
    newer.recover(output.context(0, attempt=2))
    assert output.values == texts(0, 3)
    assert len(output.kafka.values(output.topic, committed=False)) == 6  # the broker has both: the markers tell


def write_first_share(sink: KafkaSink, token: str) -> None:
    """Does what a driver has done that dies, or sleeps, after the first of its tasks."""
    key = msgspec.json.decode(token, type=_Token)
    first, *others = sink._records_of_shares(key, sink._staging(key))
    assert others
    sink._output_of(key).opened().add_shares(key.shares)
    first.mapInArrow(sink._share(key, 0).run, WRITTEN).collect()


def test_subtasks_records_are_written_by_several_tasks_or_by_one(spark: SparkSession, output: Output) -> None:
    for batch_id, writers in enumerate([1, None]):
        sink = output.sink(writers=writers)
        sink.recover(output.context(batch_id - 1, attempt=batch_id + 1))
        sink.publish(sink.prepare(numbers(spark, 5 * batch_id, 5 * batch_id + 5), output.context(batch_id, attempt=2)))
        opened = TransactionalTopic({"bootstrap.servers": output.kafka.servers}, f"{output.topic}-out", 60_000)
        assert opened.shares() == batch_id + 1
    # Each transaction leaves a marker of Kafka's own: three with records, besides those of other topics.
    ends = KafkaSource(output.kafka.servers, output.topic).latest({f"{output.topic}/0": 0}, None)
    assert ends[f"{output.topic}/0"]["offset"] == 10 + 3  # type: ignore[index,call-overload]
    assert output.values == texts(0, 10)
    with pytest.raises(InvalidTopologyError, match="at least one writer"):
        output.sink(writers=0)


def test_a_batch_of_which_a_driver_that_died_has_written_a_share_is_completed_by_the_next(
    spark: SparkSession, output: Output
) -> None:
    sink = output.sink()
    sink.recover(output.context(-1))
    token = sink.prepare(numbers(spark, 0, 10), output.context())
    write_first_share(sink, token)
    assert 0 < len(output.values) < 10
    newer = output.sink()
    newer.publish(token)
    newer.recover(output.context(0, attempt=2))
    newer.publish(newer.prepare(numbers(spark, 10, 15), output.context(1, attempt=2)))
    assert output.values == texts(0, 15)


def test_no_share_of_an_older_attempt_is_written_once_a_newer_one_has_begun(
    spark: SparkSession, output: Output
) -> None:
    older = output.sink()
    older.recover(output.context(-1))
    older.publish(older.prepare(numbers(spark, 0, 5), output.context(0)))
    late = msgspec.json.decode(older.prepare(numbers(spark, 5, 10), output.context(1)), type=_Token)
    opened = older._output_of(late).opened()
    output.sink().recover(output.context(0, attempt=2))
    with pytest.raises(SinkOccupiedError):  # its producers, which are open, are shut out, and the markers tell the rest
        older._write_shares(late, opened, older._staging(late))
    assert output.values == texts(0, 5)


@pytest.mark.exhaustive  # the model of the brokers shows it in the fast tier
def test_a_driver_that_is_shut_out_by_an_older_one_takes_the_sink_back(spark: SparkSession, output: Output) -> None:
    """The older ones come late, with a batch that the newer one has published for them."""
    older, latest, newer = output.sink(), output.sink(), output.sink()
    older.recover(output.context(-1))
    token = older.prepare(numbers(spark, 0, 3), output.context(0))
    newer.publish(token)
    newer.recover(output.context(0, attempt=2))
    older.publish(token)  # its marker says that the batch is not there, and what was staged is gone
    latest.publish(token)  # this one has opened the sink just now, and so shut out the newer one
    newer.publish(newer.prepare(numbers(spark, 3, 5), output.context(1, attempt=2)))
    assert output.values == texts(0, 5)
    late = older.prepare(numbers(spark, 7, 9), output.context(5))
    with pytest.raises(SinkOccupiedError):
        older.publish(late)
    assert output.values == texts(0, 5)


def test_an_attempt_that_was_replaced_does_not_take_the_sink_over(output: Output, spark: SparkSession) -> None:  # noqa: ARG001 - the session must be there
    output.sink().recover(output.context(3, attempt=2))
    with pytest.raises(SinkOccupiedError):
        output.sink().recover(output.context(3, attempt=1))


@pytest.mark.exhaustive  # the sink of files stages in the same way
def test_recovery_removes_what_runs_up_to_this_one_have_staged(spark: SparkSession, output: Output) -> None:
    left_behind = output.sink()
    left_behind.prepare(numbers(spark, 0, 1), output.context(0))
    left_behind.prepare(numbers(spark, 0, 1), output.context(0, attempt=2, unique="of-a-run-before-a-restart"))
    left_behind.prepare(numbers(spark, 0, 1), output.context(0, attempt=3, unique="newer"))
    output.sink().recover(output.context(-1, attempt=2))
    assert output.staged() == ["0-3-newer"]


@pytest.mark.exhaustive  # the model of the brokers shows it in the fast tier
def test_a_discarded_batch_cannot_be_published(spark: SparkSession, output: Output) -> None:
    sink = output.sink()
    sink.recover(output.context(-1))
    token = sink.prepare(numbers(spark, 0, 1), output.context())
    sink.discard(token)
    sink.discard(token)
    with pytest.raises(SinkPublishError, match="gone"):
        sink.publish(token)
    sink.publish(sink.prepare(numbers(spark, 1, 2), output.context()))  # what failed is not in the next transaction
    assert output.values == ["1"]


def test_keys_headers_topics_and_partitions_are_those_of_the_columns(
    spark: SparkSession, output: Output, kafka: Broker
) -> None:
    other = kafka.create_topic(2)
    frame = spark.sql(
        f"SELECT 'k' AS key, X'00FF' AS value, '{other}' AS topic, 1 AS partition, "
        "array(named_struct('key', 'h', 'value', X'01')) AS headers UNION ALL "
        f"SELECT null, 'v', '{other}', 0, null"
    )
    sink = KafkaSink(kafka.servers, staging=str(output.staging))
    sink.publish(sink.prepare(frame, output.context()))
    found = sorted((m.partition(), m.key(), m.value(), m.headers()) for m in kafka.messages(other))
    assert found == [(0, None, b"v", None), (1, b"k", b"\x00\xff", [("h", b"\x01")])]


def test_records_of_a_partition_keep_their_order(spark: SparkSession, output: Output) -> None:
    sink = output.sink()
    sink.publish(sink.prepare(spark.range(0, 3000, 1, 1).selectExpr("CAST(id AS STRING) AS value"), output.context()))
    sink._file_records = 100  # as after a slow share: the subtask's files are written in rounds
    token = sink.prepare(spark.range(3000, 3300, 1, 1).selectExpr("CAST(id AS STRING) AS value"), output.context(1))
    assert msgspec.json.decode(token)["shares"] == 3
    sink.publish(token)
    in_topic = [int(message.value() or b"") for message in output.kafka.messages(output.topic)]
    assert in_topic == list(range(3300))


@pytest.mark.parametrize("columns", [["id"], ["value", "extra"]])
def test_columns_that_are_not_a_kafka_sinks_are_refused(
    spark: SparkSession, output: Output, columns: list[str]
) -> None:
    frame = spark.createDataFrame([("x",) * len(columns)], columns)
    with pytest.raises(SinkRowsRefusedError, match="takes value"):
        output.sink().prepare(frame, output.context())


def test_a_topic_that_is_not_there_is_told_before_anything_runs(
    spark: SparkSession, output: Output, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{output.topic}-late"
    sink = output.sink(topic=name)
    monkeypatch.setattr(kafka_topics, "_NEW_TOPIC_SECONDS", 0.0)
    with pytest.raises(SinkRowsRefusedError, match=f"topic {name} does not exist"):
        sink.prepare(spark.sql("SELECT raise_error('computed') AS value"), output.context())
    monkeypatch.undo()
    kafka.create_topic(name=name)
    sink.publish(sink.prepare(numbers(spark, 0, 2), output.context()))
    assert kafka.values(name) == texts(0, 2)


@pytest.mark.exhaustive  # as the client's time for a message passes
def test_what_was_committed_is_published_once_its_topic_is_back(
    spark: SparkSession, output: Output, kafka: Broker
) -> None:
    sink = output.sink(config={"message.timeout.ms": 2000}, timeout_ms=10_000)
    token = sink.prepare(numbers(spark, 0, 2), output.context())
    kafka.delete_topic(output.topic)
    with pytest.raises(SinkUnavailableError, match="out"):
        sink.publish(token)
    kafka.create_topic(name=output.topic)
    sink.publish(token)
    assert output.values == texts(0, 2)


REFUSED = [
    ("null AS topic", "1 with no topic"),
    ("'no-such-topic' AS topic", "1 with no such topic"),
    ("TOPIC AS topic, 7 AS partition", "2 with no such partition"),
    ("TOPIC AS topic, -1 AS partition", "2 with no such partition"),
    ("COMPACTED AS topic", "1 with no key, which a compacted topic needs"),
    ("SMALL AS topic, repeat('k', 2000) AS key", "2 with too large"),
    (
        "SMALL AS topic, array(struct(repeat('h', 2000) AS key, X'00' AS value)) AS headers",
        "2 with too large",
    ),
]
"""The columns of a record, and how the error counts the records of one batch with all of them."""


def test_records_that_the_brokers_would_refuse_fail_the_batch_before_its_commit(
    spark: SparkSession, output: Output, topics: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "_NEW_TOPIC_SECONDS", 1.5)
    columns = [column for column, _ in REFUSED]
    for name, topic in topics.items():
        columns = [column.replace(name, f"'{topic}'") for column in columns]
    rows = [spark.sql(f"SELECT 'secret' AS value, {each}") for each in [*columns, f"'{output.topic}' AS topic"]]
    sink = KafkaSink(output.kafka.servers, staging=str(output.staging))
    with pytest.raises(SinkRowsRefusedError) as failure:
        sink.prepare(reduce(partial(DataFrame.unionByName, allowMissingColumns=True), rows), output.context())
    reasons = str(failure.value).rpartition("would be refused: ")[2]
    assert set(reasons.split("; ")) == {reason for _, reason in REFUSED}
    assert output.staged() == []


@pytest.fixture
def topics(kafka: Broker, output: Output) -> dict[str, str]:
    compacted = kafka.create_topic(**{"cleanup.policy": "compact"})
    return {"TOPIC": output.topic, "COMPACTED": compacted, "SMALL": kafka.create_topic(**{"max.message.bytes": "2000"})}


@pytest.mark.exhaustive  # a record that is far too large is refused with others above
def test_the_largest_record_that_fits_is_written_and_one_byte_more_is_refused(
    spark: SparkSession, output: Output
) -> None:
    sink = output.sink()
    largest = 1_000_000 - 36  # of a client with its default settings
    sink.publish(sink.prepare(spark.sql(f"SELECT repeat('x', {largest}) AS value"), output.context()))
    assert [len(value) for value in output.values] == [largest]
    with pytest.raises(SinkRowsRefusedError, match="too large"):
        sink.prepare(spark.sql(f"SELECT repeat('x', {largest} + 1) AS value"), output.context(1))


@pytest.mark.exhaustive  # seconds, as the client sends many small batches
def test_records_that_fit_one_by_one_are_written_to_a_topic_of_small_batches(
    spark: SparkSession, output: Output, topics: dict[str, str]
) -> None:
    sink = output.sink(topic=topics["SMALL"])
    sink.recover(output.context(-1))
    first = output.sink(topic=topics["SMALL"]).prepare(spark.range(1).selectExpr("'1' AS value"), output.context())
    sink.publish(first)
    frame = spark.range(50).selectExpr("repeat('x', 1900) AS value")
    sink.publish(sink.prepare(frame, output.context(1)))
    assert len(output.kafka.values(topics["SMALL"])) == 51


def test_refused_records_are_dead_letters_and_all_other_records_are_written(
    spark: SparkSession, output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "_NEW_TOPIC_SECONDS", 1.5)
    letters = tmp_path / "letters"
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"IF(id % 10 = 3, 'no-such-topic', '{output.topic}') AS topic"
    )

    def sink() -> KafkaSink:
        dead_letters = FileSink(str(letters), format="json")
        return KafkaSink(output.kafka.servers, staging=str(output.staging), dead_letters=dead_letters, shared=True)

    first = sink()
    first.recover(output.context(-1))
    token = first.prepare(frame, output.context())
    assert first.dead_letters_of(token) == 10
    assert not list(letters.glob("batch=*"))
    first.publish(token)
    sink().publish(token)  # as the next driver does
    assert output.values == sorted(str(number) for number in range(100) if number % 10 != 3)
    refused = spark.read.json(str(letters)).orderBy("value").collect()
    assert [(row.value, row.topic, row.error) for row in refused] == [
        (base64.b64encode(str(number).encode()).decode(), "no-such-topic", "no such topic")
        for number in sorted(range(3, 100, 10), key=str)
    ]
    failed = first.prepare(frame, output.context(1))
    first.discard(failed)
    assert output.staged() == []
    assert not list(letters.glob("_staging/*/*/*"))
    empty = first.prepare(numbers(spark, 0, 0).withColumn("topic", F.lit("")), output.context(1))
    assert first.dead_letters_of(empty) == 0
    first.publish(empty)
    assert sorted(path.name for path in letters.glob("batch=*")) == ["batch=0"], "a batch without dead letters has none"


def test_the_last_marker_is_found_among_many(kafka: Broker) -> None:
    topic = kafka.create_topic()
    opened = TransactionalTopic({"bootstrap.servers": kafka.servers}, topic, 60_000)
    assert opened.last_marker() is None
    for number in range(5):
        opened.write([], f"{number}".encode())
    assert TransactionalTopic({"bootstrap.servers": kafka.servers}, topic, 60_000).last_marker() == b"4"


@pytest.mark.exhaustive  # the real tier refuses an unrelated job below
def test_a_fork_is_refused_the_topic_of_the_job_that_runs_on_and_leaves_its_transactions_alone(
    spark: SparkSession, output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    def fork(batch_id: int, attempt: int = 1) -> SinkContext:
        return replace(
            output.context(batch_id, attempt=attempt), job_id=f"{output.topic}-fork", forked_from=output.topic
        )

    original = output.sink()
    original.recover(output.context(-1))
    original.publish(original.prepare(numbers(spark, 0, 3), output.context()))
    running = original.prepare(numbers(spark, 3, 5), output.context(1))
    of_driver = output.driver_producers
    with pytest.raises(SinkOccupiedError, match=f"sink out of job {output.topic} writes to topic {output.topic}"):
        output.sink().recover(fork(0))
    copies = output.kafka.create_topic()
    own = output.sink(topic=copies)
    own.recover(fork(0))
    own.publish(own.prepare(numbers(spark, 3, 4), fork(1)))
    original.publish(running)
    original.publish(original.prepare(numbers(spark, 5, 6), output.context(2)))
    assert output.values == texts(0, 6), "the fork has neither written there nor shut the job out"
    assert output.driver_producers == of_driver
    assert output.kafka.values(copies) == ["3"]
    again = output.sink(topic=copies)
    again.recover(fork(0, attempt=2))
    assert "records of later batches stay in Kafka" in caplog.text
    again.publish(again.prepare(numbers(spark, 3, 4), fork(1, attempt=2)))
    assert output.kafka.values(copies) == ["3", "3"]
    assert output.staged() == []
    output.sink().recover(output.context(2, attempt=2))
    assert len(output.driver_producers) == len(of_driver) + 1, "a takeover would show"


@pytest.mark.parametrize("job", short_form(["an unrelated job", "a fork of a fork"], ["an unrelated job"]))
@pytest.mark.usefixtures("spark")
def test_no_other_job_may_write_to_a_jobs_topic_until_its_marker_is_gone(output: Output, job: str) -> None:
    output.sink().recover(output.context(-1))
    origin = "fork" if job == "a fork of a fork" else None
    another = replace(output.context(), job_id=f"{output.topic}-another", uid="copy", forked_from=origin)
    for _ in range(2):
        with pytest.raises(SinkOccupiedError, match=r"writes to topic .* shared=True") as refused:
            output.sink().recover(another)
    output.sink().recover(output.context(0, attempt=2))
    own = output.kafka.create_topic()
    output.sink(topic=own).recover(another)
    with pytest.raises(SinkOccupiedError, match=f"sink out of job {output.topic}"):
        output.sink().recover(replace(another, attempt=2))  # it has written, but elsewhere
    markers = str(refused.value).rpartition("delete topic ")[2]
    output.kafka.delete_topic(markers)
    output.sink().recover(replace(another, attempt=2))


@pytest.mark.exhaustive  # the model of the brokers shows it in the fast tier
def test_of_jobs_that_start_at_once_with_one_topic_one_gets_it(output: Output) -> None:
    settings, starts = {"bootstrap.servers": output.kafka.servers}, threading.Barrier(4)

    def gets_in(job: str) -> bool:
        sink = KafkaOutput(settings, f"{job}-out", "out", 60_000, topic=output.topic, job_id=job)
        sink.opened()
        starts.wait()
        try:
            sink.claim_topic(Published(1, -1), shared=False)
        except (SinkOccupiedError, SinkUnavailableError):  # the second: others shut its claim out three times
            return False
        sink.take_over(Published(1, -1))
        return True

    jobs = [f"{output.topic}-{number}" for number in range(starts.parties)]
    with ThreadPoolExecutor(starts.parties) as pool:
        got = list(pool.map(gets_in, jobs))
    assert sum(got) == 1
    owner = jobs[got.index(True)]
    with pytest.raises(SinkOccupiedError, match=f"sink out of job {owner} writes to topic"):
        KafkaOutput(settings, "new-out", "out", 60_000, topic=output.topic, job_id="new").claim_topic(
            Published(1, -1), shared=False
        )


def test_a_topic_of_markers_that_brokers_do_not_know_yet_is_waited_for(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, end_of = TransactionalTopic._create_markers, kafka_transactions._end
    settings = {"bootstrap.servers": output.kafka.servers}
    waiting: list[threading.Timer] = []

    def end_of_a_topic_that_comes(*of: Any) -> int:
        if not waiting:
            waiting.append(threading.Timer(0.3, make, [opened]))
            waiting[0].start()
        return end_of(*of)

    monkeypatch.setattr(TransactionalTopic, "_create_markers", lambda _: None)
    opened = TransactionalTopic(settings, f"{output.topic}-out", 60_000)
    monkeypatch.setattr(kafka_transactions, "_end", end_of_a_topic_that_comes)
    sink = KafkaOutput(settings, f"{output.topic}-out", "out", 60_000, topic=output.topic, job_id=output.topic)
    sink.claim_topic(Published(1, -1), shared=False)
    assert sink.has_begun


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "just made"])
def test_the_markers_of_another_sink_are_left_out_only_if_their_topic_is_gone(
    output: Output, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    settings = {"bootstrap.servers": output.kafka.servers}
    TransactionalTopic(settings, f"{output.topic}-out", 60_000).write([], b"marker")
    topic, end_of, asked = markers_topic(f"{output.topic}-out"), kafka_transactions._end, []

    def end_after(settings: dict[str, Any], partition: TopicPartition, isolation: IsolationLevel) -> int:
        if partition.topic == topic:
            asked.append(partition)
            if len(asked) == 1 and is_deleted:
                output.kafka.delete_topic(topic)
            elif len(asked) == 1:
                partition = TopicPartition("not-there", 0)
        return end_of(settings, partition, isolation)

    monkeypatch.setattr(kafka_transactions, "_end", end_after)
    found = dict(last_markers(settings))
    assert found.get(topic) == (None if is_deleted else b"marker")
    assert asked


@pytest.mark.exhaustive  # seconds; an unrelated job is refused above
def test_a_sink_that_claims_a_topic_sees_a_sharing_sink_that_has_claimed_it_meanwhile(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(job: str) -> KafkaOutput:
        settings = {"bootstrap.servers": output.kafka.servers}
        return KafkaOutput(settings, f"{job}-out", "out", 60_000, topic=output.topic, job_id=job)

    sharing, looks = of(f"{output.topic}-sharing"), []

    def look_while_another_claims(settings: dict[str, Any]) -> list[tuple[str, bytes]]:
        found = last_markers(settings)
        looks.append(len(found))
        if len(looks) == 1:
            sharing.claim_topic(Published(1, -1), shared=True)
        return found

    monkeypatch.setattr(kafka_output, "last_markers", look_while_another_claims)
    with pytest.raises(SinkOccupiedError, match=f"sink out of job {output.topic}-sharing writes to topic"):
        of(f"{output.topic}-alone").claim_topic(Published(1, -1), shared=False)
    assert len(looks) == 2, "it looked again"
    assert sharing.has_begun


@pytest.mark.exhaustive  # the test above shows the moment between claim and look
def test_of_two_sinks_that_start_at_once_the_sharing_sink_always_gets_the_topic(
    output: Output,
) -> None:
    settings, starts = {"bootstrap.servers": output.kafka.servers}, threading.Barrier(2)

    def gets_in(shared: bool) -> bool:
        job = f"{output.topic}-{shared}"
        sink = KafkaOutput(settings, f"{job}-out", "out", 60_000, topic=output.topic, job_id=job)
        sink.opened()
        starts.wait()
        try:
            sink.claim_topic(Published(1, -1), shared=shared)
        except SinkOccupiedError:
            return False
        sink.take_over(Published(1, -1))
        return sink.has_begun

    with ThreadPoolExecutor(starts.parties) as pool:
        sharing, _ = pool.map(gets_in, [True, False])
    assert sharing
    with pytest.raises(SinkOccupiedError):
        KafkaOutput(settings, "new-out", "out", 60_000, topic=output.topic, job_id="new").claim_topic(
            Published(1, -1), shared=False
        )


@pytest.mark.exhaustive  # as the brokers' time for a claim passes
@pytest.mark.parametrize("is_other", [True, False], ids=["another job", "the job itself"])
def test_a_claim_that_is_killed_half_way_blocks_no_later_claim(output: Output, is_other: bool) -> None:
    job = f"{output.topic}-killed"
    command = [sys.executable, "-c", CLAIMING, output.kafka.servers, output.topic, f"{job}-out"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.kill()
    next_job = f"{output.topic}-next" if is_other else job
    settings = {"bootstrap.servers": output.kafka.servers}
    sink = KafkaOutput(settings, f"{next_job}-out", "out", 60_000, topic=output.topic, job_id=next_job)
    sink.claim_topic(Published(1, -1), shared=False)
    sink.take_over(Published(1, -1))
    assert sink.has_begun


@pytest.mark.exhaustive  # the model of the brokers shows it in the fast tier
@pytest.mark.parametrize("is_published", [True, False], ids=["published", "only committed"])
def test_a_batch_is_published_where_it_was_staged_for_after_the_jobs_topic_has_changed(
    spark: SparkSession, output: Output, tmp_path: Path, is_published: bool
) -> None:
    topic = output.kafka.create_topic()
    before, after = output.sink(), output.sink(topic=topic, staging=str(tmp_path / "elsewhere"))
    before.recover(output.context(-1))
    token = before.prepare(numbers(spark, 0, 3), output.context())
    if is_published:
        before.publish(token)
    after.publish(token)
    after.recover(output.context(0, attempt=2))
    after.publish(after.prepare(numbers(spark, 3, 5), output.context(1, attempt=2)))
    assert (output.values, output.kafka.values(topic)) == (texts(0, 3), texts(3, 5))
    assert output.staged() == []


@pytest.mark.exhaustive  # a rare change of brokers, and seconds
def test_a_job_whose_brokers_have_changed_goes_on_on_the_new_ones(
    spark: SparkSession, output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = output.sink(), output.sink()
    before.recover(output.context(-1))
    token = before.prepare(numbers(spark, 0, 3), output.context())
    before.publish(token)
    output.kafka.delete_topic(markers_topic(f"{output.topic}-out"))  # as on brokers that do not know the job
    after.publish(token)
    assert "sink out: batch 0 is not found on these brokers" in caplog.text
    after.recover(output.context(0, attempt=2))


@pytest.mark.usefixtures("spark")
def test_jobs_share_a_topic_if_their_sinks_say_so(output: Output) -> None:
    output.sink(shared=True).recover(output.context(-1))
    another = replace(output.context(), job_id=f"{output.topic}-another")
    output.sink(shared=True).recover(another)
    output.sink().recover(replace(another, attempt=2))  # it has written there before
    with pytest.raises(SinkOccupiedError, match="writes to topic"):
        output.sink().recover(replace(another, job_id=f"{output.topic}-third"))


@pytest.mark.usefixtures("spark")
def test_a_sink_whose_marker_is_of_an_earlier_version_goes_on(output: Output) -> None:
    settings = {"bootstrap.servers": output.kafka.servers}
    output.sink(shared=True).recover(replace(output.context(), job_id=f"{output.topic}-another"))
    TransactionalTopic(settings, f"{output.topic}-out", 60_000).write([], b'{"attempt":1,"batch_id":0}')
    output.sink().recover(output.context(0, attempt=2))


def test_a_worker_that_has_written_a_share_writes_it_once_more_after_the_job_has_gone_back(kafka: Broker) -> None:
    topic = kafka.create_topic()
    settings = {"bootstrap.servers": kafka.servers}
    TransactionalTopic(settings, topic, 60_000).add_shares(1)

    def write(attempt: int) -> None:
        records = pa.RecordBatch.from_pydict({"value": pa.array([str(attempt).encode()])})
        list(WriteShare(settings, topic, "out", 60_000, Published(attempt, 1), topic, 0).run(iter([records])))

    write(1)
    write(1)
    KafkaOutput(settings, topic, "out", 60_000, 0).take_over(Published(2, 0))
    write(2)
    assert kafka.values(topic) == ["1", "2"]

"""The records of a Kafka sink are exactly those of the committed batches, whenever its driver is killed.

Brokers and file system are models; transactions, markers and shares are the sink's own.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, OrderedDict
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale import KafkaSink
from keyscale.jobs.errors import (
    SinkForbiddenError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkTooSlowError,
    SinkUnavailableError,
)
from keyscale.jobs.sinks import kafka, kafka_output
from keyscale.jobs.sinks.kafka_output import KafkaOutput, WriteShare
from keyscale.jobs.sinks.kafka_topics import TopicLimits
from keyscale.jobs.sinks.kafka_transactions import markers_topic
from keyscale.jobs.sinks.published import Published
from keyscale.jobs.sinks.sink import SinkContext
from tests.support.sinks.driver import JOB, UID, Host, SinkDriver, every_kill
from tests.support.sinks.file_system import MappedFrame, ModelSession, TableFrame, use_model
from tests.support.sinks.kafka_brokers import Brokers, ModelProducer, use_brokers
from tests.support.sinks.kafka_staging import SHARES_MAX, prepare, records_of_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    Play = Callable[[Host, Brokers, Path], SinkDriver]

LAST, FILES, TOPIC = 2, SHARES_MAX, "records"


@pytest.fixture(params=[None, 1], ids=["several writers", "one writer"])
def driver_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(kafka, "DataFrame", MappedFrame)
    monkeypatch.setattr(KafkaSink, "prepare", prepare)
    monkeypatch.setattr(KafkaSink, "_records_of_shares", records_of_shares)

    def make(host: Host, brokers: Brokers, path: Path) -> SinkDriver:
        session = ModelSession(host)
        brokers.host = host
        use_model(monkeypatch, session, kafka)
        use_brokers(monkeypatch, brokers)
        monkeypatch.setattr(kafka_output, "_outputs", OrderedDict())

        def frame(batch_id: int, attempt: int) -> TableFrame:
            rows = [[{"id": 10 * batch_id + part, "attempt": attempt}] for part in range(FILES)]
            return TableFrame(session, tuple(map(pa.Table.from_pylist, rows)))

        return SinkDriver(lambda: sink(path, writers=request.param), frame)

    return make


@pytest.fixture
def brokers() -> Brokers:
    return Brokers(Host(), {TOPIC: [[]], "another": [[]]})


@pytest.fixture
def driver(driver_in: Play, brokers: Brokers, tmp_path: Path) -> SinkDriver:
    return driver_in(Host(), brokers, tmp_path)


def sink(path: Path, topic: str = TOPIC, **options: Any) -> KafkaSink:
    return KafkaSink("x:1", topic, staging=str(path / "staging"), **options)


def ids(brokers: Brokers, topic: str = TOPIC) -> list[int]:
    return sorted(json.loads(value)["id"] for value in brokers.values(topic))


def expected_ids(*batches: int) -> list[int]:
    return sorted(10 * batch_id + part for batch_id in batches for part in range(FILES))


def test_a_driver_that_is_killed_before_any_effect_neither_loses_nor_doubles_a_record(
    driver_in: Play, tmp_path: Path
) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> tuple[Brokers, Path]:
        brokers, path = Brokers(host, {TOPIC: [[]]}), next(paths)
        driver_in(host, brokers, path).run(LAST)
        return brokers, path

    for number, (brokers, path) in every_kill(play):
        assert ids(brokers) == expected_ids(0, 1, 2), f"killed before effect {number}"
        assert not list(path.rglob("part-*")), f"killed before effect {number}"
    assert number > 20


def test_a_worker_that_outlives_the_driver_and_has_an_old_marker_writes_nothing_twice(
    driver: SinkDriver, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.run_attempt(0)
    of_worker = kafka_output._outputs
    monkeypatch.setattr(kafka_output, "_outputs", OrderedDict())  # the next batch runs in another worker
    driver.run_attempt(1)
    monkeypatch.setattr(kafka_output, "_outputs", of_worker)
    driver.run_attempt(2)
    assert ids(brokers) == expected_ids(0, 1, 2)


def test_a_share_with_a_stale_producer_in_every_worker_is_written(
    driver: SinkDriver, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tries = WriteShare.run, Counter[int]()
    workers: list[OrderedDict[Any, KafkaOutput]] = [OrderedDict() for _ in range(3)]

    def in_another_worker(task: WriteShare, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        monkeypatch.setattr(kafka_output, "_outputs", workers[tries[task.share] % len(workers)])
        tries[task.share] += 1
        yield from run(task, batches)

    monkeypatch.setattr(WriteShare, "run", in_another_worker)
    for batch_id in range(len(workers)):
        driver.run_attempt(batch_id)
    assert all(workers)
    driver.run_attempt(len(workers))  # its driver has fenced all of them
    assert ids(brokers) == expected_ids(*range(len(workers) + 1))


def test_a_batch_is_not_visible_before_it_is_published_and_only_once_after(
    driver: SinkDriver, brokers: Brokers
) -> None:
    of = driver.start()
    token = of.prepare(driver.frame(0, 1), driver.context(0))
    assert ids(brokers) == []
    of.publish(token)
    of.publish(token)
    driver.committed, driver.tokens[0] = 0, token
    driver.start().publish(token)
    assert ids(brokers) == expected_ids(0)


def test_a_share_that_is_written_is_not_written_again_by_the_next_driver(
    driver: SinkDriver, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = driver.start()
    driver.tokens[0] = of.prepare(driver.frame(0, 1), driver.context(0))
    driver.committed = 0
    written = []

    def failpoint(moment: str) -> None:
        written.append(moment)
        if moment == "kafka.share_written":
            raise KeyboardInterrupt

    monkeypatch.setattr(kafka_output, "failpoint", failpoint)
    with pytest.raises(KeyboardInterrupt):
        of.publish(driver.tokens[0])
    assert written == ["kafka.share_written"]
    monkeypatch.setattr(kafka_output, "failpoint", lambda _: None)
    driver.start()
    assert ids(brokers) == expected_ids(0)


def test_an_older_attempt_is_shut_out_of_every_share_when_a_newer_one_begins(
    driver: SinkDriver, brokers: Brokers
) -> None:
    old = driver.start()
    late = old.prepare(driver.frame(0, 1), driver.context(0))
    driver.committed, driver.tokens[0] = 0, late
    old.publish(late)
    late = old.prepare(driver.frame(1, 1), driver.context(1))
    driver.start()
    with pytest.raises((SinkOccupiedError, SinkPublishError)):
        old.publish(late)
    assert ids(brokers) == expected_ids(0)


def test_an_attempt_that_restarts_in_its_process_removes_the_batch_that_it_has_staged(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path
) -> None:
    of = driver.run_attempt(0)
    of.prepare(driver.frame(1, driver.attempt), driver.context(1))
    assert list(tmp_path.rglob("part-*"))
    of.recover(driver.context(0))
    assert not list(tmp_path.rglob("part-*"))
    assert ids(brokers) == expected_ids(0)


def test_an_attempt_removes_what_it_and_earlier_ones_have_staged_whatever_the_batch(
    driver: SinkDriver, tmp_path: Path
) -> None:
    of = driver.run_attempt(3)
    of.prepare(driver.frame(4, 1), driver.context(4))
    newer = SinkContext(JOB, UID, 0, 3, "newer")
    sink(tmp_path).prepare(driver.frame(0, 3), newer)
    sink(tmp_path).recover(SinkContext(JOB, UID, 3, 2, "u"))
    assert [each.name for each in (tmp_path / "staging" / JOB / UID).iterdir()] == ["0-3-newer"]
    sink(tmp_path).recover(SinkContext(JOB, UID, 3, 3, "u"))
    assert list((tmp_path / "staging" / JOB / UID).iterdir()) == []


def test_a_batch_that_another_driver_has_published_and_removed_is_done(driver: SinkDriver, brokers: Brokers) -> None:
    old = driver.start()
    token = old.prepare(driver.frame(0, 1), driver.context(0))
    driver.committed, driver.tokens[0] = 0, token
    driver.start()
    old.publish(token)
    assert ids(brokers) == expected_ids(0)


def test_a_late_driver_whose_batch_is_still_staged_is_refused_by_the_newer_ones_marker(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path
) -> None:
    driver.run_attempt(0)
    old = sink(tmp_path)
    late = old.prepare(driver.frame(1, 1), SinkContext(JOB, UID, 1, 1, "late"))
    driver.start()
    again = old.prepare(driver.frame(1, 1), SinkContext(JOB, UID, 1, 1, "late"))
    assert again == late
    with pytest.raises(SinkOccupiedError):
        old.publish(late)
    assert ids(brokers) == expected_ids(0)


def test_a_job_that_goes_back_writes_its_later_batches_again(driver: SinkDriver, brokers: Brokers) -> None:
    driver.run(LAST)
    driver.go_back(0)
    driver.run(LAST)
    assert ids(brokers) == sorted([*expected_ids(0, 1, 2), *expected_ids(1, 2)])


def test_killed_drivers_after_the_job_has_gone_back_write_the_later_batches_once_more(
    driver_in: Play, tmp_path: Path
) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> Brokers:
        brokers, path = Brokers(Host(), {TOPIC: [[]]}), next(paths)
        driver = driver_in(Host(), brokers, path)
        driver.run(1)
        again = driver_in(host, brokers, path)
        again.attempt, again.committed, again.tokens = driver.attempt, 0, driver.tokens
        again.run(1)
        return brokers

    for number, brokers in every_kill(play):
        assert ids(brokers) == sorted([*expected_ids(0, 1), *expected_ids(1)]), f"killed before effect {number}"


def test_the_topic_of_another_job_is_refused_before_anything_is_written(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path
) -> None:
    driver.run_attempt(0)
    other = SinkContext("other", UID, -1, 1, "u")
    with pytest.raises(SinkOccupiedError, match="of job job writes to topic records"):
        sink(tmp_path).recover(other)
    assert brokers.values(markers_topic(f"other-{UID}")) == []
    sink(tmp_path, shared=True).recover(other)
    sink(tmp_path, "another").recover(SinkContext("third", UID, -1, 1, "u"))


def test_of_two_jobs_that_claim_a_topic_at_once_the_later_one_is_refused(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.attempt == 0, "no job has claimed the topic yet"
    refuse = KafkaOutput._refuse_other_jobs
    others = [SinkContext("quick", UID, -1, 1, "u")]

    def overtaken(output: KafkaOutput) -> None:
        refuse(output)
        if others:
            sink(tmp_path).recover(others.pop())

    monkeypatch.setattr(KafkaOutput, "_refuse_other_jobs", overtaken)
    with pytest.raises(SinkOccupiedError, match="of job quick writes to topic records"):
        sink(tmp_path).recover(SinkContext("late", UID, -1, 1, "u"))
    assert brokers.values(markers_topic(f"quick-{UID}"))
    assert brokers.values(markers_topic(f"late-{UID}")) == []


def test_a_batch_is_published_where_it_was_staged_although_the_sink_has_another_topic_now(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path
) -> None:
    of = driver.start()
    token = of.prepare(driver.frame(0, 1), driver.context(0))
    elsewhere = sink(tmp_path, "another", timeout_ms=7000, writers=1)
    elsewhere.publish(token)
    assert (ids(brokers), ids(brokers, "another")) == (expected_ids(0), [])
    as_staged = elsewhere._as_staged(msgspec.json.decode(token, type=kafka._Token))
    assert (as_staged._topic, as_staged._timeout_ms, as_staged._writers) == (TOPIC, 7000, 1)


@pytest.mark.parametrize(
    ("codes", "tries"),
    [
        ([KafkaError._ALL_BROKERS_DOWN] * 9, 1),
        ([KafkaError.COORDINATOR_NOT_AVAILABLE] * 9, kafka_output._TRIES),
        ([KafkaError.COORDINATOR_NOT_AVAILABLE], 2),
    ],
)
def test_an_action_that_kafka_does_not_carry_out_fails(codes: list[int], tries: int) -> None:
    calls: list[str] = []
    output = SimpleNamespace(opened=lambda: calls.append("open"), close=lambda: calls.append("close"), _uid=UID)

    def act(_: Any) -> None:
        if codes:
            raise KafkaException(KafkaError(codes.pop()))

    is_done = len(codes) < tries
    with contextlib.nullcontext() if is_done else pytest.raises(SinkUnavailableError):
        KafkaOutput.repeat(cast("Any", output), act)
    assert calls == ["open", "close"] * (tries - is_done) + ["open"] * is_done


def test_a_discarded_batch_cannot_be_published(driver: SinkDriver, brokers: Brokers, tmp_path: Path) -> None:
    of = driver.start()
    token = of.prepare(driver.frame(0, 1), driver.context(0))
    of.discard(token)
    of.discard(token)
    assert not list(tmp_path.rglob("part-*"))
    with pytest.raises(SinkPublishError, match="are gone"):
        of.publish(token)
    assert ids(brokers) == []


def slow(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Lets each share take so long."""
    clock_ms = count(step=ms)
    monkeypatch.setattr(kafka_output, "_elapsed_ms", lambda: next(clock_ms))


def aborted(producer: ModelProducer, _timeout: float) -> None:
    """Plays a commit after the brokers have aborted the transaction of a share."""
    if "share" in producer._id:
        producer._brokers.abort(producer._id)
        raise KafkaException(KafkaError(KafkaError._FENCED))


def test_a_share_that_takes_longer_than_its_limit_is_named_and_is_no_outage(
    driver: SinkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelProducer, "commit_transaction", aborted)
    slow(monkeypatch, 400_000)
    with pytest.raises(SinkTooSlowError, match=r"share 0 of batch 0 of sink out took 400000 ms to write; .* is 300000"):
        driver.run(0)


def test_a_share_that_is_refused_within_its_limit_is_waited_for(
    driver: SinkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelProducer, "commit_transaction", aborted)
    slow(monkeypatch, 299_999)
    with pytest.raises(SinkUnavailableError):
        driver.run(0)


@pytest.mark.parametrize("ms", [150_000, 150_001])
def test_a_share_that_takes_more_than_half_of_its_limit_is_a_warning(
    driver: SinkDriver, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ms: int
) -> None:
    slow(monkeypatch, ms)
    sink = driver.run_attempt(0)
    assert isinstance(sink, KafkaSink)
    assert ids(brokers) == expected_ids(0)
    warns = ms > 150_000
    assert ("took 150001 ms to write; the limit, timeout_ms, is 300000" in caplog.text) == warns
    assert sink._file_records == (1 if warns and sink._writers is None else None)


def test_a_slow_share_makes_later_files_a_quarter_of_the_limit_long(driver: SinkDriver, tmp_path: Path) -> None:
    del driver
    slow_sink = sink(tmp_path)
    token = kafka._Token("job", "out", 0, 1, "x", "")
    slow_sink._note_times(
        token, [SimpleNamespace(share=0, records=9, ms=1), SimpleNamespace(share=1, records=8000, ms=200_000)], 2
    )
    assert slow_sink._file_records == 8000 * 75_000 // 200_000 // 2


FILES_OF_SPARK = [
    f"part-0000{task}-f00-c00{chunk}.snappy.parquet" for task, chunk in ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1))
]


@pytest.mark.parametrize("writers", [1, 2, 3, 9])
def test_the_files_of_a_subtask_are_written_in_rounds_in_their_order(writers: int) -> None:
    token = kafka.with_shares(kafka._Token("job", "out", 0, 1, "x", ""), FILES_OF_SPARK, writers)
    rounds = kafka.rounds_of(token, list(reversed(FILES_OF_SPARK)))
    assert sorted(file for shares in rounds for files in shares for file in files) == FILES_OF_SPARK
    assert token.shares == sum(map(len, rounds))
    assert all(1 <= len(shares) <= writers for shares in rounds)
    for task in range(3):
        of_task = [
            number
            for number, shares in enumerate(rounds)
            for files in shares
            for file in files
            if file.startswith(f"part-0000{task}")
        ]
        assert of_task == sorted(set(of_task)), "one file of a subtask per round"


def test_a_batch_whose_subtasks_have_a_file_each_is_divided_as_before() -> None:
    token = kafka.with_shares(kafka._Token("job", "out", 0, 1, "x", ""), ["a", "b", "c"], 2)
    assert (token.shares, token.width) == (2, None)
    assert kafka.rounds_of(token, ["a", "b", "c"]) == [[["a", "c"], ["b"]]]
    assert kafka.with_shares(token, [], 2).shares == 1


def test_a_batch_for_an_earlier_topic_is_written_with_the_present_settings_of_the_sink() -> None:
    config: dict[str, Any] = {"compression.type": "lz4"}
    tested = KafkaSink("broker:1", "now", staging="/now", config=config, timeout_ms=700, writers=3)
    token = kafka._Token(JOB, UID, 0, 1, "try", "", topic="before", staging="/before")
    staged = tested._as_staged(token)
    assert (staged._topic, staged._staging_path) == ("before", "/before")
    assert (staged._servers, staged._config, staged._timeout_ms, staged._writers) == ("broker:1", config, 700, 3)
    assert tested._as_staged(msgspec.structs.replace(token, topic="now", staging="/now")) is tested
    assert tested._as_staged(kafka._Token(JOB, UID, 0, 1, "try", "")) is tested, "a token of an earlier version"


def test_a_sink_and_its_shares_write_in_the_name_of_the_job_with_the_settings_and_limits_of_the_sink() -> None:
    config: dict[str, Any] = {"compression.type": "lz4"}
    tested = KafkaSink("broker:1", TOPIC, staging="/staging", config=config, timeout_ms=700)
    token, name = kafka._Token(JOB, UID, 4, 9, "try", "", batch_bytes_max=800), f"{JOB}-{UID}"
    output = tested._output_of(token)
    assert (output._name, output._uid, output._job_id) == (name, UID, JOB)
    assert (output._timeout_ms, output._share, output._topic) == (700, None, TOPIC)
    assert output._settings == tested._settings
    assert tested._output_of(msgspec.structs.replace(token, batch_bytes_max=900)) is output
    settings = {**tested._settings, "batch.size": 800}
    assert tested._share(token, 2) == WriteShare(settings, name, UID, 700, Published(9, 4), TOPIC, 2)
    small = KafkaSink("broker:1", TOPIC, staging="/staging", config={"batch.size": 500})
    assert small._producer_settings["batch.size"] == 500


SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
CHECK = SinkContext(JOB, UID, 0, 9, "check")


class Topics:
    """In place of the directory of topics: one topic, and whether it may be written to."""

    def __init__(self, may_write: bool) -> None:
        self._may_write = may_write

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        return {name: TopicLimits(1) for name in names if name == TOPIC}

    def may_write(self, name: str) -> bool:
        assert name == TOPIC
        return self._may_write


def use_topics(monkeypatch: pytest.MonkeyPatch, *, may_write: bool = True) -> None:
    monkeypatch.setattr(kafka, "TopicDirectory", lambda _: Topics(may_write))


def test_a_check_fences_no_producer_and_shows_readers_nothing(
    driver: SinkDriver, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_topics(monkeypatch)
    running = driver.run_attempt(0)
    epochs, topics = dict(brokers.epochs), set(brokers.partitions)
    sink(tmp_path).check(SCHEMA, CHECK)
    assert {name: brokers.epochs[name] for name in epochs} == epochs
    assert set(brokers.partitions) == topics
    assert not [each for each in (tmp_path / "staging").rglob("*") if each.is_file()]
    token = running.prepare(driver.frame(1, 1), driver.context(1))
    running.publish(token)
    assert ids(brokers) == expected_ids(0, 1)


def test_a_check_opens_a_transaction_as_long_as_those_of_the_sink_in_the_name_of_its_job(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start()
    opened: list[tuple[Any, ...]] = []
    use_topics(monkeypatch)
    monkeypatch.setattr(kafka, "check_transactions", lambda *given: opened.append(given))
    config: dict[str, Any] = {"batch.size": 2_000_000}
    KafkaSink("broker:1", TOPIC, staging=str(tmp_path), config=config, timeout_ms=700).check(SCHEMA, CHECK)
    ((settings, *given),) = opened
    assert given == [f"{JOB}-{UID}", 700]
    assert (settings["bootstrap.servers"], settings["batch.size"]) == ("broker:1", 2_000_000)


def test_topics_are_asked_about_by_a_new_client_after_the_brokers_were_away(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Topics):
        def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:  # noqa: ARG002 - as in Topics
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    driver.start()
    left = [Topics(may_write=True), Away(may_write=True)]
    monkeypatch.setattr(kafka, "TopicDirectory", lambda _: left.pop())
    tested = sink(tmp_path)
    with pytest.raises(SinkUnavailableError):
        tested.check(SCHEMA, CHECK)
    for _ in range(2):
        tested.check(SCHEMA, CHECK)
    assert left == []


def test_a_topic_that_may_not_be_written_to_is_named(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start()
    use_topics(monkeypatch, may_write=False)
    with pytest.raises(SinkForbiddenError, match="may not write to topic records"):
        sink(tmp_path).check(SCHEMA, CHECK)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, SinkForbiddenError),
        (KafkaError._ALL_BROKERS_DOWN, SinkUnavailableError),
    ],
)
def test_a_refused_transaction_is_told_from_brokers_that_are_away(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    driver.start()
    use_topics(monkeypatch)

    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(ModelProducer, "init_transactions", refuse)
    with pytest.raises(expected):
        sink(tmp_path).check(SCHEMA, CHECK)


def test_a_check_refuses_columns_and_topics_that_no_record_could_have(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start()
    use_topics(monkeypatch)
    with pytest.raises(SinkRowsRefusedError, match="takes value, key"):
        sink(tmp_path).check(pa.schema([("id", pa.int64())]), CHECK)
    with pytest.raises(SinkRowsRefusedError, match="topic missing does not exist"):
        sink(tmp_path, "missing").check(SCHEMA, CHECK)


def test_dead_letters_are_checked_with_their_reason(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start()
    use_topics(monkeypatch)
    checked: list[tuple[list[str], str]] = []
    letters = SimpleNamespace(check=lambda schema, context: checked.append((schema.names, context.uid)))
    sink(tmp_path, dead_letters=letters).check(SCHEMA, CHECK)
    assert checked == [(["key", "value", "error"], f"{UID}-dead-letters")]


def test_a_right_that_is_missed_while_a_job_runs_is_no_outage(
    driver: SinkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = driver.run_attempt(0)
    token = running.prepare(driver.frame(1, 1), driver.context(1))

    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(ModelProducer, "commit_transaction", refuse)
    with pytest.raises(SinkForbiddenError, match="TOPIC_AUTHORIZATION_FAILED"):
        running.publish(token)

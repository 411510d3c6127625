"""The output of a Kafka sink knows its marker, claims its topic for one job, and is opened again after any doubt."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale.jobs.errors import SinkForbiddenError, SinkOccupiedError, SinkUnavailableError
from keyscale.jobs.sinks import kafka_output
from keyscale.jobs.sinks.kafka_output import KafkaOutput, WriteShare
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic, markers_topic
from keyscale.jobs.sinks.published import Published, Step
from tests.support.sinks.driver import Host
from tests.support.sinks.kafka_brokers import Brokers, use_brokers

if TYPE_CHECKING:
    from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic as Opened

SETTINGS = {"bootstrap.servers": "x:1"}
NAME = "job-out"


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers(Host(), {"records": [[]], "other": [[]]})
    use_brokers(monkeypatch, found)
    return found


def output(topic: str | None = "records", job_id: str = "job", share: int | None = None) -> KafkaOutput:
    if share is not None:
        return KafkaOutput(SETTINGS, f"{job_id}-out", "out", 60_000, share)
    return KafkaOutput(SETTINGS, f"{job_id}-out", "out", 60_000, topic=topic, job_id=job_id)


def last_marker(brokers: Brokers, name: str = NAME) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(brokers.values(markers_topic(name))[-1])
    return found


def write_marker(text: bytes, name: str = NAME) -> None:
    TransactionalTopic(SETTINGS, name, 1000).write((), text)


def test_a_claim_names_the_sink_and_its_topic_and_is_made_once(brokers: Brokers) -> None:
    of = output()
    of.claim_topic(Published(2, 7), shared=False)
    marker = {"attempt": 2, "batch_id": 7, "topic": "records", "job_id": "job", "uid": "out"}
    assert last_marker(brokers) == marker
    effects = brokers.host.effects
    of.claim_topic(Published(3, 8), shared=False)
    assert brokers.host.effects == effects, "the topic is the sink's own"
    moved = output("other")
    moved.claim_topic(Published(3, 9), shared=False)
    assert last_marker(brokers) == marker | {"topic": "other"}, "what is published stays as it was"
    assert [moved.step(2, batch_id) for batch_id in (7, 8)] == [Step.DONE, Step.APPLY]
    late = output()
    write_marker(json.dumps(marker | {"attempt": 5}).encode())
    late.claim_topic(Published(4, 9), shared=False)
    with pytest.raises(SinkOccupiedError, match="attempt 5 writes the output of sink out"):
        output("other").claim_topic(Published(4, 9), shared=False)
    output("other").claim_topic(Published(5, 9), shared=False)


def test_a_topic_that_another_job_writes_to_is_refused_unless_it_is_shared(brokers: Brokers) -> None:
    output().claim_topic(Published(1, -1), shared=False)
    output(None, "named").claim_topic(Published(1, -1), shared=False)
    write_marker(b"no marker of ours", "foreign")
    for topic, text in (("records", "topic records"), (None, "the topics that its records name")):
        with pytest.raises(SinkOccupiedError, match=f"sink out of job (job|named) writes to {text}: give sink out its"):
            output(topic, "second").claim_topic(Published(1, -1), shared=False)
        with pytest.raises(SinkOccupiedError):
            output(topic, "second").claim_topic(Published(1, -1), shared=False)
    assert brokers.values(markers_topic("second-out")) == []
    output("records", "second").claim_topic(Published(1, -1), shared=True)
    assert last_marker(brokers, "second-out")["topic"] == "records"


def test_a_marker_of_an_earlier_version_counts_as_one_of_this_topic(brokers: Brokers) -> None:
    write_marker(b'{"attempt": 1, "batch_id": 4}')
    output("records", "second").claim_topic(Published(1, -1), shared=False)
    of = output()
    of.claim_topic(Published(2, 4), shared=False)
    assert last_marker(brokers) == {"attempt": 1, "batch_id": 4}
    of.take_over(Published(2, 4))
    assert last_marker(brokers) == {"attempt": 2, "batch_id": 4, "topic": "records", "job_id": "job", "uid": "out"}


def test_an_attempt_that_takes_over_fences_older_ones_and_warns_of_records_that_stay(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = output(), output()
    old.take_over(Published(1, 8))
    assert (old.has_begun, old.step(1, 8), old.step(1, 9)) == (True, Step.DONE, Step.APPLY)
    assert "gone back" not in caplog.text
    new.take_over(Published(2, 5))
    assert "sink out: the job has gone back to batch 5; records of later batches stay" in caplog.text
    with pytest.raises(KafkaException):
        old.write((), Published(1, 9))
    old.close()
    with pytest.raises(SinkOccupiedError, match="attempt 2 writes"):
        old.take_over(Published(1, 9))
    assert last_marker(brokers)["attempt"] == 2
    caplog.clear()
    new.opened().add_shares(1)
    share = output(share=0)
    for published in (Published(2, 5), Published(3, 1)):
        share.take_over(published)
    assert "gone back" not in caplog.text, "the sink as a whole has said so"
    marker = json.loads(brokers.partitions[markers_topic(NAME)][1][-2].value or b"")
    assert marker == {"attempt": 3, "batch_id": 1}, "a share's marker has no topic"


def test_a_marker_that_is_gone_from_the_brokers_is_not_remembered(brokers: Brokers) -> None:
    of = output()
    of.take_over(Published(1, 3))
    brokers.partitions[markers_topic(NAME)] = [[]]
    assert (of.has_begun, of.step(1, 3)) == (True, Step.DONE), "no doubt yet"
    of.close()
    of.opened()
    assert (of.has_begun, of.step(1, 3)) == (False, Step.APPLY)


def test_shares_are_counted_without_the_whole_sinks_partition_and_added_once(brokers: Brokers) -> None:
    opened = output().opened()
    assert opened.shares() == 0
    opened.add_shares(3)
    opened.add_shares(3)
    opened.add_shares(2)
    assert (opened.shares(), len(brokers.partitions[markers_topic(NAME)])) == (3, 4)


@pytest.mark.parametrize(
    ("code", "expected", "tries"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkForbiddenError, 1),
        (KafkaError._ALL_BROKERS_DOWN, SinkUnavailableError, 1),
        (KafkaError._FENCED, SinkUnavailableError, kafka_output._TRIES),
    ],
)
def test_only_a_failure_that_a_new_producer_may_mend_is_tried_again(
    brokers: Brokers, code: int, expected: type[Exception], tries: int
) -> None:
    of = output()
    seen: list[Opened] = []

    def act(opened: Opened) -> None:
        seen.append(opened)
        raise KafkaException(KafkaError(code))

    with pytest.raises(expected):
        of.repeat(act)
    assert (len(seen), len(set(map(id, seen))), of.is_open) == (tries, tries, False)
    assert brokers.open == {}

    def interrupted(_: Opened) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        of.repeat(interrupted)
    assert not of.is_open, "a transaction may be open"


def test_records_keep_each_value_that_is_not_null() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "value": pa.array([b"", b"a", None]),
            "partition": pa.array([0, None, 1], pa.int32()),
            "topic": pa.array(["own", None, None]),
            "headers": pa.array([[{"key": "h", "value": b""}, None, {"key": "n", "value": None}], [], None], kind),
        }
    )
    assert list(kafka_output._records(iter([batch]), "common")) == [
        {"topic": "own", "value": b"", "partition": 0, "headers": [("h", b""), ("n", None)]},
        {"topic": "common", "value": b"a", "headers": []},
        {"topic": "common", "partition": 1},
    ]
    assert [*kafka_output._records(iter([batch.slice(1, 1)]), None)] == [{"value": b"a", "headers": []}]


def test_a_worker_keeps_an_output_per_share_and_settings_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_output, "_outputs", OrderedDict())
    monkeypatch.setattr(kafka_output, "_OPEN_MAX", 3)

    def of(number: int, timeout_ms: int = 5, share: int = 0) -> KafkaOutput:
        return WriteShare({"a": number}, NAME, "out", timeout_ms, Published(1, 1), None, share)._output()

    first = of(1)
    assert of(1) is first
    others = [of(2), of(1, 6)]
    assert first not in others
    assert of(1) is first, "the most recently used stays"
    assert of(1, share=1) not in [first, *others]
    assert of(1) is first
    assert of(2) is not others[0], "the least recently used went"

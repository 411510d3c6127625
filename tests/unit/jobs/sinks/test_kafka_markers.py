"""The last marker of a sink is found whatever the brokers answer, or is known to be unreadable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keyscale.jobs.sinks import kafka_transactions
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic, last_markers

UNKNOWN, FORBIDDEN = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED
OTHER = KafkaError.CLUSTER_AUTHORIZATION_FAILED
TOPIC = "keyscale-published-a"


class Time:
    """Stands for the module `time`: a wait passes at once."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    played = Time()
    monkeypatch.setattr(kafka_transactions, "time", played)
    return played


def error(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


@pytest.mark.parametrize(
    ("answers", "topics", "expected"),
    [
        ([b"marker"], [TOPIC], b"marker"),
        ([None], [TOPIC], None),
        ([UNKNOWN], [], None),
        ([UNKNOWN, UNKNOWN, b"marker"], [TOPIC], b"marker"),
        ([FORBIDDEN], [TOPIC], None),
        ([FORBIDDEN], [], None),
        ([OTHER], [TOPIC], OTHER),
        ([UNKNOWN] * 1000, [TOPIC], UNKNOWN),
    ],
)
@pytest.mark.usefixtures("time")
def test_the_last_marker_is_waited_for_while_its_topic_has_no_leader(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], topics: list[str], expected: bytes | int | None
) -> None:
    left = iter(answers)

    def newest(*_: Any) -> bytes | None:
        answer = next(left)
        if isinstance(answer, int):
            raise error(answer)
        return cast("bytes | None", answer)

    monkeypatch.setattr(kafka_transactions, "_newest_marker", newest)
    monkeypatch.setattr(kafka_transactions, "_topics", lambda _: topics)
    if isinstance(expected, int):
        with pytest.raises(KafkaException) as caught:
            kafka_transactions._last_marker({}, TOPIC)
        assert caught.value.args[0].code() == expected
    else:
        assert kafka_transactions._last_marker({}, TOPIC) == expected


@pytest.mark.parametrize(("answers", "expected"), [([7], 7), ([-UNKNOWN, -UNKNOWN, 7], 7), ([-OTHER], OTHER)])
def test_the_end_of_a_new_partition_is_waited_for(
    time: Time, monkeypatch: pytest.MonkeyPatch, answers: list[int], expected: int
) -> None:
    left, asked, began = iter(answers), list[TopicPartition](), time.seconds

    def end(_: Any, partition: TopicPartition, __: Any) -> int:
        asked.append(partition)
        answer = next(left)
        if answer < 0:
            raise error(-answer)
        return answer

    monkeypatch.setattr(kafka_transactions, "_end", end)
    topic = cast("Any", SimpleNamespace(_settings={}, _markers=TOPIC))
    if answers[-1] < 0:
        with pytest.raises(KafkaException) as caught:
            TransactionalTopic._end_of(topic, 2)
        assert caught.value.args[0].code() == expected
    else:
        assert TransactionalTopic._end_of(topic, 2) == expected
    assert {(partition.topic, partition.partition) for partition in asked} == {(TOPIC, 2)}
    assert (time.seconds > began) is (len(answers) > 1)


@pytest.mark.usefixtures("time")
def test_a_partition_that_stays_unknown_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: Any) -> int:
        raise error(UNKNOWN)

    monkeypatch.setattr(kafka_transactions, "_end", end)
    with pytest.raises(KafkaException):
        TransactionalTopic._end_of(cast("Any", SimpleNamespace(_settings={}, _markers=TOPIC)), 2)


def test_the_markers_of_all_sinks_are_read_each_from_its_own_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["orders", "keyscale-published-b", "keyscale-published-c", TOPIC]
    monkeypatch.setattr(kafka_transactions, "_topics", lambda _: names)
    found = {TOPIC: b"a", "keyscale-published-b": None, "keyscale-published-c": b"c"}
    monkeypatch.setattr(kafka_transactions, "_last_marker", lambda _, name: found[name])
    assert last_markers({}) == [(TOPIC, b"a"), ("keyscale-published-c", b"c")]


@pytest.mark.parametrize(
    ("end", "markers", "starts", "expected"),
    [
        (250, {200: b"new"}, [150], b"new"),
        (250, {20: b"old"}, [150, 0], b"old"),
        (250, {}, [150, 0], None),
        (100, {20: b"old"}, [0], b"old"),
        (50, {}, [0], None),
    ],
)
def test_a_marker_is_looked_for_among_the_newest_records_and_then_among_all(
    monkeypatch: pytest.MonkeyPatch, end: int, markers: dict[int, bytes], starts: list[int], expected: bytes | None
) -> None:
    looked: list[int] = []

    def last_before(_: Any, partition: TopicPartition, until: int) -> bytes | None:
        assert (partition.topic, partition.partition, until) == (TOPIC, 0, end)
        looked.append(partition.offset)
        return next((value for offset, value in markers.items() if offset >= partition.offset), None)

    monkeypatch.setattr(kafka_transactions, "_end", lambda *_: end)
    monkeypatch.setattr(kafka_transactions, "_last_before", last_before)
    assert kafka_transactions._newest_marker({}, TOPIC) == expected
    assert looked == starts


def event(offset: int, code: int | None = None, value: bytes | None = None) -> Any:
    failure = None if code is None else KafkaError(code)
    return SimpleNamespace(error=lambda: failure, offset=lambda: offset, value=lambda: value)


END = event(3, KafkaError._PARTITION_EOF)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(0, value=b"a"), event(1, value=b"b"), END], b"b"),
        ([event(0, value=b"a"), event(-1, KafkaError._ALL_BROKERS_DOWN), event(2, value=b"c"), END], b"c"),
        ([event(0, value=b"a"), event(1, KafkaError._PARTITION_EOF), event(2, value=b"c"), END], b"c"),
        ([END], None),
        ([event(0, value=b"a"), event(-1, OTHER)], OTHER),
        ([event(0, value=b"a"), None], KafkaError._TIMED_OUT),
    ],
)
def test_the_last_record_before_the_end_is_the_marker(
    monkeypatch: pytest.MonkeyPatch, events: list[Any], expected: bytes | int | None
) -> None:
    settings: list[dict[str, Any]] = []
    assigned: list[TopicPartition] = []
    left = iter(events)

    def consumer(given: dict[str, Any]) -> Any:
        settings.append(given)
        return SimpleNamespace(assign=assigned.extend, poll=lambda _: next(left))

    monkeypatch.setattr(kafka_transactions, "Consumer", consumer)
    partition = TopicPartition(TOPIC, 0, 0)
    if isinstance(expected, int):
        with pytest.raises(KafkaException) as caught:
            kafka_transactions._last_before({"client.id": "me"}, partition, 3)
        assert caught.value.args[0].code() == expected
    else:
        assert kafka_transactions._last_before({"client.id": "me"}, partition, 3) == expected
    assert assigned == [partition]
    assert (settings[0]["client.id"], settings[0]["isolation.level"]) == ("me", "read_committed")


@pytest.mark.parametrize("empties", [True, False])
def test_a_full_queue_is_emptied_before_the_record_is_sent_once(empties: bool) -> None:
    sent: list[str] = []
    polls: list[float] = []

    def produce(*, topic: str) -> None:
        if not polls:
            raise BufferError
        sent.append(topic)

    def poll(seconds: float) -> int:
        polls.append(seconds)
        return int(empties)

    client = SimpleNamespace(produce=produce, poll=poll)
    writing = cast("Any", SimpleNamespace(_producer=SimpleNamespace(client=client)))
    if empties:
        TransactionalTopic._produce(writing, {"topic": "orders"})
        assert (sent, polls) == (["orders"], [30.0, 0])
    else:
        with pytest.raises(KafkaException):
            TransactionalTopic._produce(writing, {"topic": "orders"})
        assert sent == []

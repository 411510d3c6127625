"""A share is written once, by an output of its own, which is opened again where another attempt has left it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from keyscale import KafkaSink
from keyscale.jobs.errors import InvalidTopologyError, SinkOccupiedError, SinkTooSlowError
from keyscale.jobs.operators.failures import CarriedFailure
from keyscale.jobs.sinks import kafka_output
from keyscale.jobs.sinks.kafka_output import WriteShare
from keyscale.jobs.sinks.published import Published, Step

RECORDS = pa.record_batch({"value": pa.array([b"a", b"b"]), "key": pa.array([b"k", None])})
PUBLISHED = Published(3, 7)


class Output:
    """In place of an output: takes some steps, and notes its calls."""

    steps: tuple[Step, ...] = (Step.APPLY,)
    fails: KafkaError | None = None
    made: list[Output]

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.calls: list[Any] = []
        self.is_open = False
        self._left = iter(self.steps)
        self.made.append(self)

    def opened(self) -> None:
        self.calls.append("opened")
        self.is_open = True

    def close(self) -> None:
        self.calls.append("close")
        self.is_open = False

    def step(self, *place: int) -> Step:
        self.calls.append(place)
        return next(self._left)

    def write(self, records: Any, published: Published) -> None:
        self.calls.append((list(records), published))
        if self.fails is not None:
            raise KafkaException(self.fails)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> type[Output]:
    kind = type("OutputOfTest", (Output,), {"made": []})
    monkeypatch.setattr(kafka_output, "KafkaOutput", kind)
    monkeypatch.setattr(kafka_output, "_outputs", OrderedDict())
    return kind


def write(topic: str | None = "records", share: int = 5) -> list[dict[str, Any]]:
    task = WriteShare({"a": 1}, "name", "uid", 60_000, PUBLISHED, topic, share)
    return [row for batch in task.run(iter([RECORDS])) for row in batch.to_pylist()]


def test_a_share_reports_its_number_and_records(outputs: type[Output]) -> None:
    (row,) = write()
    assert (row["share"], row["records"]) == (5, 2)
    (output,) = outputs.made
    assert output.given == ({"a": 1}, "name", "uid", 60_000, 5)
    written = [{"topic": "records", "value": b"a", "key": b"k"}, {"topic": "records", "value": b"b"}]
    assert output.calls == ["opened", (3, 7), (written, PUBLISHED)]


def test_an_output_is_used_again_for_its_share_alone(outputs: type[Output]) -> None:
    outputs.steps = (Step.APPLY, Step.DONE)
    assert [row["records"] for _ in range(2) for row in write()] == [2, 0], "a written share is not written again"
    write(share=6)
    assert [output.given[-1] for output in outputs.made] == [5, 6]


def test_a_stale_producer_is_closed_and_its_share_is_to_be_written_again(outputs: type[Output]) -> None:
    outputs.steps, outputs.fails = (Step.APPLY,) * 9, None
    write()
    (output,) = outputs.made
    outputs.fails = KafkaError(KafkaError._FENCED)
    (row,) = write()
    assert (row["share"], row["records"], output.is_open) == (5, None, False)
    with pytest.raises(CarriedFailure, match="_FENCED"):
        write()  # its producer was new


def test_brokers_that_do_not_answer_are_no_stale_producer(outputs: type[Output]) -> None:
    outputs.steps = (Step.APPLY,) * 9
    write()
    outputs.fails = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    with pytest.raises(CarriedFailure, match="_ALL_BROKERS_DOWN"):
        write()


@pytest.mark.parametrize("steps", [(Step.REFUSE, Step.APPLY), (Step.REPLACE, Step.APPLY)])
def test_an_output_that_another_attempt_has_left_is_opened_again(
    outputs: type[Output], steps: tuple[Step, ...]
) -> None:
    outputs.steps = steps
    write()
    assert outputs.made[0].calls[:5] == ["opened", (3, 7), "close", "opened", (3, 7)]
    assert outputs.made[0].calls[-1][1] == PUBLISHED


def test_a_share_of_a_newer_attempt_is_refused(outputs: type[Output]) -> None:
    outputs.steps = (Step.REFUSE, Step.REFUSE)
    with pytest.raises(CarriedFailure) as caught:
        write()
    assert str(caught.value).startswith(SinkOccupiedError.code)
    assert outputs.made[0].calls[-1] == "close"


def test_a_transaction_that_outlasts_its_limit_was_too_slow() -> None:
    task = WriteShare({}, "name", "uid", 60_000, PUBLISHED, None, 5)
    aborted = KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))
    assert isinstance(task._error(aborted, 60_000), SinkTooSlowError)
    assert not isinstance(task._error(aborted, 59_999), SinkTooSlowError)
    away = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert not isinstance(task._error(away, 60_000), SinkTooSlowError)


@pytest.mark.parametrize("writers", [0, -1])
def test_a_sink_without_writers_is_refused(writers: int) -> None:
    with pytest.raises(InvalidTopologyError):
        KafkaSink(cast("Any", "host:9092"), "records", staging="file:///staging", writers=writers)

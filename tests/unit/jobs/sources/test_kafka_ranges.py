"""Up to where a batch reads Kafka's partitions, and which of its records are lost, by the brokers' answers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import IsolationLevel, TopicPartition

from keyscale.jobs.errors import SourceRecordsLostError
from keyscale.jobs.sources import kafka
from keyscale.jobs.sources.kafka import KafkaSource, split_name
from keyscale.jobs.sources.source import Loss

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from keyscale.jobs.sources.source import Position

EARLIEST, LATEST = -2, -1
OFFSETS = {"t/0": {EARLIEST: 10, LATEST: 20}, "t/1": {EARLIEST: 0, LATEST: 5}}


class Source(KafkaSource):
    """Gets `OFFSETS` as the broker's answers; each topic has the id "now"."""

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[str, int]:
        return {split: OFFSETS[split][which._value] for split in map(split_name, partitions) if split in OFFSETS}

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "now")


def source(lost_records: Literal["fail", "skip"] = "fail") -> Source:
    return Source("x:1", "t", lost_records=lost_records)


def at(offset: int, topic_id: str = "now") -> Position:
    return {"offset": offset, "topic_id": topic_id}


@pytest.mark.parametrize("lost_records", ["fail", "skip"])
@pytest.mark.parametrize(
    ("position", "limit", "expected"),
    [
        (at(12), None, at(20)),
        (at(12), 3, at(15)),
        (at(12), 100, at(20)),
        (at(20), None, at(20)),
        (12, None, at(20)),  # of version 0.1
        (20, None, 20),
        (at(20, ""), None, at(20, "")),
    ],
)
def test_a_batch_reads_up_to_the_end_or_its_limit(
    lost_records: Literal["fail", "skip"], position: Position, limit: int | None, expected: Position
) -> None:
    assert source(lost_records).latest({"t/0": position}, limit) == {"t/0": expected}


def test_a_topic_that_the_job_no_longer_reads_is_left_out() -> None:
    assert source().latest({"u/0": at(1), "t/1": at(2)}, None) == {"t/1": at(5)}
    assert source().earliest(["u/0", "t/0", "t/1"]) == {"t/0": at(10), "t/1": at(0)}


@pytest.mark.parametrize("position", [at(21), at(12, "before"), at(20, "before"), at(21, ""), 21])
def test_a_topic_that_was_created_again_fails_the_job_unless_it_skips_to_the_earliest_records(
    position: Position,
) -> None:
    with pytest.raises(SourceRecordsLostError, match=r"t/0 was deleted and created again; .* it now ends at 20"):
        source().latest({"t/0": position}, None)
    assert source("skip").latest({"t/0": position}, None) == {"t/0": at(20)}
    assert source("skip").latest({"t/0": position}, 4) == {"t/0": at(14)}


def test_expired_records_use_up_no_limit_of_a_job_that_skips_them() -> None:
    assert source("skip").latest({"t/0": at(3)}, 4) == {"t/0": at(14)}
    assert source().latest({"t/0": at(3)}, 4) == {"t/0": at(7)}, "the batch then fails, and says so"


@pytest.mark.parametrize(
    ("start", "end", "loss"),
    [
        (at(10), at(20), None),
        (at(10), at(10), None),
        (10, 20, None),
        (at(7), at(15), Loss(at(10), 3)),
        (7, 15, Loss(at(10), 3)),
        (at(2), at(8), Loss(at(8), 6)),
        (at(12), at(21), Loss(at(21), 9)),
        (at(12, "before"), at(15, "before"), Loss(at(15, "before"), 3)),
        (at(12, "long ago"), at(15, "before"), Loss(at(15, "before"), None)),
        (at(12, "before"), at(15), Loss(at(10), None)),
        (at(16), at(15), Loss(at(10), None)),
    ],
)
def test_the_lost_records_of_a_range_are_counted_if_both_its_ends_are_of_one_topic(
    start: Position, end: Position, loss: Loss | None
) -> None:
    both = {"t/0": (start, end), "t/1": (at(0), at(5))}
    assert source().losses(both) == ({} if loss is None else {"t/0": loss})


def test_a_range_of_a_partition_that_is_gone_is_lost() -> None:
    assert source().losses({"t/9": (at(3), at(8))}) == {"t/9": Loss(at(8), 5)}


class Asked(Source):
    """Notes what is asked of the brokers."""

    def __init__(self, lost_records: Literal["fail", "skip"]) -> None:
        super().__init__("x:1", "t", lost_records=lost_records)
        self.asked: list[str] = []

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[str, int]:
        self.asked.append("offsets")
        return super()._offsets(partitions, which)

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        self.asked.append("ids")
        return super()._topic_ids(topics)


@pytest.mark.parametrize("lost_records", ["fail", "skip"])
@pytest.mark.parametrize("question", ["latest", "losses", "earliest"])
def test_offsets_are_asked_for_before_ids_so_that_they_are_of_no_newer_topic(
    lost_records: Literal["fail", "skip"], question: str
) -> None:
    tested = Asked(lost_records)
    if question == "latest":
        tested.latest({"t/0": at(12)}, None)
    elif question == "losses":
        tested.losses({"t/0": (at(12), at(15))})
    else:
        tested.earliest(["t/0"])
    assert set(tested.asked[:-1]) == {"offsets"}
    assert tested.asked[-1] == "ids"


def test_the_records_between_two_positions_are_counted_by_their_offsets() -> None:
    assert source().records_between(at(3), at(10)) == 7


@pytest.mark.parametrize("include_headers", [True, False])
def test_a_range_is_read_between_its_offsets(monkeypatch: pytest.MonkeyPatch, include_headers: bool) -> None:
    asked: list[Any] = []

    class Partition:
        def read(self, start: int, end: int) -> Iterator[list[int]]:
            asked.append((start, end))
            yield [start]
            yield [end - 1]

    def open_partition(split: str, settings: Mapping[str, Any], timeout_seconds: float) -> Partition:
        asked.append((split, settings["auto.offset.reset"], settings["isolation.level"], timeout_seconds))
        return Partition()

    monkeypatch.setattr(kafka, "open_partition", open_partition)
    monkeypatch.setattr(kafka, "record_batch", lambda found, include_headers: (found, include_headers))
    config = {"isolation.level": "read_uncommitted"}
    reading = KafkaSource("x:1", "t", include_headers=include_headers, config=config, timeout_ms=2500)
    assert list(reading.read("t/0", at(3), at(9))) == [([3], include_headers), ([8], include_headers)]
    (_, *settings), offsets = asked
    assert (settings, offsets) == (["error", "read_uncommitted", 2.5], (3, 9))
    assert ("headers" in reading.schema) is include_headers


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, IsolationLevel.READ_COMMITTED),
        ({"isolation.level": "read_committed"}, IsolationLevel.READ_COMMITTED),
        ({"isolation.level": "read_uncommitted"}, IsolationLevel.READ_UNCOMMITTED),
    ],
)
def test_a_batch_ends_before_open_transactions_unless_the_job_reads_them(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, str], level: IsolationLevel
) -> None:
    clients: list[dict[str, Any]] = []

    class Admin:
        def __init__(self, settings: dict[str, Any]) -> None:
            clients.append(settings)

        def list_offsets(
            self, wanted: Mapping[TopicPartition, Any], *, isolation_level: IsolationLevel, request_timeout: float
        ) -> dict[TopicPartition, Future[Any]]:
            assert (isolation_level, request_timeout) == (level, 2.5)
            answered: Future[Any] = Future()
            answered.set_result(SimpleNamespace(offset=8))
            return dict.fromkeys(wanted, answered)

    monkeypatch.setattr(kafka, "AdminClient", Admin)
    given = {**config, "group.id": "mine", "client.id": "me"}
    reading = KafkaSource("x:1", "t", config=given, timeout_ms=2500)
    for _ in range(2):
        assert reading._offsets([TopicPartition("t", 0)], kafka._LATEST) == {"t/0": 8}
    (settings,) = clients
    assert settings["client.id"] == "me"
    assert not {"isolation.level", "group.id"} & settings.keys(), "they are a consumer's"
    reading.close()
    reading._offsets([TopicPartition("t", 0)], kafka._LATEST)
    assert len(clients) == 2, "a closed source holds no client"

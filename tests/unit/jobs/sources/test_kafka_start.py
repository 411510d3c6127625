"""Where a new job begins to read Kafka's partitions, with a broker's answers given by the test."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import TopicPartition

from keyscale.jobs.sources.kafka import KafkaSource, split_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EARLIEST, LATEST = -2, -1
OFFSETS = {
    "t/0": {EARLIEST: 3, LATEST: 9, MOMENT.timestamp() * 1000: 5},
    "t/1": {EARLIEST: 3, LATEST: 7, MOMENT.timestamp() * 1000: -1},  # no record is so young
    "t/2": {EARLIEST: 0, LATEST: 0, MOMENT.timestamp() * 1000: -1},
    "t/3": {EARLIEST: 0, LATEST: 4, MOMENT.timestamp() * 1000: 0},
}


class Source(KafkaSource):
    """Gets `OFFSETS` as the broker's answers."""

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(len(OFFSETS))]

    def _offsets(self, partitions: Sequence[TopicPartition], which: Any) -> dict[str, int]:
        return {split_name(each): OFFSETS[split_name(each)][which._value] for each in partitions}

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")


@pytest.mark.parametrize(
    ("starting", "expected"),
    [("earliest", [3, 3, 0, 0]), ("latest", [9, 7, 0, 4]), (MOMENT, [5, 7, 0, 0])],
    ids=["earliest", "latest", "a moment"],
)
def test_a_new_job_begins_where_it_was_told_and_at_the_end_if_no_record_is_so_young(
    starting: Literal["earliest", "latest"] | dt.datetime, expected: list[int]
) -> None:
    found = Source("x:1", "t", starting=starting).discover(set())
    assert found == {f"t/{number}": {"offset": offset, "topic_id": "id"} for number, offset in enumerate(expected)}


@pytest.mark.parametrize("starting", ["earliest", "latest", MOMENT], ids=["earliest", "latest", "a moment"])
def test_a_partition_that_is_added_later_is_read_from_its_beginning(
    starting: Literal["earliest", "latest"] | dt.datetime,
) -> None:
    found = Source("x:1", "t", starting=starting).discover({"t/0", "t/2", "t/3"})
    assert found == {"t/1": {"offset": 3, "topic_id": "id"}}

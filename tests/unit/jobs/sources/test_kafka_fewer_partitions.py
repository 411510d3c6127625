"""A topic that comes back with fewer partitions has lost records; a leader that dies has not."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from keyscale.jobs.errors import SourceRecordsLostError, SourceUnavailableError
from keyscale.jobs.sources.kafka import KafkaSource
from keyscale.jobs.sources.source import Loss

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD = {f"t/{number}": {"offset": 7, "topic_id": "old"} for number in range(3)}


def answer(result: Any) -> Future[Any]:
    made: Future[Any] = Future()
    if isinstance(result, int):
        made.set_exception(KafkaException(KafkaError(result)))
    else:
        made.set_result(result)
    return made


class Admin:
    """A broker with one topic, which says that it does not know the other partitions."""

    def __init__(self, partitions: int, known: int | None = None) -> None:
        self.partitions = partitions
        self.known = partitions if known is None else known

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        return {
            each: answer(
                SimpleNamespace(offset=0 if which._value == -2 else 5)
                if each.partition < self.known
                else KafkaError.UNKNOWN_TOPIC_OR_PART
            )
            for each, which in wanted.items()
        }

    def list_topics(self, topic: str, timeout: float) -> Any:  # noqa: ARG002 - the signature of the client
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.partitions)))}
        )

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:  # noqa: ARG002 - as above
        return {"t": answer(SimpleNamespace(topic_id="new"))}


def source(admin: Admin, lost_records: Literal["fail", "skip"] = "skip", timeout_ms: int = 300) -> KafkaSource:
    made = KafkaSource("x:1", "t", lost_records=lost_records, timeout_ms=timeout_ms)
    made._client = lambda: admin  # type: ignore[method-assign,assignment,return-value]
    return made


def test_a_job_that_skips_reads_the_remaining_partitions_and_counts_the_loss_of_the_missing_ones() -> None:
    reading = source(Admin(1))
    ends = reading.latest(OLD, None)
    assert ends == {"t/0": {"offset": 5, "topic_id": "new"}} | {
        f"t/{gone}": {"offset": 0, "topic_id": "new"} for gone in (1, 2)
    }
    losses = reading.losses({split: (OLD[split], ends[split]) for split in OLD})
    assert losses == {"t/0": Loss({"offset": 0, "topic_id": "new"}, None)} | {
        split: Loss(ends[split], None) for split in ("t/1", "t/2")
    }
    assert reading.latest(ends, None) == {"t/0": ends["t/0"]}, "nothing is planned twice for a partition that is gone"
    assert reading.earliest(OLD).keys() == {"t/0"}


def test_a_partition_that_comes_back_later_is_read_from_its_beginning() -> None:
    ends = source(Admin(1)).latest(OLD, None)
    assert source(Admin(3)).latest(ends, None)["t/2"] == {"offset": 5, "topic_id": "new"}


def test_a_job_that_does_not_skip_says_that_records_are_lost() -> None:
    with pytest.raises(SourceRecordsLostError, match=r"t/1 was deleted and created again with fewer partitions"):
        source(Admin(1), "fail").latest({"t/1": OLD["t/1"]}, None)


def test_a_partition_that_the_topic_has_is_waited_for() -> None:
    with pytest.raises(SourceUnavailableError, match="UNKNOWN_TOPIC_OR_PART"):
        source(Admin(3, known=2), timeout_ms=1).latest(OLD, None)


class LeaderDies(Admin):
    """Brokers of which one dies before it answers; another one describes the topic."""

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        return {each: answer(SimpleNamespace(offset=OFFSET_INVALID)) for each in wanted}


@pytest.mark.parametrize("lost_records", ["fail", "skip"])
def test_a_leader_that_dies_before_it_answers_loses_no_records(lost_records: Literal["fail", "skip"]) -> None:
    new = {split: {**position, "topic_id": "new"} for split, position in OLD.items()}
    reading = source(LeaderDies(3), lost_records)
    with pytest.raises(SourceUnavailableError):
        reading.latest(new, None)
    with pytest.raises(SourceUnavailableError):
        reading.discover(())

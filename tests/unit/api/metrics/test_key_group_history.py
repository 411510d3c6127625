"""The key groups of an operator over its checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.api.metrics import key_group_history as service
from keyscale.api.metrics.key_group_history import histories, spread_out
from keyscale.db.models import Checkpoint, CheckpointSubtask, Job

if TYPE_CHECKING:
    import pytest


def taken(*numbers: int) -> list[Checkpoint]:
    return [
        Checkpoint(checkpoint_id=number, latest_ack_timestamp=number * 10, trigger_timestamp=0) for number in numbers
    ]


def part(number: int, index: int, sizes: list[int], uid: str = "totals") -> CheckpointSubtask:
    start = index * 2
    return CheckpointSubtask(
        checkpoint_id=number, operator_uid=uid, subtask=index, key_group_start=start,
        key_group_end=start + len(sizes) - 1, key_group_bytes=sizes, key_group_entries=[size // 10 for size in sizes],
    )  # fmt: skip


def test_the_parts_of_a_checkpoint_are_put_together_whatever_the_parallelism_was() -> None:
    parts = [part(1, 0, [10, 20, 30, 40]), part(2, 0, [11, 21]), part(2, 1, [31, 41])]
    (found,) = histories(taken(1, 2), parts, 4, 1)
    assert (found.at_ms, found.bytes) == ([10, 20], [[10, 20, 30, 40], [11, 21, 31, 41]])
    assert found.entries == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert [(one.index, one.key_group_start, one.key_group_end) for one in found.subtasks] == [(0, 0, 1), (1, 2, 3)]


def test_neighbouring_groups_are_summed_up() -> None:
    (found,) = histories(taken(1), [part(1, 0, [10, 20, 30, 40, 50])], 5, 2)
    assert found.bytes == [[30, 70, 50]]


def test_a_checkpoint_that_does_not_say_every_size_is_left_out() -> None:
    parts = [part(1, 0, [1, 2]), part(2, 0, []), part(2, 1, []), part(3, 0, [1, 2]), part(3, 1, [3, 4])]
    (found,) = histories(taken(1, 2, 3), [*parts, part(3, 0, [], uid="map")], 4, 1)
    assert (found.uid, found.at_ms) == ("totals", [30])


def test_checkpoints_are_spread_over_the_whole_time_with_the_newest_one() -> None:
    known = taken(*range(1, 101))
    chosen = [each.checkpoint_id for each in spread_out(known, 4)]
    assert chosen == [1, 34, 67, 100]
    assert spread_out(known, 100) == known


def test_with_many_key_groups_fewer_checkpoints_are_read_and_neighbours_are_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key_groups = 1024
    asked: list[Any] = []
    parts = {number: part(number, 0, [number] * key_groups) for number in range(1, 10)}

    def parts_of(_: Any, job_id: str, numbers: list[int], operator: str) -> list[CheckpointSubtask]:
        asked.append((job_id, numbers, operator))
        return [parts[number] for number in numbers]

    monkeypatch.setattr(service, "CHECKPOINTS_MAX", 8)
    monkeypatch.setattr(service, "VALUES_MAX", 3 * key_groups + 1)
    job = Job(id="job", max_parallelism=key_groups)
    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
    newest_first = taken(*range(9, 0, -1))
    newest_first[0].latest_ack_timestamp, newest_first[0].trigger_timestamp = None, 95
    monkeypatch.setattr(
        service.checkpoints, "latest_with_parts", lambda _, job_id, limit: {"job": newest_first}[job_id][:limit]
    )
    monkeypatch.setattr(service.checkpoints, "parts_of", parts_of)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = service.show(context, "flights", "totals")
    assert asked == [("job", [9], "totals"), ("job", [2, 5, 9], "totals")]
    assert (found.max_parallelism, found.group_width) == (key_groups, 2)
    [operator] = found.operators
    assert (operator.uid, operator.at_ms) == ("totals", [20, 50, 95])
    assert operator.bytes == [[2 * number] * 512 for number in (2, 5, 9)]
    monkeypatch.setattr(service, "VALUES_MAX", 1)
    assert [len(each.at_ms) for each in service.show(context, "flights", "totals").operators] == [2]

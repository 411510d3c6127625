"""A function runs once per subtask, and a restore counts only if each key group was restored once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.errors import IncompleteReportsError
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.runtime.executor.subtask_jobs import RestoredSubtask, check_restored, run_per_subtask
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.restore.plan import CoverError
from tests.support.rehearsal.rehearsed_spark import RehearsedPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST, SECOND = OperatorUid("first"), OperatorUid("second")


class PlacementDataset(RehearsedPlacement):
    """A placement dataset of three subtasks of which Spark runs these."""

    def __init__(self, *rows: int) -> None:
        super().__init__(3)
        self.rows = rows

    def mapPartitions(self, function: Callable[[Iterator[tuple[int]]], Iterator[Any]]) -> Any:  # noqa: N802 - Spark's name
        results = list(function((subtask,) for subtask in self.rows))
        return SimpleNamespace(collect=lambda: results)


class Spark:
    """A session that notes the descriptions of its jobs."""

    def __init__(self) -> None:
        self.described: list[str] = []
        self.sparkContext = SimpleNamespace(setJobDescription=self.described.append)


def run(
    spark: Spark, placement: PlacementDataset, function: Callable[[SubtaskIndex], bytes]
) -> dict[SubtaskIndex, bytes]:
    return run_per_subtask(cast("Any", spark), cast("Any", placement), "snapshot 17", function)


def test_each_subtask_has_its_own_result() -> None:
    spark = Spark()
    assert run(spark, PlacementDataset(2, 0, 1), lambda subtask: b"%d" % subtask) == {0: b"0", 1: b"1", 2: b"2"}
    assert spark.described == ["snapshot 17", ""]


@pytest.mark.parametrize("rows", [(0, 1), (0, 1, 1), (0, 1, 2, 2), (0, 1, 3), ()])
def test_a_subtask_without_a_result_or_with_several_is_refused(rows: tuple[int, ...]) -> None:
    with pytest.raises(IncompleteReportsError, match=f"snapshot 17: {len(rows)} results of 3 subtasks"):
        run(Spark(), PlacementDataset(*rows), lambda _: b"")


def test_an_error_names_its_subtask() -> None:
    def fail(subtask: SubtaskIndex) -> bytes:
        if subtask == 1:
            raise CoverError("key groups are missing")
        return b""

    spark = Spark()
    with pytest.raises(CoverError) as caught:
        run(spark, PlacementDataset(0, 1, 2), fail)
    assert origin_of(caught.value).subtask == 1
    assert spark.described == ["snapshot 17", ""]


@pytest.mark.parametrize(
    ("second", "is_whole"),
    [
        ([(0, 3), (4, 7)], True),
        ([(4, 7), (0, 3)], True),
        ([(0, 3)], False),
        ([(0, 3), (5, 7)], False),
        ([(0, 4), (4, 7)], False),
        ([(0, 3), (4, 8)], False),
        ([], False),
    ],
)
def test_a_restore_counts_only_if_every_operator_has_each_key_group_once(
    second: list[tuple[int, int]], is_whole: bool
) -> None:
    restored = [RestoredSubtask(FIRST, KeyGroupRange(0, 7))]
    restored += [RestoredSubtask(SECOND, KeyGroupRange(*groups)) for groups in second]
    if is_whole:
        check_restored(restored, [FIRST, SECOND], KeyGroupRange(0, 7))
    else:
        with pytest.raises(CoverError):
            check_restored(restored, [FIRST, SECOND], KeyGroupRange(0, 7))

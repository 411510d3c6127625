"""The counts of a batch's memory: when it is full, what is worth a spill, and what the caches are charged."""

from __future__ import annotations

from math import inf

import pytest

from keyscale.state.keyed.batch_memory import LARGE_BYTES, BatchMemory


def test_large_entries_alone_fill_the_memory_beyond_its_limit() -> None:
    calls: list[int] = []
    memory = BatchMemory(1_000, on_full=lambda: calls.append(memory.large_bytes))
    memory.add_large(1_000)
    assert calls == []
    memory.add_large(1)
    assert calls == [1_001]
    memory.recount(400)
    memory.add_large(600)
    assert (calls, memory.large_bytes) == ([1_001], 1_000)


def test_of_many_entries_only_the_bytes_beyond_small_ones_count() -> None:
    memory = BatchMemory(10_000)
    memory.add_many(3, 3 * LARGE_BYTES)
    assert memory.large_bytes == 0
    memory.add_many(3, 3 * LARGE_BYTES + 50)
    assert (memory.large_bytes, memory.used_bytes(7)) == (50, 57)


def test_memory_that_could_not_be_freed_is_full_again_only_when_it_has_grown_by_a_quarter() -> None:
    memory = BatchMemory(1_000)
    assert [memory.is_full_with(used) for used in (1_000, 1_001)] == [False, True]
    assert [memory.is_half_full_with(changed) for changed in (500, 501)] == [False, True]
    memory.expect(1_200)
    assert [memory.is_full_with(used) for used in (1_450, 1_451)] == [False, True]
    memory.expect(999)
    assert [memory.is_full_with(used) for used in (1_000, 1_001)] == [False, True]
    memory.expect(5_000)
    memory.release()
    assert (memory.is_full_with(1_001), memory.large_bytes) == (True, 0)


@pytest.mark.parametrize(
    ("used", "grown", "records", "expected"),
    [
        (600, 100, 10, 20),
        (600, 0, 10, inf),
        (600, -5, 10, inf),
        (600, 100, 0, inf),
        (1_000, 100, 10, 1),
        (2_000, 9, 9, 1),
    ],
)
def test_the_next_check_is_due_when_records_like_the_latest_take_half_of_the_rest(
    used: int, grown: int, records: int, expected: float
) -> None:
    assert BatchMemory(1_000).records_until_full(used, grown, records) == expected


def test_the_rows_of_a_part_follow_the_bytes_of_the_part_before() -> None:
    memory = BatchMemory(8_000)
    assert memory.rows_at_once == 4
    memory.column_bytes = 100
    memory.saw_rows(4)
    assert (memory.rows_at_once, memory.column_bytes) == (40, 0)
    memory.saw_rows(40)  # without columns of state: as fast as parts may grow
    assert memory.rows_at_once == 40 * 32
    memory.column_bytes = 10**9
    memory.saw_rows(0)
    assert memory.rows_at_once == 40 * 32, "in the midst of a part"
    memory.saw_rows(10)
    assert memory.rows_at_once == 1


@pytest.mark.parametrize(("taken", "rows"), [(800, 100 * 1_000 // 3_200), (10**6, 1), (-1, 1), (-(10**6), 1)])
def test_rows_are_read_ahead_into_a_quarter_of_the_memory(taken: int, rows: int) -> None:
    assert BatchMemory(1_000).rows_ahead(100, taken) == rows
    assert BatchMemory(1_000).rows_ahead(100, 0) == BatchMemory().rows_ahead(100, taken) > 10**9


def test_caches_give_memory_in_steps_up_to_the_limit_and_get_all_of_it_back() -> None:
    charged: list[int] = []
    memory = BatchMemory(800, charge=charged.append)
    for small_bytes in (99, 100, 199, 450, 5_000):
        memory.used_bytes(small_bytes)
    assert charged == [100, 300, 400]
    memory.release()
    assert charged == [100, 300, 400, -800]
    memory.release()
    assert sum(charged) == 0


def test_a_batch_without_a_limit_is_never_full() -> None:
    memory = BatchMemory(charge=lambda _: pytest.fail("nothing is charged"))
    memory.add_large(10**12)
    memory.expect(10**12)
    memory.saw_rows(10)
    assert (memory.is_full_with(10**12), memory.is_half_full_with(10**12)) == (False, False)
    assert memory.used_bytes(5) == 10**12 + 5
    assert memory.rows_at_once > 10**9

"""Entries are returned in the order of their stored keys, whether they are spilled or stay in memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.writing import entry_sorter
from keyscale.state.writing.entry_sorter import EntrySorter
from keyscale.state.writing.row_encoder import RowsInvalidError, StoredEntries

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_sorter, "_PART_ENTRIES", 70)
    monkeypatch.setattr(entry_sorter, "_PORTION_ENTRIES_MIN", 50)
    monkeypatch.setattr(entry_sorter, "_RUN_ENTRIES", 30)


def entries_of(key_groups: KeyGroupRange, *, varies: bool) -> list[tuple[bytes, bytes]]:
    """Returns 500 entries in any order, with keys and values of one width or of several."""
    chosen, numbers = random.Random(varies), [*key_groups]
    keys = {
        chosen.choice(numbers).to_bytes(2, "big") + chosen.randbytes(chosen.randint(1, 12) if varies else 9)
        for _ in range(500)
    }
    return [(key, chosen.randbytes(chosen.randint(0, 3) if varies else 9)) for key in keys]


@pytest.mark.parametrize("varies", [False, True], ids=["one width", "several widths"])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 3_000], ids=["in memory", "spilled"])
@pytest.mark.parametrize(
    "key_groups", [KeyGroupRange(5, 5), KeyGroupRange(40, 167), KeyGroupRange(0, 32_767)], ids=["one", "128", "all"]
)
def test_entries_become_ascending_runs(
    key_groups: KeyGroupRange, memory_bytes: int, varies: bool, tmp_path: Path
) -> None:
    entries = entries_of(key_groups, varies=varies)
    sorter = EntrySorter("counts", tmp_path, key_groups, memory_bytes)
    for first in range(0, len(entries), 40):
        sorter.add(StoredEntries.of(entries[first : first + 40]))
    runs = list(sorter.runs())
    found = [entry for run in runs for entry in zip(run.keys, run.values, strict=True)]
    assert found == sorted(entries)
    assert max(map(len, runs)) <= 30
    assert bool(list(tmp_path.iterdir())) == (memory_bytes == 3_000)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 100], ids=["in memory", "spilled"])
def test_two_entries_of_one_key_are_refused(memory_bytes: int, tmp_path: Path) -> None:
    sorter = EntrySorter("counts", tmp_path, KeyGroupRange(0, 127), memory_bytes)
    for _ in range(2):
        sorter.add(StoredEntries.of([(bytes([0, group, 1]), b"value") for group in range(100)]))
    with pytest.raises(RowsInvalidError, match="have the key of another row"):
        list(sorter.runs())


def test_a_sorter_without_entries_has_no_run(tmp_path: Path) -> None:
    assert list(EntrySorter("counts", tmp_path, KeyGroupRange(0, 127)).runs()) == []

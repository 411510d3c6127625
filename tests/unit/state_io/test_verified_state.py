"""A verification reads every file and every entry."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state_io import NewOperator, NewOperatorState, NewState, StateReader, verified_state, write
from keyscale.state_io.verified_state import verify_state
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, VALUES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from keyscale.state_io.state_reader import StateTable

SAVEPOINT_V1 = GOLDEN / "savepoint-v1"
PLACE = f"every-kind/savepoints/{SAVEPOINT}"


def test_a_sound_snapshot_has_no_problem() -> None:
    found = verify_state(f"{SAVEPOINT_V1.as_uri()}/{PLACE}")
    entries = len(VALUES) + sum(map(len, KINDS.values()))
    assert (found.problems, found.entries) == ([], entries * len(KEYS))
    assert found.files > 0
    assert found.bytes_read > 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    shutil.copytree(SAVEPOINT_V1, tmp_path / "store")
    victim = next(path for path in sorted((tmp_path / "store").rglob("files/*")) if path.is_file())
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    found = verify_state(f"{(tmp_path / 'store').as_uri()}/{PLACE}")
    assert victim.name in found.problems[0]
    assert found.entries == 0


def test_an_entry_in_the_wrong_key_group_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verified_state.assign_to_key_groups
    monkeypatch.setattr(verified_state, "assign_to_key_groups", lambda codes, count: (real(codes, count) + 1) % count)
    found = verify_state(f"{SAVEPOINT_V1.as_uri()}/{PLACE}")
    assert '"totals"."map": ' in " ".join(found.problems)
    assert "wrong key group" in found.problems[0]


def test_operator_state_counts_and_an_operator_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = NewOperatorState(ListStateDescriptor("numbers", pa.int64()), pa.table({"value": [1, 2, 3]}))
    clicks = NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"user": ["a", "b"], "value": [1, 2]}))
    key = {"user": pa.string()}
    operators = [NewOperator("first", key, [clicks]), NewOperator("second", key, [clicks], [numbers])]
    location = write(f"file://{tmp_path}/store/job/savepoints/s", operators, max_parallelism=4, parallelism=2)
    found = verify_state(location)
    assert (found.problems, found.entries) == ([], 2 + 2 + 3)
    real = StateReader.tables

    def tables(reader: StateReader, operator: str | None = None, *, nested: bool = False) -> list[StateTable]:
        if operator == "first":
            raise ObjectCorruptError("a file")
        return real(reader, operator, nested=nested)

    monkeypatch.setattr(StateReader, "tables", tables)
    found = verify_state(location)
    assert (found.problems, found.entries) == (["operator 'first': STATE_CHECKSUM_MISMATCH: a file"], 2 + 3)


def test_only_the_first_problems_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_state, "assign_to_key_groups", lambda codes, count: (codes * 0) + count)
    monkeypatch.setattr(verified_state, "_PROBLEMS_MAX", 2)
    found = verify_state(f"{SAVEPOINT_V1.as_uri()}/{PLACE}")
    assert len(found.problems) == 2
    assert found.entries == (len(VALUES) + sum(map(len, KINDS.values()))) * len(KEYS), "all entries are read"

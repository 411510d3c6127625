"""A verification reads every file and every entry."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from keyscale.state_io import verified_state
from keyscale.state_io.verified_state import verify_state
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, VALUES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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


def test_only_the_first_problems_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_state, "assign_to_key_groups", lambda codes, count: (codes * 0) + count)
    monkeypatch.setattr(verified_state, "_PROBLEMS_MAX", 2)
    found = verify_state(f"{SAVEPOINT_V1.as_uri()}/{PLACE}")
    assert len(found.problems) == 2
    assert found.entries == (len(VALUES) + sum(map(len, KINDS.values()))) * len(KEYS), "all entries are read"

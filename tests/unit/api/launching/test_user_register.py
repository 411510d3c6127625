"""The register of a host gives each user number to one job at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from keyscale.api.errors import JobUserError
from keyscale.api.launching import user_register
from keyscale.api.launching.user_register import KEPT_S, UserRegister

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = range(700, 703)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the host."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserRegister:
    monkeypatch.setattr(user_register, "strays_of", lambda _: [])
    return UserRegister(tmp_path / "users")


def take(register: UserRegister, job_id: str, *places: Path, preferred: int = 700) -> int:
    return register.take(job_id, places, numbers=NUMBERS, preferred=preferred)


def test_jobs_get_different_numbers_until_the_range_is_full(register: UserRegister) -> None:
    assert [take(register, "a", preferred=702), take(register, "b", preferred=702), take(register, "c")] == [
        702,
        700,
        701,
    ]
    with pytest.raises(JobUserError, match="each of the users 700 to 702"):
        take(register, "d")
    assert take(register, "b", preferred=701) == 700, "a job keeps its number"


def test_a_number_is_free_when_nothing_of_its_job_is_left(
    register: UserRegister, tmp_path: Path, now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    take(register, "a", run)
    take(register, "a", store)
    assert take(register, "b") == 701, "the directories of the first job are still to be made"
    store.mkdir()
    now_s[0] += KEPT_S
    assert take(register, "c") == 701, "a savepoint of the first job stays, and nothing of the second"
    store.rmdir()
    monkeypatch.setattr(user_register, "strays_of", lambda uid: [object()] if uid == 700 else [])
    assert take(register, "d") == 702, "a process of the first job stays"
    monkeypatch.setattr(user_register, "strays_of", lambda _: [])
    assert take(register, "e") == 700


def test_a_number_that_is_given_back_is_free_at_once_unless_its_user_has_left_something(
    register: UserRegister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(register, "a", tmp_path / "load")
    (tmp_path / "load").mkdir()
    register.give_back("a", NUMBERS)
    assert take(register, "b") == 701, "a directory is left"
    (tmp_path / "load").rmdir()
    monkeypatch.setattr(user_register, "strays_of", lambda uid: [object()] if uid == 700 else [])
    register.give_back("a", NUMBERS)
    assert take(register, "c") == 702, "a process is left"
    monkeypatch.setattr(user_register, "strays_of", lambda _: [])
    register.give_back("a", NUMBERS)
    register.give_back("unknown", NUMBERS)
    assert take(register, "d") == 700


def test_the_register_is_roots_alone_and_tells_why_it_cannot_be_used(register: UserRegister, tmp_path: Path) -> None:
    take(register, "a")
    assert register.directory.stat().st_mode & 0o777 == 0o700
    assert register.why_unusable() is None
    (tmp_path / "file").touch()
    blocked = UserRegister(tmp_path / "file" / "users")
    assert "Not a directory" in (blocked.why_unusable() or "")
    (register.directory / "701").write_text("{")
    with pytest.raises(JobUserError, match="cannot be read"):
        take(register, "b")


def test_numbers_are_taken_one_after_the_other(register: UserRegister) -> None:
    with ThreadPoolExecutor(3) as threads:  # each has opened the lock itself, as processes do
        assert sorted(threads.map(lambda name: take(register, name), ("a", "b", "c"))) == [700, 701, 702]

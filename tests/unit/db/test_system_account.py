"""Accounts of this host's users, made by several processes at once."""

from __future__ import annotations

import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from keyscale.db import system_account
from keyscale.db.system_account import found_or_made

if TYPE_CHECKING:
    from pathlib import Path

SLOW_USERADD = """#!/bin/sh
sleep 0.3
echo "$@" >> {made}
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a stand-in for `useradd` adds a line for each account; it takes its time."""
    made = tmp_path / "made"
    made.touch()
    program = tmp_path / "bin" / "useradd"
    program.parent.mkdir()
    program.write_text(SLOW_USERADD.format(made=made))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(system_account, "LOCK", tmp_path / "lock")
    return made


def test_an_account_that_two_need_at_once_is_made_once(made: Path) -> None:
    def look() -> pwd.struct_passwd:
        if not made.read_text():
            raise KeyError("newcomer")
        return pwd.getpwuid(0)

    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda _: found_or_made(look, "newcomer", "--system"), range(2)))
    assert found == [pwd.getpwuid(0)] * 2
    assert made.read_text().splitlines() == ["--system newcomer"]


def test_an_account_that_is_there_is_not_made(made: Path) -> None:
    assert found_or_made(lambda: pwd.getpwuid(0), "root").pw_uid == 0
    assert made.read_text() == ""


def test_why_an_account_cannot_be_made_is_said(made: Path) -> None:
    made.parent.joinpath("bin", "useradd").write_text("#!/bin/sh\necho 'no room' >&2\nexit 1\n")
    with pytest.raises(LookupError, match="the user newcomer cannot be created: no room"):
        found_or_made(lambda: pwd.getpwnam("newcomer"), "newcomer")

"""`./keyscale test --all` runs every test once, part by part, and no part again that has passed."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.suite import __main__ as suite
from tests.suite import parts
from tests.suite.__main__ import Run
from tests.suite.parts import PARTS, Pass
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ONE_COMMIT, SAME_SOURCES, NEXT_COMMIT = "1" * 40, "2" * 40, "3" * 40
KAFKA = next(part for part in PARTS if part.name == "kafka")


class Runs:
    """Stands in for pytest and git: notes which parts ran, and lets the chosen ones fail."""

    def __init__(self) -> None:
        self.commit = ONE_COMMIT
        self.failing: set[str] = set()
        self.ran: list[str] = []

    def run_pytest(self, name: str, _arguments: list[str]) -> Run:
        self.ran.append(name)
        return Run(1, 9, 1) if name in self.failing else Run(0, 10, 0)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(parts, "PASSES", tmp_path / "all-passed.toml")
    monkeypatch.setattr(suite, "run_pytest", runs.run_pytest)
    monkeypatch.setattr(suite, "current_commit", lambda: runs.commit)
    monkeypatch.setattr(suite, "have_same_sources", lambda one, other: NEXT_COMMIT not in {one, other} or one == other)
    return runs


def test_every_test_file_is_in_one_part() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        path = str(file.relative_to(ROOT))
        holding = [part.name for part in PARTS if part.holds(path)]
        assert len(holding) == 1, (path, holding)


@pytest.mark.parametrize("commit", [ONE_COMMIT, SAME_SOURCES])
def test_a_part_that_has_passed_with_these_sources_is_not_run_again(
    runs: Runs, commit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failing = {"kafka"}
    assert suite.run_parts(list(PARTS)) == 1
    assert runs.ran == [part.name for part in PARTS]
    assert capsys.readouterr().out == f"{10 * len(PARTS) - 1} passed, 1 failed\n"
    assert suite.last_passed() == "--all has not passed yet: kafka"
    runs.ran, runs.failing, runs.commit = [], set(), commit
    assert suite.run_parts(list(PARTS)) == 0
    assert runs.ran == ["kafka"]
    assert capsys.readouterr().out == f"{10 * len(PARTS)} passed, 0 failed\n"
    assert {name: passed.commit for name, passed in parts.read_passes().items()} == {
        part.name: commit if part is KAFKA else ONE_COMMIT for part in PARTS
    }


@pytest.mark.parametrize("commit", [NEXT_COMMIT, ""], ids=["other sources", "changed files"])
def test_with_other_sources_every_part_runs(runs: Runs, commit: str) -> None:
    suite.run_parts(list(PARTS))
    runs.commit, runs.ran = commit, []
    suite.run_parts(list(PARTS))
    assert runs.ran == [part.name for part in PARTS]
    assert {passed.commit for passed in parts.read_passes().values()} == {commit or ONE_COMMIT}


@pytest.mark.usefixtures("runs")
def test_all_parts_have_passed_since_the_oldest_of_their_passes() -> None:
    suite.run_parts(list(PARTS))
    today, *_ = parts.read_passes().values()
    parts.write_pass(KAFKA, replace(today, date=dt.date(2026, 1, 31), commit=NEXT_COMMIT))
    assert suite.last_passed() == f"--all last passed on 2026-01-31, with its part kafka at {NEXT_COMMIT[:12]}"


def test_a_part_that_fails_keeps_its_last_pass(runs: Runs) -> None:
    suite.run_parts([KAFKA])
    before = parts.read_passes()
    assert set(before) == {"kafka"}
    runs.commit, runs.failing = NEXT_COMMIT, {"kafka"}
    suite.run_parts([KAFKA])
    assert parts.read_passes() == before


def test_the_noted_passes_are_no_change_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    monkeypatch.setattr(parts, "PASSES", tmp_path / "tests" / parts.PASSES.name)
    (tmp_path / "tests").mkdir()

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    assert parts.current_commit() == "", "no repository"
    git("init")
    (tmp_path / "some.py").touch()
    assert parts.current_commit() == "", "a file that is not committed"
    git("add", ".")
    git("commit", "-m", "one")
    first = parts.current_commit()
    parts.write_pass(KAFKA, Pass(dt.date(2026, 1, 31), first, 1, 2, 3))
    assert parts.current_commit() == first
    assert parts.have_same_sources(first, first)
    git("add", ".")
    git("commit", "-m", "two")
    second = parts.current_commit()
    assert second not in {"", first}
    assert parts.have_same_sources(first, second)
    (tmp_path / "some.py").write_text("changed")
    assert parts.current_commit() == ""
    git("commit", "-am", "three")
    assert not parts.have_same_sources(first, parts.current_commit())
    assert not parts.have_same_sources(NEXT_COMMIT, second), "a commit that this clone lacks"


def test_the_closing_line_counts_what_pytest_has_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "REPORTS", tmp_path)
    test = tmp_path / "test_some.py"
    test.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip('')\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError\n"
        "def test_error(broken): pass\n"
    )
    assert suite.run_pytest("some", [str(test), "-c", "/dev/null", "--rootdir", str(tmp_path)]) == Run(1, 1, 2)
    assert suite.run_pytest("some", ["--no-such-option"]) == Run(4, 0, 0)
    assert suite.processor_seconds() > 0


def test_a_run_that_is_interrupted_ends_with_the_summary_of_pytest(tmp_path: Path) -> None:
    test = tmp_path / "test_waiting.py"
    test.write_text(
        "import pathlib, time\n"
        "def test_good(): pass\n"
        "def test_waiting():\n"
        f"    pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "tests.suite", "--fast", str(test), "-c", os.devnull]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, text=True, stdout=subprocess.PIPE) as process:
        wait_until((tmp_path / "begun").exists, what="the second test")
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert "KeyboardInterrupt" in said
    assert said.splitlines()[-1] == "1 passed, 0 failed"
    assert process.returncode == pytest.ExitCode.INTERRUPTED

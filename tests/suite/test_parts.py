"""`./keyscale test --all` runs every test once, part by part, and no part again that has passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.suite import __main__ as suite
from tests.suite import parts
from tests.suite.__main__ import Run
from tests.suite.parts import PARTS
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ONE_COMMIT, NEXT_COMMIT = "1" * 40, "2" * 40


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
    monkeypatch.setattr(parts, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "ALL_PASSED", tmp_path / "all-passed.toml")
    monkeypatch.setattr(suite, "run_pytest", runs.run_pytest)
    monkeypatch.setattr(suite, "current_commit", lambda: runs.commit)
    return runs


def test_every_test_file_is_in_one_part() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        path = str(file.relative_to(ROOT))
        holding = [part.name for part in PARTS if part.holds(path)]
        assert len(holding) == 1, (path, holding)


def test_a_part_that_has_passed_at_this_commit_is_not_run_again(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.failing = {"kafka"}
    assert suite.run_parts(list(PARTS)) == 1
    assert runs.ran == [part.name for part in PARTS]
    assert capsys.readouterr().out == f"{10 * len(PARTS) - 1} passed, 1 failed\n"
    assert not suite.ALL_PASSED.exists()
    runs.ran, runs.failing = [], set()
    assert suite.run_parts(list(PARTS)) == 0
    assert runs.ran == ["kafka"]
    assert capsys.readouterr().out == f"{10 * len(PARTS)} passed, 0 failed\n"
    assert tomllib.loads(suite.ALL_PASSED.read_text())["commit"] == ONE_COMMIT


@pytest.mark.parametrize("commit", [NEXT_COMMIT, ""], ids=["the next commit", "changed files"])
def test_at_another_commit_every_part_runs(runs: Runs, commit: str) -> None:
    suite.run_parts(list(PARTS))
    runs.commit, runs.ran = commit, []
    suite.ALL_PASSED.unlink()
    suite.run_parts(list(PARTS))
    assert runs.ran == [part.name for part in PARTS]
    assert suite.ALL_PASSED.exists() == bool(commit)


def test_a_part_alone_says_nothing_of_other_parts(runs: Runs) -> None:
    [kafka] = [part for part in PARTS if part.name == "kafka"]
    suite.run_parts([kafka])
    assert runs.ran == ["kafka"]
    assert suite.last_passed() == "--all has not passed yet"


def test_the_closing_line_counts_what_pytest_has_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
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

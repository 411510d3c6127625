"""A short mutation run: a mistake that no test notices is printed, counted, and fails the run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from keyscale.installation import IMPORT_PATH
from tests.mutants.core import Edit, read_core
from tests.mutants.report import Tally, tally
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "keyscale.api.lifecycle.stopwatch"
AN_EDIT = Edit(MODULE, "Stopwatch.reset", "self._seen.clear()", 'self._seen = "none"')


def run_mutants(tests: str, folder: Path) -> subprocess.CompletedProcess[str]:
    core = folder / "core.toml"
    core.write_text(f'noticed_min = 0.9\n[tests]\n"{MODULE}" = ["{tests}"]\n')
    return subprocess.run(
        [sys.executable, "-P", "-m", "tests.mutants", "--sample", "5", "--core", str(core)],
        cwd=folder,
        env={"PYTHONPATH": f"{IMPORT_PATH}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.exhaustive
def test_mistakes_are_noticed_by_the_tests_that_concern_the_module(tmp_path: Path) -> None:
    done = run_mutants("tests/unit/api/lifecycle/test_stopwatch.py", tmp_path)
    assert done.stdout.splitlines()[-1].split() == ["all", "5", "5", "0", "0", "0", "100.0%"], done.stderr
    assert done.returncode == 0


@pytest.mark.exhaustive
def test_mistakes_that_no_test_notices_are_printed_and_fail_the_run(tmp_path: Path) -> None:
    done = run_mutants("tests/mutants/blind_stopwatch.py", tmp_path)
    _, mutants, noticed, _, survived, *_ = done.stdout.splitlines()[-1].split()
    assert int(noticed) + int(survived) == int(mutants) == 5, done.stderr
    assert min(int(noticed), int(survived)) > 0
    printed = done.stderr.partition("Error:")[0]
    assert {entry["module"] for entry in tomllib.loads(printed)["accepted"]} == {MODULE}
    assert printed.count("[[accepted]]") == int(survived)
    assert done.returncode == 1


def test_an_accepted_mistake_counts_neither_for_nor_against() -> None:
    counted = tally(8, 1, [AN_EDIT, Edit(MODULE, "f", "a", "b")], {AN_EDIT: "a reason"})
    assert counted == Tally(noticed=8, timed_out=1, survived=1, accepted=1)
    assert (counted.mutants, counted.share) == (11, 0.9)


def test_what_is_printed_can_be_accepted_with_a_reason(tmp_path: Path) -> None:
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(AN_EDIT.as_accepted())
    with pytest.raises(ValueError, match="without a reason"):
        read_core(accepted=accepted)
    accepted.write_text(AN_EDIT.as_accepted().replace('reason = ""', 'reason = "nobody sees it"'))
    assert read_core(accepted=accepted).accepted == {AN_EDIT: "nobody sees it"}


def test_the_cores_modules_tests_and_accepted_lines_are_there() -> None:
    core = read_core()
    sources = {module: ROOT / "src" / f"{module.replace('.', '/')}.py" for module in core.tests}
    assert [module for module, source in sources.items() if not source.is_file()] == []
    assert [
        path for paths in core.tests.values() for path in paths if not (ROOT / path.partition("::")[0]).exists()
    ] == []
    gone = [
        edit.before
        for edit in core.accepted
        if edit.before not in " ".join(line.strip() for line in sources[edit.module].read_text().splitlines())
    ]
    assert gone == []

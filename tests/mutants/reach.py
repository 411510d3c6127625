"""Which tests of the fast tier reach a line, by coverage.

A run of the tier notes it in a directory outside the repository, named after the commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants.mutated_copy import MutationError
from tests.support.repository import ROOT

FAST = "not real and not exhaustive"
_DURATIONS = "durations.json"
_CONFIGURATION = """[run]
source_pkgs = keyscale
parallel = true
data_file = {directory}/data
disable_warnings = module-not-imported,module-not-measured,no-data-collected
"""
_NOT_MEASURED = ("tests/architecture", "tests/mutants", "tests/suite")
"""Tests that stay outside of the product's code."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The tests that reach each line of the product.

    Attributes:
        lines: The tests by the line, by the source.
        seconds: How long each test took. Tests that did not pass are missing.
    """

    lines: dict[Path, dict[int, set[str]]]
    seconds: dict[str, float]

    def tests_of(self, path: Path, lines: tuple[int, int]) -> list[str]:
        """Returns the tests that reach one of the lines, the fastest first."""
        reached = self.lines.get(path, {})
        tests = set().union(*(reached.get(line, ()) for line in range(lines[0], lines[1] + 1)))
        return sorted(tests & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


def measured(processes: int, directory: Path | None) -> Reach:
    """Reads what a run of the fast tier has noted, and runs the tier at a commit without one.

    Args:
        processes: Of the run.
        directory: Where it is noted; None chooses the commit's directory.

    Raises:
        MutationError: The run was ended, or could not begin.
    """
    if directory is None:
        head = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        directory = Path(tempfile.gettempdir(), f"keyscale-reach-{commit}")
    if not (directory / _DURATIONS).exists():
        _measure(processes, directory)
    return _read(directory)


def _measure(processes: int, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    configuration = directory / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(directory=directory))
    covered = ["--cov", f"--cov-config={configuration}", "--cov-context=test", "--cov-report="]
    ignored = [f"--ignore={path}" for path in _NOT_MEASURED]
    spread = ["--dist=loadgroup", "--no-loadscope-reorder", f"--numprocesses={processes}"]
    noted = ["-p", "tests.mutants.reach", f"--note-durations={directory / _DURATIONS}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", FAST]
    done = subprocess.run([*command, *covered, *ignored, *spread, *noted], cwd=ROOT, check=False)
    if done.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        (directory / _DURATIONS).unlink(missing_ok=True)
        raise MutationError("the run of the fast tier has not come to its end")


def _read(directory: Path) -> Reach:
    seconds = json.loads((directory / _DURATIONS).read_text())
    of_file = defaultdict(set)
    for test in seconds:
        of_file[test.partition("::")[0]].add(test)
    lines: dict[Path, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    @cache
    def tests_in(context: str) -> frozenset[str]:
        noted, _, phase = context.rpartition("|")
        test = _without_group(noted)
        # What sets up the first test of a file may be for all of them.
        return frozenset(of_file[test.partition("::")[0]] if phase == "setup" else {test})

    for file in directory.glob("data*"):
        data = CoverageData(str(file))
        data.read()
        for source in data.measured_files():
            path = Path(source).resolve()
            if not path.is_relative_to(ROOT):
                continue
            of_source = lines[path.relative_to(ROOT)]
            for line, contexts in data.contexts_by_lineno(source).items():
                for context in contexts:
                    of_source[line] |= tests_in(context)
    return Reach(lines, seconds)


def _without_group(test: str) -> str:
    """Returns a test's name without the group that `--dist=loadgroup` adds to each."""
    return test.rpartition("@")[0]


class _Durations:
    """Notes how long tests took, and leaves out tests that failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)
        self._red: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _without_group(report.nodeid)
        self._seconds[test] += report.duration
        if not report.passed:
            self._red.add(test)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({test: s for test, s in self._seconds.items() if test not in self._red}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--note-durations", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations(config.option.note_durations))

"""`./keyscale test`: runs the tests of a tier, and says how long they took and how much of the processors."""

from __future__ import annotations

import datetime as dt
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.suite.parts import (
    PARTS,
    REPORTS,
    Part,
    Pass,
    current_commit,
    have_same_sources,
    read_passes,
    write_pass,
)
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHECKS = [str(ROOT / "keyscale"), "check"]
RUFF = [
    [sys.executable, "-m", "ruff", "check", "--quiet", "."],
    [sys.executable, "-m", "ruff", "format", "--quiet", "--check", "."],
]
FAST = ["-m", "not real and not exhaustive"]
GROUPS = ["--dist", "loadgroup", "--no-loadscope-reorder", "--numprocesses"]
PROCESSES = os.environ.get("KEYSCALE_TEST_PROCESSES")
MORE_EXAMPLES = "24"
"""The number of random histories of each kind in `--all`."""
USAGE = f"""usage: ./keyscale test [PYTEST ARGUMENT]...         the checks, then the default tier or what pytest is told
       ./keyscale test --fast [PYTEST ARGUMENT]...  the fast tier: no server, no Java, no browser
       ./keyscale test --all [PART]...              every test, part by part: {" ".join(part.name for part in PARTS)}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of pytest came to."""

    status: int
    passed: int
    failed: int

    @property
    def is_good(self) -> bool:
        return self.status == 0 and self.passed > 0 and self.failed == 0


def main(arguments: Sequence[str]) -> int:
    mode, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if mode == "--help":
        sys.stdout.write(USAGE)
        return 0
    if mode == "--all":
        unknown = set(rest) - {part.name for part in PARTS}
        if unknown:
            sys.stderr.write(USAGE)
            return 2
        if status := subprocess.run(CHECKS, check=False).returncode:
            return status
        os.environ.setdefault("KEYSCALE_TEST_EXAMPLES", MORE_EXAMPLES)
        return run_parts([part for part in PARTS if not rest or part.name in rest])
    if mode == "--fast":
        return run_tier(RUFF, [*FAST, *(rest or [*GROUPS, PROCESSES or "3"])])
    return run_tier([CHECKS], list(arguments) or [*GROUPS, PROCESSES or "3"])


def run_tier(checks: list[list[str]], arguments: list[str]) -> int:
    for check in checks:
        if status := subprocess.run(check, cwd=ROOT, check=False).returncode:
            return status
    run = run_pytest("tier", arguments)
    say(took("all of it", time.monotonic() - STARTED, processor_seconds()))
    say(last_passed())
    tell([run])
    return run.status


def run_parts(parts: list[Part]) -> int:
    """Runs the parts that have not passed with these sources, and notes which pass."""
    runs = []
    for part in parts:
        known, commit = read_passes().get(part.name), current_commit()
        if known and commit and have_same_sources(known.commit, commit):
            say(f"{part.name} has passed with these sources: {known.tests} tests")
            runs.append(Run(0, known.tests, 0))
            continue
        say(f"part {part.name}")
        begun, before = time.monotonic(), processor_seconds()
        coverage = ["--cov", "--cov-report=html:.keyscale/coverage/pages"] if part.measured else []
        run = run_pytest(part.name, [*part.arguments(), *coverage, *GROUPS, PROCESSES or str(part.processes)])
        seconds, used = time.monotonic() - begun, processor_seconds() - before
        if run.is_good and commit and commit == current_commit():
            today = dt.datetime.now(dt.UTC).date()
            write_pass(part, Pass(today, commit, run.passed, round(seconds), round(used)))
        runs.append(run)
        say(took(part.name, seconds, used))
    say(last_passed())
    tell(runs)
    return max(run.status for run in runs)


def run_pytest(name: str, arguments: Iterable[str]) -> Run:
    """Runs pytest, and reads the numbers of its tests from its report."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
    # Without files of bytecode, each driver and each control plane would compile the platform again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets it, too, and ends with its summary
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if not report.is_file():
        return Run(done.returncode or 1, 0, 0)
    [suite] = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - pytest has just written it
    total, failures, errors, skipped = (int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped"))
    return Run(done.returncode, total - failures - errors - skipped, failures + errors)


def processor_seconds() -> float:
    """The processor time of all that this process has started: a pytest's reaper waits for each process below it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def took(what: str, seconds: float, processor: float) -> str:
    return f"{what} took {seconds // 60:.0f} min {seconds % 60:.0f} s, and {processor:,.0f} s of the processors"


def last_passed() -> str:
    passes = read_passes()
    if missing := [part.name for part in PARTS if part.name not in passes]:
        return f"--all has not passed yet: {', '.join(missing)}"
    part = min(PARTS, key=lambda part: passes[part.name].date)
    first = passes[part.name]
    return f"--all last passed on {first.date}, with its part {part.name} at {first.commit[:12]}"


def say(line: str) -> None:
    sys.stderr.write(f"keyscale: {line}\n")


def tell(runs: list[Run]) -> None:
    sys.stderr.flush()
    sys.stdout.write(f"{sum(run.passed for run in runs)} passed, {sum(run.failed for run in runs)} failed\n")


STARTED = time.monotonic()
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

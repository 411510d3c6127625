"""No process that tests have started outlives their pytest, and all of their processor time is known."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TREE = """
import subprocess, sys, time
from pathlib import Path
child = "import time; time.sleep(600)"
parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True).wait()"

def test_starts_a_tree(request):
    started = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    Path("started").write_text(str(started.pid))
    if Path("wait").exists():
        started.wait()
"""

COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_tree.py"]
BURN_SECONDS = 1.0
BURN = f"""
import pathlib, subprocess, sys, time
burn = "import pathlib, time\\nwhile time.process_time() < {BURN_SECONDS}: pass\\npathlib.Path('burnt').touch()"

def test_burns_time_in_a_process_without_a_parent():
    subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, burn], check=True)
    while not pathlib.Path("burnt").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a test that starts a process which starts another one, each in a session of its own."""
    (tmp_path / "test_tree.py").write_text(TREE)
    (tmp_path / "conftest.py").write_text(
        "from tests.suite.reaper import continue_below_reaper\n"
        "def pytest_cmdline_main(config):\n"
        "    continue_below_reaper()\n"
    )
    return tmp_path


@pytest.fixture
def pytest_process(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        COMMAND, cwd=project, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        yield process
        process.kill()


def started_tree(project: Path) -> list[psutil.Process]:
    """Waits until the test's two processes run, and returns them."""
    wait_until(lambda: (project / "started").is_file() and (project / "started").read_text(), what="the first process")
    first = psutil.Process(int((project / "started").read_text()))
    wait_until(first.children, what="the second process")
    return [first, *first.children()]


@pytest.mark.parametrize("killed", ["the process that was started", "pytest", "the process group"])
def test_what_tests_have_started_ends_with_a_pytest_that_is_killed(
    project: Path, pytest_process: subprocess.Popen[bytes], killed: str
) -> None:
    (project / "wait").touch()
    tree = started_tree(project)
    if killed == "the process group":
        os.killpg(pytest_process.pid, signal.SIGKILL)
    elif killed == "pytest":
        tree[0].parent().kill()
    else:
        pytest_process.kill()
    gone, _ = psutil.wait_procs(tree, timeout=60)
    assert len(gone) == 2
    assert pytest_process.wait(60) == (128 + signal.SIGKILL if killed == "pytest" else -signal.SIGKILL)


def test_what_a_test_has_left_ends_with_pytest_and_is_named(
    project: Path, pytest_process: subprocess.Popen[bytes]
) -> None:
    said = pytest_process.communicate(timeout=60)[0].decode()
    first = int((project / "started").read_text())
    assert pytest_process.returncode == 0
    assert "1 passed" in said
    assert "ends processes that are left: python" in said
    assert not psutil.pid_exists(first)


@pytest.mark.real
def test_the_processor_time_of_a_process_without_a_parent_counts(project: Path) -> None:
    (project / "test_tree.py").write_text(BURN)
    counted = processor_seconds(project)
    (project / "conftest.py").unlink()
    without_reaper = processor_seconds(project)
    assert counted > without_reaper + BURN_SECONDS / 2


def processor_seconds(project: Path) -> float:
    """Runs the project's test; returns what the kernel has counted for the process that was started."""
    (project / "burnt").unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(COMMAND, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

"""The supervisor of a driver that sleeps waits for the driver, and not only for its JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyscale.api.launching import supervisor
from keyscale.api.launching.driver_log import LogWriter
from keyscale.jobs.protocol.exit_codes import EXIT_ASLEEP
from keyscale.jobs.protocol.redaction import Mask
from tests.support.repository import ROOT

STUCK_JVM = """
import signal, subprocess, sys

subprocess.Popen([sys.executable, "-c", sys.argv[1]])
while True:
    signal.pause()
"""
DRIVER = """
import threading
from types import SimpleNamespace
from keyscale.jobs.spark_internals import jvm_end

system = SimpleNamespace(exit=lambda _: threading.Event().wait())
jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
jvm_end._WAIT_SECONDS = 0.1
jvm_end.end_jvm(SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm), stop=lambda: None))
print("awake", flush=True)
"""


@pytest.mark.parametrize(
    ("statuses", "code"),
    [([], EXIT_ASLEEP), ([10 << 8], 10), ([0, 9], -9)],
    ids=["no child", "a child", "a killed child last"],
)
def test_the_exit_code_is_of_the_last_child(monkeypatch: pytest.MonkeyPatch, statuses: list[int], code: int) -> None:
    left = iter(statuses)

    def wait() -> tuple[int, int]:
        status = next(left, None)
        if status is None:
            raise ChildProcessError
        return 1, status

    monkeypatch.setattr(os, "wait", wait)
    assert supervisor.orphans_ended(EXIT_ASLEEP) == code


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_a_driver_of_a_user_of_its_own_may_open_the_output_of_its_jvm_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(supervisor.DRIVER_USER_VARIABLE, "65534:65534")
    monkeypatch.setattr(supervisor, "give_up_privileges", lambda: None)  # of this process, for good
    command = ["/bin/sh", "-c", "/bin/sh -c 'echo awake > /proc/$PPID/fd/1'; :"]
    tmp_path.chmod(0o755)
    output = supervisor.Output(LogWriter(tmp_path), Mask({}))
    driver, copying = supervisor.start(Path("/"), command, output, {})
    driver.wait(10)
    copying.join(10)
    assert (tmp_path / "driver.log").read_text() == "awake\n"


@pytest.mark.timeout(60)
def test_a_jvm_that_does_not_end_is_ended_without_a_failure_of_its_sleeping_driver(tmp_path: Path) -> None:
    run = tmp_path / "1"
    run.mkdir()
    jvm = [sys.executable, "-c", STUCK_JVM, DRIVER]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, supervisor.__file__, str(run), *jvm], env=variables, check=False)
    assert (ended.returncode, (run / "driver.log").read_text()) == (0, "awake\n")

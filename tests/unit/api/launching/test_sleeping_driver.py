"""The supervisor of a driver that sleeps waits for the driver, and not only for its JVM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyscale.api.launching import supervisor
from keyscale.api.launching.driver_log import LogWriter
from keyscale.jobs.protocol.exit_codes import EXIT_ASLEEP
from keyscale.jobs.protocol.redaction import Mask


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

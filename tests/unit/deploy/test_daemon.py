"""The stack's scripts know their own processes by pid and start time, and keep secrets from other users."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

USAGE = "usage() { echo the usage; }"


def run(stack: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of a script that sources the stack's functions."""
    script = "\n".join(["set -euo pipefail", f". {ROOT}/deploy/stack/daemon.bash", USAGE, *lines])
    environment = {"PATH": os.environ["PATH"], "KEYSCALE_STACK_DIR": str(stack)}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    done = run(tmp_path / "new", "umask 022", "secret a", "echo", "secret a", "echo", "secret b")
    first, again, other = done.stdout.split()
    assert (first == again, first != other, len(first), set(first) <= set("0123456789abcdef")) == (True, True, 48, True)
    files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").iterdir()}
    assert files == {"a.secret": 0o600, "b.secret": 0o600}
    (tmp_path / "new" / "a.secret").write_text("chosen")
    assert run(tmp_path / "new", "secret a").stdout == "chosen"


def test_a_process_is_started_once_reported_and_ended_by_the_chosen_signal(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "start_daemon d bash -c 'trap \"\" TERM; echo begun; exec sleep 60'",  # only another signal ends it
        "wait_until_ready d 20 grep -q begun $stack/d.log",
        "report_daemon d",
        "start_daemon d false",
        'read -r pid _ <"$stack/d.pid"',
        "stop_daemon d USR1",
        "kill -0 $pid 2>/dev/null || echo gone",
        "stop_daemon d",
        "report_daemon d || echo $?",
    )
    assert done.returncode == 0, done.stderr
    running, gone, stopped, code = done.stdout.splitlines()
    assert (running[:16], gone, stopped, code) == ("d: running (pid ", "gone", "d: stopped", "1")
    assert f"d is already running ({running.partition('(')[2]}" in done.stderr
    assert "did not end by itself" not in done.stderr
    assert (tmp_path / "d.log").read_text() == "begun\n"
    assert not (tmp_path / "d.pid").exists()


def test_a_pid_of_another_process_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        for line in (f"{other.pid} 1\n", f"{other.pid}\n", "nonsense\n"):
            (tmp_path / "d.pid").write_text(line)
            assert run(tmp_path, "report_daemon d").stdout == "d: stopped\n"
            assert run(tmp_path, "stop_daemon d").returncode == 0
            assert not (tmp_path / "d.pid").exists()
        assert other.poll() is None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()


def test_a_process_that_ends_or_is_too_slow_is_said_with_the_end_of_its_log(tmp_path: Path) -> None:
    ended = run(tmp_path, "start_daemon d bash -c 'echo why; sleep 0.05; exit 3'", "wait_until_ready d 20 false")
    assert (ended.returncode, (tmp_path / "d.pid").exists()) == (1, False)
    assert ended.stderr.splitlines()[0] == "why"
    assert f"d ended before it was ready; its log: {tmp_path}/d.log" in ended.stderr
    slow = run(
        tmp_path,
        "start_daemon d bash -c 'echo busy; exec sleep 60'",
        "wait_until_ready d 20 grep -q busy $stack/d.log",
        "(wait_until_ready d 0 false) || echo $?",
        "stop_daemon d",
    )
    assert (slow.returncode, slow.stdout) == (0, "1\n")
    assert "d was not ready in time" in slow.stderr


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("1", None),
        ("65535", None),
        ("65536", "a port is at most 65535"),
        ("0", "whole number above 0"),
        ("08080", "whole number above 0"),
        ("-1", "whole number above 0"),
        ("http", "whole number above 0"),
        ("", "whole number above 0"),
    ],
)
def test_a_port_is_a_whole_number_of_its_range(tmp_path: Path, value: str, complaint: str | None) -> None:
    done = run(tmp_path, f"check_port '{value}'")
    if complaint is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, complaint in done.stderr, "the usage" in done.stderr) == (2, True, True)


def test_a_port_of_another_program_is_refused(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert run(tmp_path, f"refuse_taken_port d {port}", f"is_listening {port} || echo free").stdout == "free\n"
        server.listen()
        refused = run(tmp_path, f"is_listening {port}", f"refuse_taken_port d {port}")
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by another program" in refused.stderr

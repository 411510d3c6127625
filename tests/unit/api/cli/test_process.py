"""A control plane's process is started on its home, waited for, and stopped or killed."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.api.cli import process
from keyscale.api.cli.errors import StartFailedError
from keyscale.api.cli.process import ControlPlaneProcess
from keyscale.client.connection import TOKEN_FILE

if TYPE_CHECKING:
    from pathlib import Path


class Started:
    """A process that writes its token at the second look, and answers at the fourth."""

    def __init__(self, home: Path) -> None:
        self.home, self.pid, self.returncode = home, 77, None
        self.looks, self.healthy_at = 0, 4
        self.ends_at: int | None = None
        self.signals: list[Any] = []
        self.hangs = False
        self.given: dict[str, Any] = {}

    def open(self, command: list[str], **given: Any) -> Started:
        self.given = {"command": command, **given}
        given["stdout"].write(b"the log\n")
        return self

    def look(self, request: httpx.Request) -> httpx.Response:
        assert request.url == "http://127.0.0.1:8123/health"
        if self.looks < self.healthy_at - 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if self.looks < self.healthy_at else 200)

    def pause(self, _: float) -> None:
        self.looks += 1
        if self.looks == 2:
            (self.home / TOKEN_FILE).write_text("the-token\n")
        if self.looks == self.ends_at:
            self.returncode = 3

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, timeout_s: float | None = None) -> int:
        if self.hangs and timeout_s is not None:
            raise subprocess.TimeoutExpired("control plane", timeout_s)
        return 0

    def kill(self) -> None:
        self.signals.append("kill")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started(tmp_path / "home")
    monkeypatch.setattr(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": made.open}))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: 10.0 * made.looks, sleep=made.pause))
    transport = httpx.MockTransport(made.look)
    monkeypatch.setattr(
        process, "httpx", SimpleNamespace(**{**vars(httpx), "Client": lambda **_: httpx.Client(transport=transport)})
    )
    monkeypatch.setattr(process, "trusted_certificates", lambda _: False)
    return made


def test_a_start_waits_for_the_token_and_the_health(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_PORT", "1")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    settings = {"KEYSCALE_STORE": "s3://b", "KEYSCALE_HOST": "0.0.0.0"}  # noqa: S104 - it is not used
    control_plane = ControlPlaneProcess(started.home, 8123, settings)
    with pytest.raises(StartFailedError, match="has not been started"):
        _ = control_plane.pid
    control_plane.start()
    assert started.looks == 4
    environment = started.given["env"]
    names = ("KEYSCALE_HOME", "KEYSCALE_HOST", "KEYSCALE_PORT", "KEYSCALE_STORE")
    assert [environment[name] for name in names] == [str(started.home), "127.0.0.1", "8123", "s3://b"]
    assert environment["PYTHONPATH"].endswith(":/mine")
    assert started.given["command"] == [sys.executable, "-P", "-m", "keyscale.api.web"]
    assert started.given["start_new_session"]
    assert stat.S_IMODE(control_plane.log.stat().st_mode) == 0o600, "its first line has the token"
    assert (control_plane.pid, control_plane.connection.url) == (77, "http://127.0.0.1:8123")
    assert (control_plane.connection.token, control_plane.connection.ca_file) == ("the-token", None)
    control_plane.start()
    assert control_plane.log.read_text() == "the log\n" * 2, "a second start appends"


def test_a_process_that_ends_or_does_not_answer_fails_the_start_with_the_end_of_its_log(started: Started) -> None:
    control_plane = ControlPlaneProcess(started.home, 8123)
    started.ends_at = 3
    with pytest.raises(StartFailedError, match="ended with exit code 3:\nthe log"):
        control_plane.start()
    assert started.signals == []
    started.returncode, started.ends_at, started.looks, started.healthy_at = None, None, 0, 99
    with pytest.raises(StartFailedError, match="did not answer within 90 s:\nthe log"):
        control_plane.start()
    assert (started.looks, started.signals) == (10, ["kill"])


def test_a_stop_asks_first_and_kills_what_hangs(started: Started) -> None:
    control_plane = ControlPlaneProcess(started.home, 8123)
    control_plane.stop()
    control_plane.kill()
    control_plane.start()
    control_plane.stop()
    assert started.signals == [signal.SIGTERM]
    started.hangs = True
    control_plane.stop()
    assert started.signals == [signal.SIGTERM, signal.SIGTERM, "kill"]
    started.returncode = 0
    control_plane.stop()
    assert len(started.signals) == 3, "it has ended"


def test_the_address_and_the_authorities_follow_the_settings(tmp_path: Path) -> None:
    secured = ControlPlaneProcess(tmp_path, 1, {"KEYSCALE_TLS_CERTIFICATE": "c.pem", "KEYSCALE_CA_FILE": "/ca.pem"})
    assert (secured.url, str(secured.ca_file)) == ("https://127.0.0.1:1", "/ca.pem")
    assert ControlPlaneProcess(tmp_path, 1, {"KEYSCALE_CA_FILE": ""}).ca_file is None

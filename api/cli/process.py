"""A control plane process, started on a home directory.

The process is `python -m keyscale.api.web`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from keyscale.certificates import trusted_certificates
from keyscale.client.connection import TOKEN_FILE, Connection
from keyscale.installation import IMPORT_PATH

from .errors import StartFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.05
LOG_TAIL_BYTES = 4000


@dataclass(slots=True)
class ControlPlaneProcess:
    """Starts, stops and kills one control plane.

    Its drivers survive a kill; a stop also ends the embedded database.

    Attributes:
        home: Its home directory, which holds all its files.
        port: The port of 127.0.0.1 that it listens on.
        settings: Further environment variables.
    """

    home: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file of its output; a second start appends to it."""
        return self.home / "control-plane.log"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        if self._process is None:
            raise StartFailedError("the control plane has not been started")
        return self._process.pid

    @property
    def connection(self) -> Connection:
        """How to talk to it, with its admin token."""
        return Connection(self.url, (self.home / TOKEN_FILE).read_text().strip(), self.ca_file)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'https' if 'KEYSCALE_TLS_CERTIFICATE' in self.settings else 'http'}://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path | None:
        """The certificate authorities of its settings."""
        file = self.settings.get("KEYSCALE_CA_FILE")
        return Path(file) if file else None

    def start(self) -> None:
        """Starts the process and waits until it reports that it is healthy.

        Raises:
            StartFailedError: It ended, or did not answer in time; the message holds the end of its output.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(IMPORT_PATH), os.environ.get("PYTHONPATH", "")])),
            **self.settings,
            "KEYSCALE_HOME": str(self.home),
            "KEYSCALE_HOST": "127.0.0.1",
            "KEYSCALE_PORT": str(self.port),
        }
        # The first line holds the admin's token.
        with open(self.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "keyscale.api.web"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # this process handles Ctrl-C, to stop everything in order
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        # One client: to read the certificate authorities takes as long as some hundred requests.
        with httpx.Client(trust_env=False, timeout=5.0, verify=trusted_certificates(self.ca_file)) as client:
            while not self._is_healthy(client):
                if self._process.poll() is not None:
                    raise StartFailedError(
                        f"the control plane ended with exit code {self._process.returncode}:\n{self._log_tail()}"
                    )
                if time.monotonic() > deadline:
                    self.kill()
                    raise StartFailedError(
                        f"the control plane did not answer within {START_TIMEOUT_S:.0f} s:\n{self._log_tail()}"
                    )
                time.sleep(POLL_S)

    def stop(self) -> None:
        """Stops the process; kills it after a timeout."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the process, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_healthy(self, client: httpx.Client) -> bool:
        if not (self.home / TOKEN_FILE).exists():
            return False
        try:
            return client.get(f"{self.url}/health").is_success
        except httpx.TransportError:
            return False

    def _log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def free_port() -> int:
    """Returns a currently unused TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

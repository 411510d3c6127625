"""The issuer of OpenID Connect in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from keyscale.api.cli.process import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM = Path(__file__).with_name("openid_issuer.py")


class IssuerProcess:
    """The issuer's process, as tests steer it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(trust_env=False)

    def set(self, **settings: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._http.post(f"{self.url}/control", json=settings).json()
        return answer

    def token(self, *, algorithm: str = "RS256", **claims: Any) -> str:
        return str(self.set(claims=claims, algorithm=algorithm)["token"])

    def follow(self, url: str) -> str:
        """Signs in at the issuer, as a browser does, and returns the address that it leads back to."""
        return str(self._http.get(url).headers["location"])

    def is_up(self) -> bool:
        try:
            return self._http.get(f"{self.url}/keys").is_success
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._http.close()


@contextmanager
def running_issuer() -> Iterator[IssuerProcess]:
    """Starts an issuer, and ends it afterwards."""
    port = free_port()
    with subprocess.Popen([sys.executable, _PROGRAM, str(port)]) as process:
        running = IssuerProcess(f"http://127.0.0.1:{port}")
        wait_until(running.is_up, what="the issuer to answer")
        yield running
        running.close()
        process.terminate()

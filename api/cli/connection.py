"""Where the control plane is and which token it wants: flags first, then the environment, then the home directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from api.cli.problems import ControlPlaneNotFoundError

CHECKOUT = Path(__file__).resolve().parents[2]
ADDRESS_FILE = "address"
TOKEN_FILE = "token"  # noqa: S105 - a file name


def default_home() -> Path:
    """The directory that the embedded control plane keeps everything in: KEYSCALE_HOME, or .keyscale in the checkout."""
    return Path(os.environ.get("KEYSCALE_HOME") or CHECKOUT / ".keyscale").absolute()


@dataclass(frozen=True, slots=True)
class Connection:
    """A control plane's address and the token to show it."""

    url: str
    token: str

    @property
    def dashboard_url(self) -> str:
        """Where a browser finds the dashboard."""
        return f"{self.url}/ui/"

    def masked_token(self) -> str:
        """The token as it may stand on a screen that others see."""
        return f"{self.token[:6]}…" if len(self.token) > 12 else "…"

    def __repr__(self) -> str:
        """Never the token: representations end in logs and tracebacks."""
        return f"Connection(url={self.url!r})"


def find_connection(url: str | None, token: str | None, home: Path) -> Connection:
    """Finds the control plane to talk to.

    Args:
        url: From a flag or KEYSCALE_URL; None: the address that the control plane of `home` has left there.
        token: From a flag or KEYSCALE_TOKEN; None: the admin token of `home`.
        home: The home directory of a control plane on this machine.

    Raises:
        ControlPlaneNotFoundError: There is no address, or no token.
    """
    address = url or _read_first_line(home / ADDRESS_FILE)
    if not address:
        message = f"no address was given, and no control plane has been started on {home}"
        raise ControlPlaneNotFoundError(message)
    secret = token or _read_first_line(home / TOKEN_FILE)
    if not secret:
        message = f"no token was given, and there is none in {home}"
        raise ControlPlaneNotFoundError(message)
    return Connection(address.rstrip("/"), secret)


def _read_first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return lines[0].strip() if lines else ""

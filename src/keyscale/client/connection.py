"""The control plane's address and token.

They come from options, else from the environment, else from the home directory. The file with the address outlives its
control plane, so a control plane at that address has to prove that it knows the home's admin token.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from keyscale import installation

from .errors import ControlPlaneNotFoundError

ADDRESS_FILE = "address"
TOKEN_FILE = "token"  # noqa: S105 - a file name


def default_home() -> Path:
    """Returns the home directory of the control plane on this machine.

    It is KEYSCALE_HOME, or .keyscale in the checkout.
    """
    return Path(os.environ.get("KEYSCALE_HOME") or installation.default_home()).absolute()


@dataclass(frozen=True, slots=True)
class Connection:
    """A control plane's address, a token, and trusted certificate authorities.

    Attributes:
        url: The address.
        token: The token.
        ca_file: PEM file with further certificate authorities.
        proof_key: What the control plane has to know before it gets the token; None: the user trusts the address.
    """

    url: str
    token: str
    ca_file: Path | None = None
    proof_key: str | None = field(default=None, repr=False)

    @property
    def dashboard_url(self) -> str:
        """The address of the dashboard."""
        return f"{self.url}/ui/"

    def masked_token(self) -> str:
        """Returns the token in a form that others may see."""
        return f"{self.token[:6]}…" if len(self.token) > 12 else "…"

    def __repr__(self) -> str:
        """Omits the token: representations appear in logs and tracebacks."""
        return f"Connection(url={self.url!r})"


def find_connection(url: str | None, token: str | None, home: Path, ca_file: Path | None = None) -> Connection:
    """Finds the control plane to talk to.

    Args:
        url: From --url or KEYSCALE_URL; None: the address that the control plane of `home` wrote there.
        token: From --token or KEYSCALE_TOKEN; None: the admin token of `home`.
        home: The home directory of a control plane on this machine.
        ca_file: From --ca-file or KEYSCALE_CA_FILE.

    Raises:
        ControlPlaneNotFoundError: The address or the token is missing.
    """
    address = url or _read_first_line(home / ADDRESS_FILE)
    if not address:
        raise ControlPlaneNotFoundError(f"no address was given, and no control plane has been started on {home}")
    token_of_home = _read_first_line(home / TOKEN_FILE)
    secret = token or token_of_home
    if not secret or not (url or token_of_home):
        raise ControlPlaneNotFoundError(f"no token was given, and {home} has none")
    proof_key = None if url else hashlib.sha256(token_of_home.encode()).hexdigest()
    return Connection(address.rstrip("/"), secret, ca_file, proof_key)


def _read_first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return lines[0].strip() if lines else ""

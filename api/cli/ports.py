"""Free ports on the loopback address."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

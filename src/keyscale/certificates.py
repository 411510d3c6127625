"""The certificates that connections over TLS trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


def trusted_certificates(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Returns the trusted certificates: the usual authorities, and a file's.

    Args:
        ca_file: A PEM file with further authorities.

    Raises:
        OSError: The file cannot be read, or holds no certificate.
    """
    context = httpx.create_ssl_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context

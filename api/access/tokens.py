"""Tokens: random, long, and stored only as their hash."""

from __future__ import annotations

import hashlib
import secrets


def new_token() -> str:
    """Returns a new token of 256 random bits."""
    return secrets.token_urlsafe(32)


def token_sha256(token: str) -> str:
    """Returns the hash under which a token is stored."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()

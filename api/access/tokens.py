"""Tokens: random, long, and stored only as their hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_SALT_CHARACTERS = 22


def new_token() -> str:
    """Returns a new token of 256 random bits."""
    return secrets.token_urlsafe(32)


def attempt_token(key: str, attempt: str, salt: str | None = None) -> str:
    """Returns a token for an attempt.

    The replicas of a database can compute the token from its salt, even if the database has lost the attempt: so they
    can prove to its driver that they do not know it.

    Args:
        key: The key of the replicas of the database.
        attempt: The attempt, as `<job>:<number>`.
        salt: The part before the dot; None for a new token.
    """
    salt = secrets.token_urlsafe(16) if salt is None else salt
    code = hmac.new(key.encode(), f"attempt token\n{attempt}\n{salt}".encode(), hashlib.sha256).hexdigest()
    return f"{salt}.{code}"


def reserved_token(key: str, attempt: str, operation_id: str) -> str:
    """Returns the token of an attempt of a live rescale.

    Every replica computes the same token, as any replica may send it to the driver.

    Args:
        key: The key of the replicas of the database.
        attempt: The attempt, as `<job>:<number>`.
        operation_id: The operation.
    """
    return attempt_token(key, attempt, salt=token_sha256(operation_id)[:_SALT_CHARACTERS])


def token_sha256(token: str) -> str:
    """Returns the hash under which a token is stored."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()

"""Credentials of long requests.

They are the tokens and sessions with which the requests began, with a check of their validity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.db.repositories import browser_sessions, tokens

from ..database_clock import shared_now_ms
from .browser_sessions import SESSION_COOKIE
from .identities import bearer_token
from .openid import looks_issued
from .tokens import token_sha256

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session
    from starlette.requests import HTTPConnection

    from .principal import Principal


@dataclass(frozen=True, slots=True)
class Credential:
    """How the sender of a request has shown who it is.

    Attributes:
        expires_at_ms: When it expires; None: never.
        token_sha256: The hash of the platform's own token.
        session_sha256: The hash of the cookie of a browser's session. A token of an issuer has neither hash: such a
            token can only expire.
    """

    expires_at_ms: int | None
    token_sha256: str | None = None
    session_sha256: str | None = None


def credential_of(request: HTTPConnection, user: Principal) -> Credential:
    """Returns the credential of a request that was let in."""
    if not (bearer := bearer_token(request)):
        return Credential(user.expires_at_ms, session_sha256=token_sha256(request.cookies.get(SESSION_COOKIE, "")))
    return Credential(user.expires_at_ms, token_sha256=None if looks_issued(bearer) else token_sha256(bearer))


def lapsed(session: Session, credentials: Collection[Credential]) -> set[Credential]:
    """Returns the credentials that are no longer valid, with two statements."""
    at_ms = shared_now_ms()
    by_token = {each.token_sha256 for each in credentials if each.token_sha256 is not None}
    by_session = {each.session_sha256 for each in credentials if each.session_sha256 is not None}
    valid_tokens = tokens.valid(session, by_token, at_ms=at_ms) if by_token else set()
    valid_sessions = browser_sessions.valid(session, by_session, at_ms=at_ms) if by_session else set()
    return {
        each
        for each in credentials
        if (each.expires_at_ms is not None and each.expires_at_ms <= at_ms)
        or (each.token_sha256 is not None and each.token_sha256 not in valid_tokens)
        or (each.session_sha256 is not None and each.session_sha256 not in valid_sessions)
    }

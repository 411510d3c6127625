"""Sessions of browsers: begun at sign-in, stored, named by a cookie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from keyscale.clock import now_ms
from keyscale.db.job_scope import JobScope
from keyscale.db.models import BrowserSession
from keyscale.db.repositories import browser_sessions, events

from ..database_clock import shared_now_ms
from ..errors import OriginNotAllowedError, TokenExpiredError, TokenMissingError
from .principal import TOKEN_CHARACTERS_MAX, Principal, holder_of
from .tokens import new_token, token_sha256

if TYPE_CHECKING:
    from sqlalchemy.orm import Session
    from starlette.requests import HTTPConnection

SESSION_COOKIE = "keyscale_session"
_HOUR_MS = 3_600_000


def begin(session: Session, user: Principal, *, token: str | None, hours: int) -> str:
    """Begins a session.

    Args:
        session: The transaction.
        user: The user who signs in.
        token: The user's token, if the user signs in with one: the session ends with it.
        hours: How long the session lasts at most.

    Returns:
        The value of its cookie, of which only the hash is stored.
    """
    value, at_ms = new_token(), shared_now_ms()
    browser_sessions.remove_expired(session, at_ms=at_ms)
    session.add(
        BrowserSession(
            sha256=token_sha256(value),
            token_sha256=None if token is None else token_sha256(token),
            user_id=user.id,
            name=user.name,
            role=user.role,
            job_labels=[list(label) for label in sorted(user.scope.any_labels)],
            created_at_ms=at_ms,
            expires_at_ms=at_ms + hours * _HOUR_MS,
        )
    )
    events.record(
        session, job_id=None, at_ms=at_ms, kind="SIGNED_IN", actor=user.name, message=f"{user.name} signed in"
    )
    return value


def end(session: Session, cookie: str) -> None:
    """Ends the session of a cookie, if any.

    Copies of the cookie are then worthless.
    """
    digest = token_sha256(cookie)
    found = browser_sessions.find(session, digest)
    if found is not None:
        browser_sessions.remove(session, digest)
        name = found[0].name
        events.record(session, job_id=None, at_ms=now_ms(), kind="SIGNED_OUT", actor=name, message=f"{name} signed out")


def authenticate_cookie(session: Session, cookie: str) -> Principal:
    """Returns the user of a session.

    Raises:
        TokenMissingError: The session does not exist.
        TokenExpiredError: The session or its token has expired.
        TokenRevokedError: The session's token was revoked.
    """
    found = browser_sessions.find(session, token_sha256(cookie)) if 0 < len(cookie) <= TOKEN_CHARACTERS_MAX else None
    if found is None:
        raise TokenMissingError("the token is missing or not valid")
    row, token = found
    if row.expires_at_ms <= shared_now_ms():
        raise TokenExpiredError("the session has expired")
    if token is None:
        scope = JobScope(any_labels=frozenset((name, value) for name, value in row.job_labels))
        return Principal(row.user_id, row.name, row.role, scope, expires_at_ms=row.expires_at_ms)
    user = holder_of(token)
    return replace(user, expires_at_ms=min(row.expires_at_ms, user.expires_at_ms or row.expires_at_ms))


def require_own_page(request: HTTPConnection) -> None:
    """Refuses a request that a page of another site sent.

    Such a page can send forms, but cannot choose a header, and the browser reports the origin of the request.

    Raises:
        OriginNotAllowedError: The request does not come from a page of the control plane.
    """
    if request.headers.get("x-requested-with") != "keyscale":
        raise OriginNotAllowedError("a request with the session's cookie needs the header X-Requested-With: keyscale")
    require_own_origin(request)


def require_own_origin(request: HTTPConnection) -> None:
    """Refuses a request of another origin.

    The browser reports the origin; other clients do not.

    Raises:
        OriginNotAllowedError: The request comes from another origin.
    """
    origin = request.headers.get("origin")
    is_own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_own or request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise OriginNotAllowedError("the request was sent by a page of another origin")

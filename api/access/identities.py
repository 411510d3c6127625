"""The senders of requests: holders of users' tokens, pages with the session cookie, and drivers of attempts."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from keyscale.api.access.tokens import token_sha256
from keyscale.api.errors import OriginNotAllowedError, TokenMissingError
from keyscale.db.repositories import attempts, tokens
from keyscale.db.statuses import AttemptStage, Role

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker
    from starlette.requests import HTTPConnection

SESSION_COOKIE = "keyscale_session"
_TOKEN_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a user's token."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The driver of one attempt.

    Attributes:
        job_id: The attempt's job.
        attempt: The attempt's number.
        over: Whether the attempt has ended.
    """

    job_id: str
    attempt: int
    over: bool


def find_principal(sessions: sessionmaker[Session], token: str) -> Principal | None:
    """Returns the holder of a token, or None if there is no such token."""
    if not token or len(token) > _TOKEN_CHARACTERS_MAX:
        return None
    digest = token_sha256(token)
    with sessions() as session:
        found = tokens.find(session, digest)
    # The look-up compares hashes of the whole token, so its timing reveals nothing. This makes it explicit.
    if found is None or not hmac.compare_digest(found.sha256, digest):
        return None
    return Principal(found.name, found.role)


def require_user(request: Request) -> Principal:
    """Returns the user who sends the request.

    A page's cookie is accepted too, but changes something only together with a header that forms of other sites cannot
    send.

    Raises:
        TokenMissingError: The token is missing or wrong.
        OriginNotAllowedError: Another site sent the cookie.
    """
    sessions = _sessions(request)
    if bearer := bearer_token(request):
        principal = find_principal(sessions, bearer)
    else:
        principal = find_principal(sessions, request.cookies.get(SESSION_COOKIE, ""))
        if principal is not None and request.method not in {"GET", "HEAD"} and not _is_own_page(request):
            raise OriginNotAllowedError(
                "a request with the session's cookie needs the header X-Requested-With: keyscale"
            )
    if principal is None:
        raise TokenMissingError("the token is missing or not valid")
    return principal


def require_driver(request: Request) -> DriverIdentity:
    """Returns the attempt whose driver sends the request.

    Raises:
        TokenMissingError: The token is missing or not that of an attempt.
    """
    token = bearer_token(request)
    if token and len(token) <= _TOKEN_CHARACTERS_MAX:
        with _sessions(request)() as session:
            found = attempts.find_by_token(session, token_sha256(token))
        if found is not None:
            return DriverIdentity(found.job_id, found.number, found.stage is AttemptStage.ENDED)
    raise TokenMissingError("the attempt's token is missing or not valid")


def bearer_token(request: HTTPConnection) -> str:
    """Returns the token of the Authorization header, or an empty string."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _sessions(request: Request) -> sessionmaker[Session]:
    sessions: sessionmaker[Session] = request.app.state.context.sessions
    return sessions


def _is_own_page(request: Request) -> bool:
    if request.headers.get("x-requested-with") != "keyscale":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


User = Annotated[Principal, Depends(require_user)]
Driver = Annotated[DriverIdentity, Depends(require_driver)]

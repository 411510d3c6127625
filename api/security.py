"""Who sends a request: tokens, the session cookie of the pages, and the Host header."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from api.errors import OriginNotAllowedError, TokenMissingError
from db.repositories import attempts, tokens
from db.statuses import AttemptStage, Role

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from api.context import Context

SESSION_COOKIE = "keyscale_session"
_TOKEN_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a user's token."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The driver of one attempt."""

    job_id: str
    attempt: int
    over: bool


def new_token() -> str:
    """Returns a fresh token of 256 random bits."""
    return secrets.token_urlsafe(32)


def token_sha256(token: str) -> str:
    """Returns what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def find_principal(context: Context, token: str) -> Principal | None:
    """Returns the holder of a token, or None if there is no such token."""
    if not token or len(token) > _TOKEN_CHARACTERS_MAX:
        return None
    digest = token_sha256(token)
    with context.sessions() as session:
        found = tokens.find(session, digest)
    # The look-up compares hashes of the whole token, so its timing tells nothing; this says so once more, in code.
    if found is None or not hmac.compare_digest(found.sha256, digest):
        return None
    return Principal(found.name, found.role)


def require_user(request: Request) -> Principal:
    """Returns who sends the request.

    A page's cookie counts too, but changes something only with a header that other sites' forms cannot send.

    Raises:
        TokenMissingError: There is no token, or a wrong one.
        OriginNotAllowedError: The cookie came from elsewhere.
    """
    context: Context = request.app.state.context
    if bearer := bearer_token(request):
        principal = find_principal(context, bearer)
    else:
        principal = find_principal(context, request.cookies.get(SESSION_COOKIE, ""))
        if principal is not None and request.method not in {"GET", "HEAD"} and not _is_own_page(request):
            raise OriginNotAllowedError(
                "a request with the session's cookie needs the header X-Requested-With: keyscale"
            )
    if principal is None:
        raise TokenMissingError("the token is missing or not valid")
    return principal


def require_driver(request: Request) -> DriverIdentity:
    """Returns which attempt's driver sends the request.

    Raises:
        TokenMissingError: There is no token, or not one of an attempt.
    """
    context: Context = request.app.state.context
    token = bearer_token(request)
    if token and len(token) <= _TOKEN_CHARACTERS_MAX:
        with context.sessions() as session:
            found = attempts.find_by_token(session, token_sha256(token))
        if found is not None:
            return DriverIdentity(found.job_id, found.number, found.stage is AttemptStage.ENDED)
    raise TokenMissingError("the attempt's token is missing or not valid")


def bearer_token(request: HTTPConnection) -> str:
    """Returns the token of the Authorization header, or an empty string."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_own_page(request: Request) -> bool:
    if request.headers.get("x-requested-with") != "keyscale":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


User = Annotated[Principal, Depends(require_user)]
Driver = Annotated[DriverIdentity, Depends(require_driver)]

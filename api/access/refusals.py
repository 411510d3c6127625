"""Refused requests: recorded as events, and slowed down when there are many."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError

from keyscale.clock import now_ms
from keyscale.db.repositories import events

from ..errors import (
    OriginNotAllowedError,
    OutOfScopeError,
    RateLimitedError,
    RoleMissingError,
    RoleTooLowError,
    TokenMissingError,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker
    from starlette.requests import Request

    from ..errors import ApiError
    from .rates import Rates

logger = logging.getLogger(__name__)

_PATH_CHARACTERS_MAX = 200
_REFUSALS = (TokenMissingError, RoleTooLowError, RoleMissingError, OutOfScopeError, OriginNotAllowedError)


def is_refusal(request: Request, error: ApiError) -> bool:
    """Returns whether an error denies permission to the sender.

    Other errors say that the request cannot be carried out.
    """
    return isinstance(error, _REFUSALS) or getattr(request.state, "is_out_of_scope", False)


def note_refusal(request: Request, error: ApiError) -> ApiError:
    """Records a refused request.

    Returns:
        The error to answer. That is `RateLimitedError` for an address that sent many requests without a valid token;
        drivers are excepted, since one without a valid token has to learn that it must end.
    """
    origin = events.ORIGIN.get()
    if origin is None:
        return error
    context = request.app.state.context
    rates: Rates = context.rates
    if isinstance(error, TokenMissingError) and not request.url.path.startswith("/driver/"):
        wait_s = rates.failures.take(origin.address)
        if wait_s > 0:
            return RateLimitedError("too many requests without a valid token came from this address", wait_s)
    if rates.refusals.take("") == 0:
        _record(context.sessions, request, error, origin.actor or "unknown")
    return error


def _record(sessions: sessionmaker[Session], request: Request, error: ApiError, actor: str) -> None:
    path = quote(request.url.path)[:_PATH_CHARACTERS_MAX]
    try:
        with sessions.begin() as session:
            events.record(
                session,
                job_id=None,
                at_ms=now_ms(),
                kind="ACCESS_DENIED",
                actor=actor,
                message=f"{request.method} {path} was refused: {error.code}",
                code=error.code,
                method=request.method,
                path=path,
                reason=error.detail,
            )
    except SQLAlchemyError as failure:
        logger.warning("a refused request could not be recorded: %s", type(failure).__name__)

"""Turns every error into `application/problem+json` (RFC 9457) with a stable code."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from api.errors import (
    ApiError,
    BodyTooLargeError,
    DatabaseUnavailableError,
    MethodNotAllowedError,
    RequestInvalidError,
    RouteNotFoundError,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

_log = logging.getLogger(__name__)
_RETRY_AFTER_S = "2"


def problem(error: ApiError, **more: Any) -> JSONResponse:
    """Returns the answer for an error."""
    body = {
        "type": f"urn:keyscale:error:{error.code}",
        "code": error.code,
        "title": error.title,
        "status": error.status,
        "detail": error.detail or error.title,
        "advice": error.advice,
        "retryable": error.retryable,
        **more,
    }
    headers = {"Retry-After": _RETRY_AFTER_S} if error.status == DatabaseUnavailableError.status else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status_code=error.status, headers=headers, media_type="application/problem+json")


def add_handlers(app: FastAPI) -> None:
    """Lets the application answer every error as a problem."""

    @app.exception_handler(ApiError)
    def on_api_error(_: Request, error: ApiError) -> JSONResponse:
        return problem(error)

    @app.exception_handler(RequestValidationError)
    def on_invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        # Never the input itself: it may hold a secret.
        errors = [
            {"field": ".".join(str(part) for part in found["loc"]), "message": found["msg"]} for found in error.errors()
        ]
        named = ", ".join(found["field"] for found in errors[:3])
        return problem(RequestInvalidError(f"not valid: {named}"), errors=errors)

    @app.exception_handler(HTTPException)
    def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path
        known: dict[int, ApiError] = {
            404: RouteNotFoundError(f"there is nothing at {path}"),
            405: MethodNotAllowedError(f"{path} does not take {request.method}"),
            413: BodyTooLargeError("the body is too large"),
        }
        if error.status_code >= 500:
            return problem(ApiError())
        return problem(known.get(error.status_code) or RequestInvalidError(str(error.detail)))

    @app.exception_handler(DBAPIError)
    @app.exception_handler(PoolTimeoutError)
    def on_database_error(_: Request, error: Exception) -> JSONResponse:
        if is_database_away(error):
            _log.warning("the database does not answer: %s", type(error).__name__)
            return problem(DatabaseUnavailableError())
        _log.error("a query has failed", exc_info=error)
        return problem(ApiError())

    @app.exception_handler(Exception)
    def on_defect(_: Request, error: Exception) -> JSONResponse:
        _log.error("a request has failed", exc_info=error)
        return problem(ApiError())


def is_database_away(error: Exception) -> bool:
    """Whether an error says that PostgreSQL does not answer, rather than that a query is wrong."""
    if isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError)):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated

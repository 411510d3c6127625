"""Answers every error of the web application as a problem."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from keyscale.db.connections import is_database_away, is_given_up, is_too_slow
from keyscale.db.repositories.events import ORIGIN

from ..access.refusals import is_refusal, note_refusal
from ..dashboard.router import unknown_page
from ..errors import (
    ApiError,
    BodyTooLargeError,
    DatabaseBusyError,
    DatabaseSlowError,
    DatabaseUnavailableError,
    MethodNotAllowedError,
    RequestInvalidError,
    RouteNotFoundError,
)
from ..problem import problem
from .request_origin import REQUEST_ID_HEADER

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from ..control_plane.context import Context

logger = logging.getLogger(__name__)


def add_handlers(app: FastAPI) -> None:
    """Makes the application answer every error as a problem."""

    @app.exception_handler(ApiError)
    def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return answer_of(request, note_refusal(request, error) if is_refusal(request, error) else error, **error.more)

    @app.exception_handler(RequestValidationError)
    def on_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        invalid = RequestInvalidError.of(error)
        return answer_of(request, invalid, **invalid.more)

    @app.exception_handler(HTTPException)
    def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
            return unknown_page(request)
        known: dict[int, ApiError] = {
            404: RouteNotFoundError(f"the path {path} does not exist"),
            405: MethodNotAllowedError(f"{path} does not take {request.method}"),
            413: BodyTooLargeError("the body is too large"),
        }
        if error.status_code >= 500:
            return answer_of(request, ApiError())
        answer = answer_of(request, known.get(error.status_code) or RequestInvalidError(str(error.detail)))
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_methods_of(request))
        return answer

    @app.exception_handler(DBAPIError)
    @app.exception_handler(PoolTimeoutError)
    def on_database_error(request: Request, error: Exception) -> JSONResponse:
        return answer_of(request, _database_problem(error))

    @app.exception_handler(Exception)
    def on_defect(request: Request, error: Exception) -> JSONResponse:
        logger.error("a request failed", exc_info=error)
        answer = answer_of(request, ApiError())
        if (origin := ORIGIN.get()) is not None:  # this answer passes no middleware
            answer.headers[REQUEST_ID_HEADER] = origin.request_id
        return answer


def answer_of(request: Request, error: ApiError, **more: Any) -> JSONResponse:
    """Returns the answer for an error, and counts the error."""
    context: Context | None = request.app.state.context
    if context is not None:
        context.metrics.count("errors", error.code)
    return problem(error, **more)


def _database_problem(error: Exception) -> ApiError:
    """Logs a failed statement and returns its error.

    Its parameters, which may hold a secret, are never logged.
    """
    reason = getattr(error, "orig", None) or type(error).__name__
    if is_database_away(error):
        logger.warning("the database does not answer: %s", type(error).__name__)
        return DatabaseUnavailableError()
    if is_given_up(error):
        logger.warning("a request blocked another request: %s", reason)
        return DatabaseBusyError()
    if is_too_slow(error):
        logger.warning("a statement took too long: %s", reason)
        return DatabaseSlowError()
    logger.error("a statement failed: %s", reason, exc_info=error)
    return ApiError()


def _methods_of(request: Request) -> list[str]:
    """Returns the methods that a path supports.

    They are the methods of the path's own routes, or else of all routes that match it.
    """
    routes = list(iter_route_contexts(request.app.routes))
    exact = [route for route in routes if route.path == request.url.path]
    fitting = exact or [route for route in routes if compile_path(route.path or "")[0].match(request.url.path)]
    return sorted({method for route in fitting for method in route.methods or ()})

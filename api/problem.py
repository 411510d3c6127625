"""Error answers: `application/problem+json` (RFC 9457) with a stable code."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field
from starlette.responses import JSONResponse

from .errors import DatabaseUnavailableError, TooManyInFlightError
from .shapes import Answer

if TYPE_CHECKING:
    from .errors import ApiError

_PASSING = frozenset({DatabaseUnavailableError.status, TooManyInFlightError.status})


class FieldProblem(Answer):
    """The reason why a field of a request is wrong."""

    field: str
    message: str


class ProblemAnswer(Answer):
    """An error.

    `code` stays the same from version to version; GET /health adds the states of the parts.
    """

    type: str = Field(description="`urn:keyscale:error:` and the code.")
    code: str
    title: str
    status: int
    detail: str
    advice: str
    retryable: bool = Field(description="Whether the same request may succeed later.")
    errors: list[FieldProblem] | None = Field(default=None, description="The wrong fields, of REQUEST_INVALID.")


def problem(error: ApiError, **more: Any) -> JSONResponse:
    """Returns the answer for an error.

    Args:
        error: The error.
        more: Further fields of the answer.
    """
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
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))} if error.status in _PASSING else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status_code=error.status, headers=headers, media_type="application/problem+json")

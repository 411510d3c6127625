from __future__ import annotations

import json
import pickle
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from keyscale.api.errors import (
    ApiError,
    DatabaseUnavailableError,
    OperationInProgressError,
    PlanTimeoutError,
    RateLimitedError,
    RequestInvalidError,
    RevisionConflictError,
    StoreUnavailableError,
    TokenMissingError,
)
from keyscale.api.operations.schemas.any_operation import AnyOperation
from keyscale.api.problem import problem
from tests.support.coroutines import run_coroutine


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("it is away"),
        RequestInvalidError("no"),
        RequestInvalidError("no", [{"field": "name", "message": "missing"}]),
        OperationInProgressError("a rescale", "o-1"),
        RevisionConflictError("older", 3),
    ],
)
def test_an_error_survives_pickling_with_its_fields(error: ApiError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), copy.detail, copy.more) == (type(error), error.detail, error.more)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"content": "{}"}, "Input should be a JSON object, sent with the header Content-Type: application/json"),
        (
            {"data": {"kind": "STOP"}},
            "Input should be a JSON object, sent with the header Content-Type: application/json",
        ),
        ({"json": [1]}, "Input should be a JSON object"),
    ],
)
def test_a_body_that_is_not_read_as_a_json_object_is_refused_with_the_header_to_send(
    sent: dict[str, Any], message: str
) -> None:
    app = FastAPI()

    @app.post("/")
    def take(_: Annotated[AnyOperation, Body()]) -> None:
        pytest.fail("the body is no operation")

    refused: list[dict[str, Any]] = []

    @app.exception_handler(RequestValidationError)
    def refuse(_: Request, error: RequestValidationError) -> Response:
        refused.append(RequestInvalidError.of(error).more)
        return Response(status_code=422)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
            return await client.post("/", **sent)

    assert run_coroutine(send()).status_code == 422
    assert refused == [{"errors": [{"field": "body", "message": message}]}]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"kind": "NOPE"}, "body.kind", "Input should be one of START, STOP,"),
        ({"id": "x"}, "body.kind", "Field required"),
        ({"kind": "RESCALE", "parallelism": 2, "revision": 1}, "body.RESCALE.revision", "Extra inputs"),
    ],
)
def test_a_request_of_no_known_kind_is_refused_in_words_of_the_api(
    body: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as failed:
        TypeAdapter(AnyOperation).validate_python(body)
    [wrong] = RequestInvalidError.of(failed.value, "body").more["errors"]
    assert (wrong["field"], wrong["message"][: len(message)]) == (field, message)
    assert "NOPE" not in wrong["message"]
    assert "<" not in wrong["message"]


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (RateLimitedError("slowly", 7.2), {"retry-after": "8"}),
        (DatabaseUnavailableError(), {"retry-after": "2"}),
        (TokenMissingError("none"), {"www-authenticate": "Bearer"}),
        (RevisionConflictError("older", 3), {}),
        (PlanTimeoutError("later"), {}),
    ],
)
def test_an_answer_says_everything_that_is_known_of_its_error(error: ApiError, headers: dict[str, str]) -> None:
    answer = problem(error, place="here")
    assert json.loads(bytes(answer.body)) == {
        "type": f"urn:keyscale:error:{error.code}",
        "code": error.code,
        "title": error.title,
        "status": error.status,
        "detail": error.detail or error.title,
        "advice": error.advice,
        "retryable": error.retryable,
        "place": "here",
    }
    described = {"content-length", "content-type"}
    assert {name: value for name, value in answer.headers.items() if name not in described} == headers
    assert (answer.status_code, answer.headers["content-type"]) == (error.status, "application/problem+json")

"""The document says what the routes refuse, as exactly as JSON Schema can."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import Field

from keyscale.api.shapes import NUMBER_MAX, Request
from keyscale.api.web.openapi import describe


class Labels(Request):
    labels: dict[str, str] = Field(default_factory=dict)


class Made(Request):
    note: str
    state: Annotated[str, Field(pattern="^a$")] = "a"
    inner: Labels | None = None


router = APIRouter(tags=["jobs"])


@router.post("/made")
def make(number: Annotated[int, Query(ge=-NUMBER_MAX, le=NUMBER_MAX)], made: Made | None = None) -> dict[str, str]:
    return {str(number): str(made)}


@router.get("/jobs")
def show_all(after: str | None = None) -> dict[str, str]:
    return {"after": str(after)}


@router.get("/jobs/{job_id}/compare")
def compare(job_id: str) -> dict[str, str]:
    return {"id": job_id}


@router.get("/stream", tags=["streams"])
def stream() -> dict[str, str]:
    return {}


@router.get("/health")
def show_health() -> dict[str, str]:
    return {}


def document() -> dict[str, Any]:
    app = FastAPI()
    app.include_router(router)
    return describe(app)


def test_the_bounds_of_integers_are_exact() -> None:
    [number] = document()["paths"]["/made"]["post"]["parameters"]
    assert (number["schema"]["minimum"], number["schema"]["maximum"]) == (-NUMBER_MAX, NUMBER_MAX)


def test_texts_in_a_body_have_no_nul() -> None:
    schemas = document()["components"]["schemas"]
    made, labels = schemas["Made"]["properties"], schemas["Labels"]["properties"]["labels"]
    assert made["note"]["pattern"] == labels["propertyNames"]["pattern"] == r"^[^\x00]*$"
    assert labels["additionalProperties"]["pattern"] == r"^[^\x00]*$"
    assert made["state"]["pattern"] == "^a$"
    assert "pattern" not in schemas["ProblemAnswer"]["properties"]["code"]


def test_an_optional_body_is_no_null() -> None:
    body = document()["paths"]["/made"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Made"}


OF_ALL = {"HTTP_INVALID", "HOST_NOT_ALLOWED", "BODY_TOO_LARGE", "DATABASE_UNAVAILABLE", "RATE_LIMITED"}
OF_USERS = {"TOKEN_INVALID", "TOKEN_EXPIRED", "TOKEN_REVOKED", "ROLE_TOO_LOW", "ROLE_MISSING", "ISSUER_UNAVAILABLE"}
OF_CHANGES = {"ORIGIN_NOT_ALLOWED", "OUT_OF_SCOPE", "JOB_NAME_TAKEN", "OPERATION_ID_TAKEN", "STORE_UNAVAILABLE"}
OF_HEALTH = {"RECONCILER_DOWN", "LEADER_MISSING", "STORE_UNAVAILABLE"}
SOME = {"CURSOR_INVALID", "REQUEST_INVALID", "JOB_NOT_FOUND", "ROUTE_NOT_FOUND", "TOO_MANY_IN_FLIGHT"}


@pytest.mark.parametrize(
    ("method", "path", "own"),
    [
        ("get", "/health", OF_HEALTH),
        ("get", "/jobs", {*OF_USERS, "CURSOR_INVALID", "REQUEST_INVALID"}),
        ("get", "/stream", {*OF_USERS}),
        (
            "get",
            "/jobs/{job_id}/compare",
            {*OF_USERS, "REQUEST_INVALID", "JOB_NOT_FOUND", "ROUTE_NOT_FOUND", "TOO_MANY_IN_FLIGHT"},
        ),
        ("post", "/made", {*OF_USERS, *OF_CHANGES, "REQUEST_INVALID", "TOO_MANY_IN_FLIGHT"}),
    ],
)
def test_a_route_names_the_refusals_that_it_can_answer(method: str, path: str, own: set[str]) -> None:
    responses = document()["paths"][path][method]["responses"]
    told = {
        status: set(re.findall(r"`([A-Z_]+)`: ", answer["description"]))
        for status, answer in responses.items()
        if "application/problem+json" in answer.get("content", {})
    }
    codes = set().union(*told.values())
    assert codes & (OF_USERS | OF_CHANGES | OF_HEALTH | SOME) == own
    assert codes >= OF_ALL
    assert "500" not in responses, "a defect is no answer of a route"
    statuses = {code: status for status, found in told.items() for code in found}
    assert (statuses["RATE_LIMITED"], statuses["BODY_TOO_LARGE"], statuses["DATABASE_BUSY"]) == ("429", "413", "503")

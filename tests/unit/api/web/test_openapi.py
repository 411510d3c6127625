"""The document says what the routes refuse, as exactly as JSON Schema can."""

from __future__ import annotations

from typing import Annotated, Any

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

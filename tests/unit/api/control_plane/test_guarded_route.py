"""Guards, endpoints and their answers."""

from contextvars import ContextVar
from typing import Annotated

import httpx
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field, field_serializer

from keyscale.api.control_plane.guarded_route import GuardedRoute
from tests.support.coroutines import run_coroutine

STEPS: ContextVar[tuple[str, ...]] = ContextVar("STEPS", default=())
"""The steps so far of a call in another thread: each such call has a copy."""


class Answer(BaseModel):
    steps: list[str] = Field(serialization_alias="of")

    @field_serializer("steps")
    def add_ours(self, steps: list[str]) -> list[str]:
        return [*steps, *STEPS.get(), "written"]


def guard(request: Request) -> str:
    if "authorization" not in request.headers:
        raise HTTPException(401)
    STEPS.set((*STEPS.get(), "guarded"))
    return "user"


Guard = Annotated[str, Depends(guard)]
router = APIRouter(route_class=GuardedRoute)


@router.get("/steps")
def show_steps(user: Guard, limit: Annotated[int, Query(ge=1)] = 1) -> Answer:
    STEPS.set((*STEPS.get(), "answered"))
    return Answer(steps=[user] * limit)


@router.get("/asynchronous")
async def show_asynchronously(user: Guard) -> Answer:
    return Answer(steps=[user])


@router.post("/made", status_code=201)
def make(_: Guard, response: Response, again: bool = False) -> Answer:
    response.headers["ETag"] = '"1"'
    if again:
        response.status_code = 200
    return Answer(steps=[])


class StopRequest(BaseModel):
    reason: str = ""


@router.post("/stopped")
def stop(_: Guard, asked: StopRequest | None = None) -> Answer:
    return Answer(steps=[repr(asked)])


@router.delete("/made", status_code=204)
def remove(_: Guard) -> None:
    pass


app = FastAPI()
app.include_router(router)


def ask(method: str, path: str, *, as_user: bool = True, encodings: str = "identity", body: str = "") -> httpx.Response:
    headers = {"Accept-Encoding": encodings} | ({"Authorization": "Bearer t"} if as_user else {})
    headers |= {"Content-Type": "application/json"} if body else {}

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.request(method, path, headers=headers, content=body)

    return run_coroutine(send())


def test_the_guard_the_endpoint_and_the_writing_of_the_answer_are_one_call_in_another_thread() -> None:
    assert ask("GET", "/steps").json() == {"of": ["user", "guarded", "answered", "written"]}
    assert STEPS.get() == ()


def test_an_endpoint_in_the_loop_has_its_guard_too() -> None:
    assert ask("GET", "/asynchronous").status_code == 200
    assert ask("GET", "/asynchronous", as_user=False).status_code == 401


def test_a_sender_who_is_not_let_in_is_not_told_that_a_parameter_is_wrong() -> None:
    assert ask("GET", "/steps?limit=0").status_code == 422
    assert ask("GET", "/steps?limit=0", as_user=False).status_code == 401
    assert ask("GET", "/steps", as_user=False).status_code == 401


def test_an_answer_has_the_status_the_headers_and_the_names_that_the_route_gives_it() -> None:
    made, again = ask("POST", "/made"), ask("POST", "/made?again=true")
    assert (made.status_code, made.headers["etag"], made.content) == (201, '"1"', b'{"of":["guarded","written"]}')
    assert made.headers["content-type"] == "application/json"
    assert (again.status_code, again.headers["etag"]) == (200, '"1"')


def test_a_null_is_no_optional_body() -> None:
    assert ask("POST", "/stopped").json()["of"][0] == "None"
    assert ask("POST", "/stopped", body="{}").json()["of"][0] == "StopRequest(reason='')"
    for null in ("null", " null\n"):
        refused = ask("POST", "/stopped", body=null)
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body"])
    assert ask("POST", "/stopped", body="null", as_user=False).status_code == 401


def test_a_route_without_an_answer_has_no_body() -> None:
    removed = ask("DELETE", "/made")
    assert (removed.status_code, removed.content) == (204, b"")


def test_the_document_has_the_answers_of_the_routes() -> None:
    answers = app.openapi()["paths"]["/steps"]["get"]["responses"]
    assert answers["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Answer"}


def test_a_long_answer_is_compressed_for_who_accepts_it_and_says_the_same() -> None:
    plain, packed = (ask("GET", "/steps?limit=5000", encodings=each) for each in ("identity", "br, gzip"))
    assert plain.json() == packed.json()
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 20
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    short = ask("GET", "/steps", encodings="gzip")
    assert "content-encoding" not in short.headers

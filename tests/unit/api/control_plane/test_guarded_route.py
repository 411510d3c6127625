"""Guards, endpoints and their answers."""

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field, field_serializer

from keyscale.api.access.in_flight import InFlight
from keyscale.api.control_plane.guarded_route import GuardedRoute, ReportRoute, UploadRoute
from keyscale.api.errors import TooManyInFlightError
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


def test_a_misspelt_parameter_is_refused_with_the_names_that_there_are() -> None:
    refused = ask("GET", "/steps?limt=3&limit=2&all=1")
    assert refused.status_code == 422
    message = "The query parameters are: limit"
    assert [(each["loc"], each["msg"]) for each in refused.json()["detail"]] == [
        (["query", "limt"], message),
        (["query", "all"], message),
    ]
    assert ask("DELETE", "/made?dry_run=true").json()["detail"][0]["msg"] == "The query parameters are: none"
    assert ask("GET", "/steps?limt=3", as_user=False).status_code == 401


def request(length: int | None, **state: Any) -> Request:
    """A request with an announced body; None: in chunks."""
    header = (b"transfer-encoding", b"chunked") if length is None else (b"content-length", str(length).encode())
    places = {name: InFlight("place", "places", 8, 1) for name in ("uploads", "reports")}
    application = SimpleNamespace(state=SimpleNamespace(context=SimpleNamespace(**places)))
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [header]}
    return Request({**scope, "app": application, "state": state})


def endpoint() -> None:
    """Answers nothing."""


ANN, BEN = SimpleNamespace(id="ann"), SimpleNamespace(id="ben")
OF_A, OF_B = SimpleNamespace(job_id="a"), SimpleNamespace(job_id="b")
LARGE = GuardedRoute.unguarded_bytes_max + 1


@pytest.mark.parametrize(
    ("kind", "name", "first", "second"), [(UploadRoute, "user", ANN, BEN), (ReportRoute, "driver", OF_A, OF_B)]
)
@pytest.mark.parametrize("length", [LARGE, None])
def test_a_large_body_takes_the_place_of_its_sender_and_gives_it_back(
    kind: type[GuardedRoute], name: str, first: Any, second: Any, length: int | None
) -> None:
    route, mine = kind("/", endpoint), request(length, **{name: first})
    other = request(length, **{name: second})
    other.scope["app"] = mine.scope["app"]
    for _ in range(2):
        with route.slot(mine), route.slot(other), pytest.raises(TooManyInFlightError), route.slot(mine):
            pytest.fail("a second place")


@pytest.mark.parametrize(
    ("kind", "name", "sender", "length"),
    [(UploadRoute, "user", ANN, 0), (ReportRoute, "driver", OF_A, LARGE - 1), (ReportRoute, "user", ANN, LARGE)],
)
def test_a_body_that_is_small_or_of_no_driver_takes_no_place(
    kind: type[GuardedRoute], name: str, sender: Any, length: int
) -> None:
    route, mine = kind("/", endpoint), request(length, **{name: sender})
    with route.slot(mine), route.slot(mine):
        """Both are read at once."""


def test_an_upload_has_its_place_however_small_it_is() -> None:
    route, mine = UploadRoute("/", endpoint), request(1, user=ANN)
    with route.slot(mine), pytest.raises(TooManyInFlightError), route.slot(mine):
        pytest.fail("a second upload")

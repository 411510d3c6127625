"""Every error is answered as a problem: with its own status, and without what a client must not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from keyscale.api.errors import JobNotFoundError, RateLimitedError, StoreUnavailableError
from keyscale.api.web.error_handlers import add_handlers
from keyscale.api.web.request_origin import REQUEST_ID_HEADER
from keyscale.db.repositories.events import ORIGIN, EventOrigin
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "of-the-orders"  # noqa: S105 - a test's own


class RefusedStatementError(Exception):
    """PostgreSQL's answer to a statement."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(f"the server says {sqlstate}")
        self.sqlstate = sqlstate


def refused(sqlstate: str | None, kind: type[DBAPIError] = DBAPIError) -> DBAPIError:
    return kind("SELECT :secret", {"secret": SECRET}, RefusedStatementError(sqlstate))


class Counted:
    """The application's metrics, of which an answer counts its error."""

    def __init__(self) -> None:
        self.metrics = self
        self.counted: list[tuple[str, str]] = []

    def count(self, what: str, code: str) -> None:
        self.counted.append((what, code))


async def asked(app: FastAPI, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize(
    ("error", "expected", "line", "has_retry_after"),
    [
        (refused(None, OperationalError), (503, "DATABASE_UNAVAILABLE"), "the database does not answer: Oper", True),
        (refused(None, InterfaceError), (503, "DATABASE_UNAVAILABLE"), "the database does not answer: Inter", True),
        (PoolTimeoutError(), (503, "DATABASE_UNAVAILABLE"), "the database does not answer: TimeoutError", True),
        (refused("40P01", OperationalError), (503, "DATABASE_BUSY"), "a request blocked another request", True),
        (refused("57014", OperationalError), (503, "DATABASE_SLOW"), "a statement took too long", True),
        (refused("22P02"), (500, "INTERNAL_ERROR"), "a statement failed: the server says 22P02", False),
        (ZeroDivisionError(SECRET), (500, "INTERNAL_ERROR"), "a request failed", False),
        (HTTPException(500, SECRET), (500, "INTERNAL_ERROR"), "", False),
        (HTTPException(503, SECRET), (500, "INTERNAL_ERROR"), "", False),
        (HTTPException(413), (413, "BODY_TOO_LARGE"), "", False),
        (HTTPException(404), (404, "ROUTE_NOT_FOUND"), "", False),
        (HTTPException(400, "no such part"), (422, "REQUEST_INVALID"), "", False),
        (JobNotFoundError("no job has this id"), (404, "JOB_NOT_FOUND"), "", False),
        (StoreUnavailableError("no answer"), (503, "STORE_UNAVAILABLE"), "", True),
        (RateLimitedError("too many", 2.2), (429, "RATE_LIMITED"), "", True),
    ],
    ids=repr,
)
def test_an_error_is_answered_with_its_status_and_counted_and_no_secret_is_shown(
    caplog: pytest.LogCaptureFixture, error: Exception, expected: tuple[int, str], line: str, has_retry_after: bool
) -> None:
    app, counted = FastAPI(), Counted()
    app.state.context = counted
    add_handlers(app)

    @app.get("/fails")
    def fail() -> None:
        raise error

    answer = run_coroutine(asked(app, "/fails"))
    found: Mapping[str, object] = answer.json()
    assert (answer.status_code, found["code"]) == (found["status"], found["code"]) == expected
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in answer.headers) is has_retry_after
    assert counted.counted == [("errors", expected[1])]
    assert SECRET not in answer.text
    own = [each.getMessage() for each in caplog.records if each.name == "keyscale.api.web.error_handlers"]
    assert (len(own), own[0].startswith(line) if own else line == "") == (bool(line), True)


def test_the_methods_of_a_path_are_those_of_its_own_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI()
    app.state.context = None
    add_handlers(app)

    @app.get("/jobs/own")
    @app.put("/jobs/own")
    @app.delete("/jobs/{job}")
    def answer() -> None:
        return None

    for path, methods in (("/jobs/own", "GET, PUT"), ("/jobs/another", "DELETE")):
        refused = run_coroutine(asked(app, path, "PATCH"))
        assert (refused.status_code, refused.headers["allow"]) == (405, methods)
        assert refused.json()["code"] == "METHOD_NOT_ALLOWED"
        assert f"{path} does not take PATCH" in refused.json()["detail"]
    monkeypatch.setattr("keyscale.api.web.error_handlers.unknown_page", lambda _: PlainTextResponse("a page"))
    assert run_coroutine(asked(app, "/nowhere", Accept="text/html")).text == "a page"
    assert run_coroutine(asked(app, "/nowhere", Accept="*/*")).json()["code"] == "ROUTE_NOT_FOUND"


def test_the_answer_to_a_defect_names_its_request() -> None:
    app = FastAPI()
    app.state.context = None
    add_handlers(app)

    @app.get("/fails")
    def fail() -> None:
        raise ZeroDivisionError

    async def ask() -> httpx.Response:
        ORIGIN.set(EventOrigin("the-request", "127.0.0.1"))
        return await asked(app, "/fails")

    assert run_coroutine(ask()).headers[REQUEST_ID_HEADER] == "the-request"

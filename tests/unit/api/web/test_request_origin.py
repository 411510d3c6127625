"""Answers are handed to the web server in small parts, and are whole."""

from __future__ import annotations

import logging
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.datastructures import Headers

from keyscale.api.access.rates import Rates
from keyscale.api.control_plane.own_metrics import OwnMetrics
from keyscale.api.web import request_origin
from keyscale.api.web.request_origin import PART_BYTES_MAX, REQUEST_ID_HEADER, RequestIdFilter, RequestOrigin
from keyscale.db.repositories.events import ORIGIN, EventOrigin
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

RATES = Rates(per_user=0, per_address=0, failures_per_minute=0)


def sent(bodies: list[bytes], request_id: str = "") -> list[Message]:
    """The messages that the web server gets of an answer."""
    messages: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left, body in reversed(list(enumerate(reversed(bodies)))):
            await send({"type": "http.response.body", "body": body, "more_body": left > 0})

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(REQUEST_ID_HEADER.lower().encode(), request_id.encode())],
    }
    scope["client"] = ("127.0.0.1", 1)
    run_coroutine(RequestOrigin(app, RATES, OwnMetrics())(scope, receive, send))
    return messages


@pytest.mark.parametrize(("given", "is_kept"), [("request-of-mine-1", True), ("two words", False), ("", False)])
def test_an_answer_has_the_id_of_its_request(given: str, is_kept: bool) -> None:
    headers = Headers(raw=sent([b""], given)[0]["headers"])
    assert (headers[REQUEST_ID_HEADER] == given) is is_kept
    assert headers[REQUEST_ID_HEADER]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES_MAX - 1, PART_BYTES_MAX, PART_BYTES_MAX + 1, 5 * PART_BYTES_MAX])
def test_a_long_answer_is_handed_over_in_parts_and_is_whole(size: int) -> None:
    whole = bytes(index % 251 for index in range(size))
    parts = sent([whole])[1:]
    assert b"".join(part["body"] for part in parts) == whole
    assert len(parts) == max(1, -(-size // PART_BYTES_MAX))
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]


def test_the_parts_of_a_stream_stay_in_order_and_only_the_last_one_ends_it() -> None:
    bodies = [b"a" * 10, b"b" * (PART_BYTES_MAX + 10), b"c"]
    parts = sent(bodies)[1:]
    assert [(len(part["body"]), part["more_body"]) for part in parts] == [
        (10, True),
        (PART_BYTES_MAX, True),
        (10, True),
        (1, False),
    ]


class Request:
    """A request that took 2.5 s, and what is noted of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[Any] = []
        self.sent: list[Message] = []
        self.rates = Rates(per_user=0, per_address=0, failures_per_minute=0)
        self.origin: EventOrigin | None = None
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", b"the-request")]
        self.client: tuple[str, int] | None = ("10.0.0.7", 1)
        moments = cycle([10.0, 12.5])
        monkeypatch.setattr(request_origin, "time", SimpleNamespace(monotonic=lambda: next(moments)))

    def note_request(self, scope: Scope, status: int, duration_s: float, *, is_stream: bool) -> None:
        self.noted.append((scope["path"], status, duration_s, is_stream))

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def answer(self, method: str, path: str, status: int | Exception, content_type: str) -> None:
        async def app(scope: Scope, _: Receive, send: Send) -> None:
            self.origin = ORIGIN.get()
            assert self.origin is not None
            self.origin.actor = "ann"
            scope["path_params"] = {"job_id": "the-job", "operation_id": "o"}
            if isinstance(status, Exception):
                raise status
            headers = [(b"content-type", content_type.encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        scope = {"type": "http", "method": method, "path": path, "headers": self.headers, "client": self.client}
        await RequestOrigin(app, self.rates, cast("OwnMetrics", self))(scope, self.receive, self.send)

    def run(self, method: str = "GET", path: str = "/v1/jobs", status: int | Exception = 200, kind: str = "") -> None:
        run_coroutine(self.answer(method, path, status, kind))


@pytest.fixture
def request_(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Request:
    caplog.set_level("DEBUG", logger=request_origin.__name__)
    return Request(monkeypatch)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "level"),
    [
        ("GET", "/v1/jobs", 200, "application/json", "DEBUG"),
        ("HEAD", "/v1/jobs", 200, "", "DEBUG"),
        ("GET", "/v1/stream", 200, "text/event-stream; charset=utf-8", "DEBUG"),
        ("GET", "/v1/jobs", 400, "", "INFO"),
        ("POST", "/driver/heartbeat", 200, "", "DEBUG"),
        ("POST", "/driver/heartbeat", 401, "", "INFO"),
        ("POST", "/v1/driver/x", 200, "", "INFO"),
        ("DELETE", "/v1/jobs/a b", 204, "", "INFO"),
    ],
)
def test_the_end_of_a_request_is_counted_and_logged(  # noqa: PLR0917 - a request and its answer
    request_: Request, caplog: pytest.LogCaptureFixture, method: str, path: str, status: int, kind: str, level: str
) -> None:
    request_.run(method, path, status, kind)
    assert request_.noted == [(path, status, 2.5, kind.startswith("text/event-stream"))]
    [line] = caplog.records
    shown = path.replace(" ", "%20")
    assert line.getMessage() == f"{method} {shown}: {status} in 2500 ms, from 10.0.0.7, by ann"
    of: Any = line
    assert (line.levelname, of.status, of.job, of.operation) == (level, status, "the-job", "o")
    assert request_.origin == EventOrigin("the-request", "10.0.0.7", actor="ann")


def test_a_request_that_fails_is_counted_as_a_failure_of_the_server(
    request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError):
        request_.run(status=ZeroDivisionError())
    assert request_.noted == [("/v1/jobs", 500, 2.5, False)]
    assert caplog.messages == ["GET /v1/jobs: 500 in 2500 ms, from 10.0.0.7, by ann"]


def test_an_address_that_sends_too_much_is_refused_before_anything_is_done(
    request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    request_.rates = Rates(per_user=0, per_address=1, failures_per_minute=0)
    for address in ["10.0.0.7"] * 5 + ["unknown"] * 4:
        assert request_.rates.per_address.take(address) == 0
    request_.client = None
    request_.run()
    assert [noted[1] for noted in request_.noted] == [200], "another address"
    assert (request_.origin and request_.origin.address) == "unknown"
    request_.noted.clear()
    caplog.clear()
    request_.origin, request_.client = None, ("10.0.0.7", 1)
    request_.run()
    assert (request_.origin, [noted[1] for noted in request_.noted]) == (None, [429])
    headers = Headers(raw=request_.sent[-2]["headers"])
    assert (headers[REQUEST_ID_HEADER], headers["retry-after"]) == ("the-request", "1")
    assert b"RATE_LIMITED" in request_.sent[-1]["body"]
    assert caplog.messages == ["GET /v1/jobs: 429 in 2500 ms, from 10.0.0.7, by nobody"]


def test_only_refused_requests_and_bytes_that_are_not_http_have_a_limit_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: dict[str, logging.Filter] = {}
    for name in (request_origin.__name__, "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "addFilter", partial(added.__setitem__, name))
    monkeypatch.setattr(request_origin, "LineLimit", lambda applies: applies)
    request_origin.limit_lines_of_refusals()
    own, of_server = (added[name] for name in (request_origin.__name__, "uvicorn.error"))
    counted = [status for status in (0, 200, 399, 400, 404, 499, 500) if own(logging.makeLogRecord({"status": status}))]
    assert counted == [400, 404, 499]
    assert not own(logging.makeLogRecord({}))
    levels = (logging.INFO, logging.WARNING, logging.ERROR)
    assert [level for level in levels if of_server(logging.makeLogRecord({"levelno": level}))] == [logging.WARNING]


@pytest.mark.parametrize("origin", [None, EventOrigin("the-request", "10.0.0.7")])
def test_a_log_line_names_its_request(origin: EventOrigin | None) -> None:
    before = ORIGIN.set(origin)
    try:
        record: Any = logging.makeLogRecord({})
        assert RequestIdFilter().filter(record)
        assert record.request_id == ("-" if origin is None else "the-request")
    finally:
        ORIGIN.reset(before)


def test_what_is_no_request_is_neither_limited_nor_counted(request_: Request) -> None:
    seen: list[str] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["type"])

    middleware = RequestOrigin(app, request_.rates, cast("OwnMetrics", request_))
    run_coroutine(middleware({"type": "lifespan"}, request_.receive, request_.send))
    assert (seen, request_.noted) == (["lifespan"], [])

"""A refused request is an event, and an address that is refused too often waits."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import OperationalError
from starlette.requests import Request

from keyscale.api.access import refusals
from keyscale.api.access.rates import Rates
from keyscale.api.access.refusals import is_refusal, note_refusal
from keyscale.api.errors import (
    JobNotFoundError,
    OriginNotAllowedError,
    OutOfScopeError,
    RateLimitedError,
    RoleMissingError,
    RoleTooLowError,
    TokenExpiredError,
    TokenMissingError,
    TokenRevokedError,
)
from keyscale.db.repositories.events import ORIGIN, EventOrigin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.api.errors import ApiError

MISSING = TokenMissingError("the token is missing")


class Door:
    """A control plane that records refused requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[Any] = []
        self.failure: Exception | None = None
        self.rates = Rates(per_user=0, per_address=0, failures_per_minute=2)
        monkeypatch.setattr(refusals, "now_ms", lambda: 70)
        monkeypatch.setattr(refusals.events, "record", self.record)

    def record(self, session: Any, **event: Any) -> None:
        assert session == "session"
        if self.failure is not None:
            raise self.failure
        self.recorded.append(event)

    def request(self, path: str = "/v1/jobs/a b", **state: Any) -> Request:
        context = SimpleNamespace(rates=self.rates, sessions=SimpleNamespace(begin=lambda: nullcontext("session")))
        app = SimpleNamespace(state=SimpleNamespace(context=context))
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"secret=x", "headers": []}
        return Request({**scope, "app": app, "state": state, "server": ("here", 80), "scheme": "http"})


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    before = ORIGIN.set(EventOrigin("the-request", "10.0.0.7"))
    yield Door(monkeypatch)
    ORIGIN.reset(before)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MISSING, True),
        (TokenExpiredError(""), True),
        (TokenRevokedError(""), True),
        (RoleTooLowError(""), True),
        (RoleMissingError(""), True),
        (OutOfScopeError(""), True),
        (OriginNotAllowedError(""), True),
        (JobNotFoundError(""), False),
        (RateLimitedError("", 1.0), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_denies_something_is_a_refusal(door: Door, error: ApiError, is_one: bool) -> None:
    assert is_refusal(door.request(), error) is is_one
    assert is_refusal(door.request(is_out_of_scope=True), error)
    assert is_refusal(door.request(is_out_of_scope=False), error) is is_one


@pytest.mark.parametrize("actor", ["ann", None])
def test_a_refused_request_is_an_event_without_its_query(door: Door, actor: str | None) -> None:
    origin = ORIGIN.get()
    assert origin is not None
    origin.actor = actor
    error = RoleTooLowError("this needs the role ADMIN")
    assert note_refusal(door.request(), error) is error
    assert door.recorded == [
        {
            "job_id": None,
            "at_ms": 70,
            "kind": "ACCESS_DENIED",
            "actor": actor or "unknown",
            "message": "POST /v1/jobs/a%20b was refused: ROLE_TOO_LOW",
            "code": "ROLE_TOO_LOW",
            "method": "POST",
            "path": "/v1/jobs/a%20b",
            "reason": "this needs the role ADMIN",
        }
    ]
    note_refusal(door.request("/" + "x" * 300), error)
    assert door.recorded[-1]["path"] == "/" + "x" * 199


def test_an_address_without_a_valid_token_waits_and_its_waiting_is_no_event(door: Door) -> None:
    answers = [note_refusal(door.request(), MISSING) for _ in range(3)]
    assert answers[:2] == [MISSING, MISSING]
    assert isinstance(answers[2], RateLimitedError)
    assert answers[2].retry_after_s == pytest.approx(30, abs=1)
    assert len(door.recorded) == 2
    assert note_refusal(door.request(), RoleTooLowError("")).code == "ROLE_TOO_LOW", "a valid token"
    assert note_refusal(door.request("/driver/heartbeat"), MISSING) is MISSING, "a driver has to learn that it must end"
    ORIGIN.set(EventOrigin("another", "10.0.0.8"))
    assert note_refusal(door.request(), MISSING) is MISSING


def test_refusals_beyond_a_number_fill_no_database_and_are_still_refused(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    error = RoleTooLowError("")
    door.failure = OperationalError("INSERT", None, Exception("away"))
    assert note_refusal(door.request(), error) is error
    assert caplog.messages == ["a refused request could not be recorded: OperationalError"]
    door.failure, taken = None, 0
    while door.rates.refusals.take("") == 0:
        taken += 1
    assert taken == pytest.approx(499, abs=5)
    assert note_refusal(door.request(), error) is error
    assert door.recorded == []
    ORIGIN.set(None)
    assert note_refusal(door.request(), MISSING) is MISSING

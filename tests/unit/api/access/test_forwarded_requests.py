"""A replica's token names one request of one user, and ends after seconds."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from starlette.requests import Request

from keyscale.api.access import forwarded_requests
from keyscale.api.access.forwarded_requests import LIFETIME_MS, SCHEME, ForwardedRequest, authenticate_forwarded
from keyscale.api.access.principal import Principal
from keyscale.api.errors import TokenMissingError
from keyscale.db.job_scope import JobScope
from keyscale.vocabulary import Role
from tests.support.repository import GOLDEN

KEY, TARGET = "the-key", "replica-b"
USER = Principal(
    "id", "ada", Role.VIEWER, JobScope(frozenset({"a"}), {"team": "x"}, frozenset({("team", "y")})), LIFETIME_MS
)


@pytest.fixture(autouse=True)
def now_ms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The database's clock."""
    now = [0]
    monkeypatch.setattr(forwarded_requests, "shared_now_ms", lambda: now[0])
    return now


def request_with(token: str, **changes: Any) -> Request:
    header = (b"authorization", f"{SCHEME} {token}".encode())
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/jobs/a/logs",
        "query_string": b"offset=1",
        "headers": [header, *changes.pop("headers", [])],
        **changes,
    }
    return Request(scope)


def token_of(user: Principal = USER) -> str:
    return ForwardedRequest.of(user, target=TARGET, method="GET", path="/jobs/a/logs?offset=1").token(KEY)


def test_the_replica_acts_in_the_name_of_the_user() -> None:
    assert authenticate_forwarded(request_with(token_of()), KEY, TARGET) == USER


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "POST"},
        {"method": "HEAD"},
        {"raw_path": b"/jobs/b/logs"},
        {"query_string": b"offset=2"},
        {"query_string": b""},
        {"headers": [(b"content-length", b"1")]},
        {"headers": [(b"transfer-encoding", b"chunked")]},
    ],
)
def test_a_token_is_good_for_one_request(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenMissingError):
        authenticate_forwarded(request_with(token_of(), **changes), KEY, TARGET)


def test_a_token_of_a_request_with_a_body_is_not_good_without_it() -> None:
    token = ForwardedRequest.of(USER, target=TARGET, method="GET", path="/jobs/a/logs?offset=1", body=b"x").token(KEY)
    with pytest.raises(TokenMissingError):
        authenticate_forwarded(request_with(token), KEY, TARGET)


def test_a_signed_token_of_another_form_is_not_valid() -> None:
    content = json.dumps({"target": TARGET}).encode()
    token = f"{base64.urlsafe_b64encode(content).decode()}.{forwarded_requests._signature(KEY, content)}"
    with pytest.raises(TokenMissingError):
        authenticate_forwarded(request_with(token), KEY, TARGET)


def test_a_token_is_good_for_one_replica_one_database_and_seconds(now_ms: list[int]) -> None:
    request = request_with(token_of())
    for key, target in ((KEY, "replica-c"), ("another-key", TARGET)):
        with pytest.raises(TokenMissingError):
            authenticate_forwarded(request, key, target)
    now_ms[0] = LIFETIME_MS - 1
    assert authenticate_forwarded(request, KEY, TARGET) == USER
    now_ms[0] = LIFETIME_MS
    with pytest.raises(TokenMissingError):
        authenticate_forwarded(request, KEY, TARGET)


def test_a_token_that_was_changed_is_not_valid() -> None:
    encoded, _, signature = token_of().partition(".")
    content = json.loads(base64.urlsafe_b64decode(encoded))
    promoted = base64.urlsafe_b64encode(json.dumps({**content, "role": "ADMIN"}).encode()).decode()
    for token in (f"{promoted}.{signature}", encoded, f"{encoded}.", "", "x", "ä", "." * 40_000):
        with pytest.raises(TokenMissingError):
            authenticate_forwarded(request_with(token), KEY, TARGET)


def test_a_token_of_today_is_read_by_later_versions() -> None:
    golden = (GOLDEN / "forwarded-request-v1.txt").read_text().strip()
    assert authenticate_forwarded(request_with(golden), KEY, TARGET) == USER
    assert token_of() == golden

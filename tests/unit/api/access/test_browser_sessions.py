"""A session begins and ends with its user, and only own pages change something with its cookie."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.requests import Request

from keyscale.api.access import browser_sessions
from keyscale.api.access.browser_sessions import SESSION_COOKIE, require_own_origin, require_own_page
from keyscale.api.access.credentials import Credential, credential_of
from keyscale.api.access.identities import bearer_token
from keyscale.api.access.principal import Principal
from keyscale.api.access.tokens import token_sha256
from keyscale.api.errors import OriginNotAllowedError
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import BrowserSession
from keyscale.vocabulary import Role

OWN = {"x-requested-with": "keyscale", "host": "here:8080"}


def request(headers: dict[str, str]) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": raw})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://here:8080"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "http://here:8080", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_request_of_an_own_page_is_let_in(headers: dict[str, str]) -> None:
    require_own_page(request({**OWN, **headers}))
    require_own_origin(request({"host": "here:8080", **headers}))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://elsewhere:8080"},
        {"origin": "https://here:8081"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "https://here:8080", "sec-fetch-site": "cross-site"},
        {"origin": "https://elsewhere:8080", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_request_of_another_origin_is_refused_with_the_header_too(headers: dict[str, str]) -> None:
    with pytest.raises(OriginNotAllowedError):
        require_own_page(request({**OWN, **headers}))
    with pytest.raises(OriginNotAllowedError):
        require_own_origin(request({"host": "here:8080", **headers}))


@pytest.mark.parametrize("headers", [{}, {"x-requested-with": "XMLHttpRequest"}])
def test_a_form_which_cannot_send_the_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(OriginNotAllowedError):
        require_own_page(request({"host": "here:8080", "sec-fetch-site": "same-origin", **headers}))


@pytest.mark.parametrize(
    ("header", "expected"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""), ("abc", ""), ("", "")],
)
def test_a_bearer_token_is_read_from_its_own_scheme_alone(header: str, expected: str) -> None:
    assert bearer_token(request({"authorization": header})) == expected
    assert bearer_token(request({})) == ""


def test_a_long_request_is_ended_by_what_it_began_with() -> None:
    user = Principal("id", "name", Role.VIEWER, expires_at_ms=7)
    both = {"authorization": "Bearer abc", "cookie": f"{SESSION_COOKIE}=def"}
    assert credential_of(request(both), user) == Credential(7, token_sha256=token_sha256("abc"))
    of_page = request({"cookie": f"{SESSION_COOKIE}=def; other=x"})
    assert credential_of(of_page, user) == Credential(7, session_sha256=token_sha256("def"))
    of_issuer = request({"authorization": "Bearer a.b.c"})
    assert credential_of(of_issuer, user) == Credential(7)


class Rows:
    """The sessions of a database, and everything that is noted in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[Any] = []
        self.known: dict[str, str] = {}
        repository = browser_sessions.browser_sessions
        monkeypatch.setattr(browser_sessions, "shared_now_ms", lambda: 1000)
        monkeypatch.setattr(browser_sessions, "now_ms", lambda: 2000)
        monkeypatch.setattr(browser_sessions, "new_token", lambda: "the-cookie")
        monkeypatch.setattr(repository, "remove_expired", lambda _, *, at_ms: self.noted.append(("expired", at_ms)))
        monkeypatch.setattr(repository, "remove", lambda _, sha256: self.noted.append(("removed", sha256)))
        monkeypatch.setattr(repository, "find", self.find)
        monkeypatch.setattr(browser_sessions.events, "record", lambda _, **event: self.noted.append(event))

    def find(self, _: Any, sha256: str) -> tuple[BrowserSession, None] | None:
        return (BrowserSession(name=self.known[sha256]), None) if sha256 in self.known else None

    def add(self, row: BrowserSession) -> None:
        self.noted.append({column.name: getattr(row, column.name) for column in BrowserSession.__table__.columns})


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows(monkeypatch)


LABELS = frozenset({("team", "b"), ("team", "a")})


@pytest.mark.parametrize(
    ("token", "scope", "labels"),
    [("abc", EVERYTHING, []), (None, JobScope(any_labels=LABELS), [["team", "a"], ["team", "b"]])],
)
def test_a_session_has_the_rights_of_its_user_until_its_time_is_over(
    rows: Rows, token: str | None, scope: JobScope, labels: list[list[str]]
) -> None:
    user = Principal("id", "ann", Role.OPERATOR, scope)
    assert browser_sessions.begin(cast("Any", rows), user, token=token, hours=2) == "the-cookie"
    row = {
        "sha256": token_sha256("the-cookie"),
        "token_sha256": None if token is None else token_sha256(token),
        "user_id": "id",
        "name": "ann",
        "role": Role.OPERATOR,
        "job_labels": labels,
        "created_at_ms": 1000,
        "expires_at_ms": 1000 + 2 * 3_600_000,
    }
    event = {"job_id": None, "at_ms": 1000, "kind": "SIGNED_IN", "actor": "ann", "message": "ann signed in"}
    assert rows.noted == [("expired", 1000), row, event]


def test_the_end_of_a_session_is_noted_once_and_by_the_name_of_its_user(rows: Rows) -> None:
    digest = token_sha256("the-cookie")
    rows.known[digest] = "ann"
    for cookie in ("the-cookie", "another"):
        browser_sessions.end(cast("Any", rows), cookie)
    event = {"job_id": None, "at_ms": 2000, "kind": "SIGNED_OUT", "actor": "ann", "message": "ann signed out"}
    assert rows.noted == [("removed", digest), event]

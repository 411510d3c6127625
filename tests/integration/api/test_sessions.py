"""Sessions of browsers: begun with a token, kept in the database, ended by sign-out, expiry or with the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.access.tokens import token_sha256
from keyscale.clock import now_ms
from keyscale.db.models import BrowserSession
from keyscale.db.repositories import tokens
from keyscale.vocabulary import Role
from tests.integration.api.conftest import TOKEN, add_token

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

OWN = {"X-Requested-With": "keyscale"}


def sign_in(client: httpx.Client, token: str = TOKEN) -> httpx.Response:
    return client.post("/ui/login", data={"token": token, "next": "/ui/jobs/flights"})


def kinds(context: Context) -> list[str]:
    with context.engine.connect() as connection:
        return list(connection.execute(text("SELECT kind FROM events ORDER BY id")).scalars())


@pytest.mark.real
def test_the_cookie_of_a_session_holds_no_token_and_no_script_or_other_site_gets_it(
    anonymous: httpx.Client, context: Context
) -> None:
    answer = sign_in(anonymous)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs/flights")
    sent = answer.headers["set-cookie"]
    assert all(part in sent for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"))
    assert "Secure" not in sent  # plain http; over TLS see tests/integration/api/test_tls.py
    cookie = anonymous.cookies[SESSION_COOKIE]
    assert TOKEN not in sent
    with context.engine.connect() as connection:
        rows = (
            connection.execute(text("SELECT row_to_json(browser_sessions)::text FROM browser_sessions")).scalars().all()
        )
        assert len(rows) == 1
        assert cookie not in rows[0]
    assert anonymous.get("/v1/whoami").json()["name"] == "admin"


def test_the_sessions_cookie_can_read_but_changes_need_a_request_of_our_own_page(anonymous: httpx.Client) -> None:
    sign_in(anonymous)
    assert anonymous.get("/v1/jobs").status_code == 200
    foreign: tuple[dict[str, str], ...] = (
        {},
        {**OWN, "Origin": "http://evil.example"},
        {**OWN, "Origin": "null"},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},
    )
    for headers in foreign:
        answer = anonymous.post("/v1/jobs/none/start", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "ORIGIN_NOT_ALLOWED"), headers
    own = {**OWN, "Origin": "http://127.0.0.1", "Host": "127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    assert anonymous.post("/v1/jobs/none/start", headers=own).json()["code"] == "JOB_NOT_FOUND"


def test_sign_out_ends_the_session_in_the_database_so_that_a_copy_of_the_cookie_opens_nothing(
    anonymous: httpx.Client, context: Context
) -> None:
    sign_in(anonymous)
    copy = {"Cookie": f"{SESSION_COOKIE}={anonymous.cookies[SESSION_COOKIE]}"}
    answer = anonymous.post("/ui/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
    assert f'{SESSION_COOKIE}=""' in answer.headers["set-cookie"]
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert anonymous.get("/v1/jobs", headers=copy).json()["code"] == "TOKEN_INVALID"
    assert kinds(context) == ["SIGNED_IN", "SIGNED_OUT", "ACCESS_DENIED"]
    assert anonymous.get("/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.real
def test_a_session_expires_and_is_deleted_at_a_later_sign_in(
    anonymous: httpx.Client, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(anonymous)
    with context.sessions() as session:
        (row,) = session.scalars(select(BrowserSession)).all()
    assert now_ms() + 11 * 3_600_000 < row.expires_at_ms <= now_ms() + 12 * 3_600_000
    for at_ms, status in ((row.expires_at_ms - 1, 200), (row.expires_at_ms, 401)):
        monkeypatch.setattr("keyscale.api.access.browser_sessions.shared_now_ms", lambda at_ms=at_ms: at_ms)
        assert anonymous.get("/v1/jobs").status_code == status
    sign_in(anonymous)
    with context.sessions() as session:
        assert [found.sha256 for found in session.scalars(select(BrowserSession))] != [row.sha256]
        assert len(session.scalars(select(BrowserSession)).all()) == 1


@pytest.mark.parametrize(("field", "code"), [("revoked_at_ms", "TOKEN_REVOKED"), ("expires_at_ms", "TOKEN_EXPIRED")])
def test_a_session_ends_with_its_token(anonymous: httpx.Client, context: Context, field: str, code: str) -> None:
    sign_in(anonymous)
    with context.sessions.begin() as session:
        found = tokens.find(session, token_sha256(TOKEN))
        setattr(found, field, 1)
    assert anonymous.get("/v1/jobs").json()["code"] == code


@pytest.mark.real
@pytest.mark.parametrize("is_tokens_end_first", [False, True])
def test_a_user_of_a_session_is_known_until_the_session_or_its_token_ends(
    anonymous: httpx.Client, context: Context, is_tokens_end_first: bool
) -> None:
    sign_in(anonymous)
    hour_ms = 3_600_000
    token_ends_ms = now_ms() + hour_ms * (1 if is_tokens_end_first else 1000)
    with context.sessions.begin() as session:
        found = tokens.find(session, token_sha256(TOKEN))
        assert found is not None
        found.expires_at_ms = token_ends_ms
    shown_ms = anonymous.get("/v1/whoami").json()["expires_at_ms"]
    assert (shown_ms == token_ends_ms) is is_tokens_end_first
    assert shown_ms <= now_ms() + 12 * hour_ms


def test_a_session_has_the_role_and_scope_of_its_token(anonymous: httpx.Client, context: Context) -> None:
    with context.sessions.begin() as session:
        add_token(session, "the-viewer-token", Role.VIEWER)
    sign_in(anonymous, "the-viewer-token")
    assert anonymous.get("/v1/jobs").status_code == 200
    assert anonymous.post("/v1/jobs/none/start", headers=OWN).json()["code"] == "ROLE_TOO_LOW"
    assert anonymous.get("/v1/tokens").json()["code"] == "ROLE_TOO_LOW"


@pytest.mark.real
def test_a_form_of_another_site_cannot_sign_a_user_in_or_out(anonymous: httpx.Client, context: Context) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in ("/ui/login", "/ui/logout"):
            answer = anonymous.post(path, data={"token": TOKEN}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "ORIGIN_NOT_ALLOWED")
    assert kinds(context) == ["ACCESS_DENIED"] * 4


@pytest.mark.real
@pytest.mark.parametrize("state", ["wrong", "expired", "revoked"])
def test_a_token_that_is_not_valid_begins_no_session_and_the_page_says_why(
    anonymous: httpx.Client, context: Context, state: str
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "expired", Role.ADMIN, expires_at_ms=1)
        add_token(session, "revoked", Role.ADMIN).revoked_at_ms = 1
    answer = sign_in(anonymous, state)
    assert answer.status_code == 403
    assert {"wrong": "not valid", "expired": "expired", "revoked": "revoked"}[state] in answer.text
    assert SESSION_COOKIE not in answer.cookies
    assert kinds(context) == ["ACCESS_DENIED"]

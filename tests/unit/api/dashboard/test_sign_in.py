"""A browser gets a session that scripts cannot read, for the sign-in that it has begun, and stays on own pages."""

from __future__ import annotations

from contextlib import nullcontext
from html import unescape
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from starlette.requests import Request

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.access.openid import SignIn
from keyscale.api.access.principal import Principal
from keyscale.api.dashboard import router
from keyscale.api.errors import (
    OriginNotAllowedError,
    RoleMissingError,
    TokenExpiredError,
    TokenMissingError,
    TokenRevokedError,
)
from keyscale.db.repositories import events
from keyscale.db.repositories.events import EventOrigin
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.responses import Response

    from keyscale.api.errors import ApiError

TOKEN = "abc"  # noqa: S105 - a test's own
USER = Principal("id", "ann", Role.VIEWER)


class Platform:
    """A control plane that knows one token and one code of its issuer."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[str] = []
        self.refusal: ApiError | None = None
        self.redeemed: list[Any] = []
        self.wait_s = 0.0
        self.context: Any = SimpleNamespace(
            settings=SimpleNamespace(session_hours=2),
            sessions=SimpleNamespace(begin=lambda: nullcontext(None)),
            rates=SimpleNamespace(failures=SimpleNamespace(wait_s=lambda address: {"1.2.3.4": self.wait_s}[address])),
            issuer=SimpleNamespace(
                sign_in_url=lambda sign_in, back: f"https://issuer/?state={sign_in.state}&back={back}",
                redeem=self._redeem,
            ),
        )

    def _redeem(self, *what: Any) -> Principal:
        self.redeemed.append(what)
        return self._answer()

    def _answer(self) -> Principal:
        if self.refusal is not None:
            raise self.refusal
        return USER

    def authenticate(self, _: Any, value: str) -> Principal:
        if value != TOKEN:
            raise TokenMissingError(value)
        return self._answer()

    def begin(self, _: Any, user: Principal, *, token: str | None, hours: int) -> str:
        self.begun.append((user, token, hours))
        return "the-cookie"

    def request(self, scheme: str = "https", **headers: str) -> Request:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "here", **headers}.items()]
        app = SimpleNamespace(state=SimpleNamespace(context=self.context))
        scope = {"type": "http", "method": "POST", "path": "/ui/login", "query_string": b"", "app": app}
        return Request({**scope, "scheme": scheme, "server": ("here", 443), "headers": raw})


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    platform = Platform()
    monkeypatch.setattr(router, "authenticate_token", platform.authenticate)
    monkeypatch.setattr(router.browser_sessions, "begin", platform.begin)
    monkeypatch.setattr(router.browser_sessions, "end", lambda _, cookie: platform.ended.append(cookie))
    monkeypatch.setattr(router, "note_refusal", lambda _, error: error)
    before = events.ORIGIN.set(EventOrigin("request", "1.2.3.4"))
    yield platform
    events.ORIGIN.reset(before)


def cookie(answer: Response, name: str = SESSION_COOKIE) -> Any:
    found: SimpleCookie = SimpleCookie()
    for header in answer.headers.getlist("set-cookie"):
        found.load(header)
    return found.get(name)


@pytest.mark.parametrize(("scheme", "secure"), [("https", True), ("http", "")])
def test_the_cookie_of_a_session_is_for_own_pages_alone(platform: Platform, scheme: str, secure: Any) -> None:
    answer = router.log_in(platform.context, platform.request(scheme), token=f" {TOKEN} ", next="/ui/system")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/system")
    assert platform.begun == [(USER, TOKEN, 2)]
    given = cookie(answer)
    assert (given.value, given["httponly"], given["samesite"], given["secure"]) == (
        "the-cookie",
        True,
        "strict",
        secure,
    )
    assert (given["max-age"], given["path"]) == ("7200", "/")


@pytest.mark.parametrize(
    "target", ["https://elsewhere/", "//elsewhere/", "/ui/\\elsewhere", "/v1/jobs", "javascript:x"]
)
def test_a_sign_in_leads_to_no_other_site(platform: Platform, target: str) -> None:
    answer = router.log_in(platform.context, platform.request(), token=TOKEN, next=target)
    assert answer.headers["location"] == router.START_PAGE
    page = router.show_login(platform.request(), next=target)
    assert quote(target, safe="") not in bytes(page.body).decode()


@pytest.mark.parametrize(
    ("refusal", "at_issuer", "shown"),
    [
        (TokenMissingError("no"), False, "This token is not valid. Copy the whole token, without quotes."),
        (TokenExpiredError("no"), False, "This token has expired. Ask an administrator for a new token."),
        (TokenRevokedError("no"), False, "This token was revoked. Ask an administrator for a new token."),
        (TokenMissingError("no"), True, router.ISSUER_REFUSAL),
        (RoleMissingError("no"), True, "You have no role here. Ask an administrator to map one of your groups"),
    ],
)
def test_a_refused_sign_in_says_why_and_begins_nothing(
    platform: Platform, refusal: ApiError, *, at_issuer: bool, shown: str
) -> None:
    platform.refusal = refusal
    if at_issuer:
        request = platform.request(cookie="keyscale_sign_in=s.n.v.%2Fui%2Fsystem")
        answer = router.come_from_issuer(platform.context, request, state="s", code="c")
        assert cookie(answer, router.SIGN_IN_COOKIE)["max-age"] == "0"
    else:
        answer = router.log_in(platform.context, platform.request(), token=TOKEN, next="/ui/system")
    assert (answer.status_code, cookie(answer), platform.begun) == (403, None, [])
    page = unescape(bytes(answer.body).decode())
    assert shown in page
    assert 'value="/ui/system"' in page, "the next try leads there"


def test_an_address_that_failed_too_often_waits_even_with_the_right_token(platform: Platform) -> None:
    platform.wait_s = 2.5
    answer = router.log_in(platform.context, platform.request(), token=TOKEN)
    assert (answer.status_code, answer.headers["retry-after"], platform.begun) == (429, "3", [])
    assert "3 seconds" in bytes(answer.body).decode()


def test_a_form_of_another_site_neither_signs_in_nor_out(platform: Platform) -> None:
    foreign = platform.request(origin="https://elsewhere")
    with pytest.raises(OriginNotAllowedError):
        router.log_in(platform.context, foreign, token=TOKEN)
    with pytest.raises(OriginNotAllowedError):
        router.log_out(platform.context, foreign)
    assert (platform.begun, platform.ended) == ([], [])


def test_a_sign_out_ends_the_session_in_the_database_and_in_the_browser(platform: Platform) -> None:
    answer = router.log_out(platform.context, platform.request(cookie=f"{SESSION_COOKIE}=the-cookie"))
    assert platform.ended == ["the-cookie"]
    assert (cookie(answer).value, cookie(answer)["max-age"]) == ("", "0")
    assert answer.headers["location"] == "/ui/login"


def test_a_sign_in_at_the_issuer_ends_in_the_browser_that_began_it(platform: Platform) -> None:
    left = router.lead_to_issuer(platform.context, platform.request(), next="/ui/system")
    kept = cookie(left, router.SIGN_IN_COOKIE)
    assert (kept["httponly"], kept["samesite"], kept["secure"], kept["path"]) == (True, "lax", True, "/ui/signed-in")
    state, nonce, verifier, target = kept.value.split(".")
    assert len({state, nonce, verifier}) == 3
    assert f"state={state}&back=https://here/ui/signed-in" in left.headers["location"]
    back = platform.request(cookie=f"{router.SIGN_IN_COOKIE}={kept.value}")
    answer = router.come_from_issuer(platform.context, back, state=state, code="c")
    assert platform.redeemed == [("c", SignIn(state, nonce, verifier), "https://here/ui/signed-in")]
    assert platform.begun == [(USER, None, 2)]
    assert (cookie(answer).value, cookie(answer)["samesite"]) == ("the-cookie", "strict")
    assert cookie(answer, router.SIGN_IN_COOKIE)["max-age"] == "0"
    assert "/ui/system" in bytes(answer.body).decode()
    assert target == quote("/ui/system", safe="")


@pytest.mark.parametrize(
    ("kept", "state", "code"),
    [
        ("s.n.v.x", "other", "c"),
        ("s.n.v.x", "s", ""),
        ("s.n.v", "s", "c"),
        ("", "", "c"),
    ],
)
def test_a_sign_in_that_another_browser_began_is_refused(platform: Platform, kept: str, state: str, code: str) -> None:
    back = platform.request(cookie=f"{router.SIGN_IN_COOKIE}={kept}")
    answer = router.come_from_issuer(platform.context, back, state=state, code=code)
    assert (answer.status_code, platform.redeemed, platform.begun) == (403, [], [])


def test_without_an_issuer_the_token_is_the_way_in(platform: Platform) -> None:
    platform.context.issuer = None
    assert router.lead_to_issuer(platform.context, platform.request()).headers["location"] == "/ui/login"
    back = platform.request(cookie=f"{router.SIGN_IN_COOKIE}=s.n.v.x")
    assert router.come_from_issuer(platform.context, back, state="s", code="c").status_code == 403
    assert "/ui/sign-in" not in bytes(router.show_login(platform.request()).body).decode()


@pytest.mark.parametrize("at_issuer", [False, True])
def test_a_refused_sign_in_is_noted(platform: Platform, monkeypatch: pytest.MonkeyPatch, *, at_issuer: bool) -> None:
    noted: list[Any] = []

    def note(of: Request, error: ApiError) -> ApiError:
        noted.append((of, error))
        return TokenRevokedError("as noted")

    monkeypatch.setattr(router, "note_refusal", note)
    platform.refusal = TokenExpiredError("no")
    request = platform.request(cookie="keyscale_sign_in=s.n.v.x")
    if at_issuer:
        answer = router.come_from_issuer(platform.context, request, state="s", code="c")
    else:
        answer = router.log_in(platform.context, request, token=TOKEN)
    assert noted == [(request, platform.refusal)]
    assert "This token was revoked." in bytes(answer.body).decode()


def test_a_cookie_ends_where_it_was_set_and_after_its_time(platform: Platform) -> None:
    left = router.lead_to_issuer(platform.context, platform.request(), next="/ui/")
    begun = cookie(left, router.SIGN_IN_COOKIE)
    assert begun["max-age"] == str(router.SIGN_IN_SECONDS)
    back = platform.request(cookie=f"{router.SIGN_IN_COOKIE}={begun.value}")
    answer = router.come_from_issuer(platform.context, back, state=begun.value.split(".")[0], code="c")
    ended, session = cookie(answer, router.SIGN_IN_COOKIE), cookie(answer)
    assert (ended["path"], ended["max-age"], ended.value) == (begun["path"], "0", "")
    assert (session["max-age"], session["path"]) == ("7200", "/")
    signed_out = cookie(router.log_out(platform.context, platform.request()))
    assert (signed_out["path"], signed_out["max-age"]) == (session["path"], "0")

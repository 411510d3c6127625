"""Only a page of the control plane itself changes something with the session's cookie."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from keyscale.api.access.browser_sessions import SESSION_COOKIE, require_own_origin, require_own_page
from keyscale.api.access.credentials import Credential, credential_of
from keyscale.api.access.identities import bearer_token
from keyscale.api.access.principal import Principal
from keyscale.api.access.tokens import token_sha256
from keyscale.api.errors import OriginNotAllowedError
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

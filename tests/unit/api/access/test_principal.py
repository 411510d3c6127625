"""The holder of a token has the token's role and scope while the token is valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access import browser_sessions, principal
from keyscale.api.access.browser_sessions import authenticate_cookie
from keyscale.api.access.principal import TOKEN_CHARACTERS_MAX, Principal, authenticate_token, holder_of
from keyscale.api.access.tokens import token_sha256
from keyscale.api.errors import TokenExpiredError, TokenMissingError, TokenRevokedError
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import BrowserSession, Token
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_000


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (principal, browser_sessions):
        monkeypatch.setattr(module, "shared_now_ms", lambda: NOW_MS)


def token(**columns: Any) -> Token:
    given = {
        "id": "id",
        "name": "name",
        "sha256": token_sha256("value"),
        "role": Role.OPERATOR,
        "job_names": ["flights"],
        "job_labels": {"team": "a"},
        "created_by": "creator",
        "expires_at_ms": None,
        "revoked_at_ms": None,
    }
    return Token(**{**given, **columns})


def row(**columns: Any) -> BrowserSession:
    given = {
        "user_id": "issuer#7",
        "name": "oidc:ada",
        "role": Role.VIEWER,
        "job_labels": [["team", "a"], ["stage", "live"]],
        "expires_at_ms": NOW_MS + 50,
    }
    return BrowserSession(**{**given, **columns})


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the database has for one hash."""

    def set_found(found: Token | None, *, of: str = "value", session: BrowserSession | None = None) -> None:
        digest = token_sha256(of)
        monkeypatch.setattr(principal.tokens, "find", lambda _, sha256: found if sha256 == digest else None)
        pair = None if session is None else (session, found)
        monkeypatch.setattr(
            browser_sessions.browser_sessions, "find", lambda _, sha256: pair if sha256 == digest else None
        )

    return set_found


@pytest.mark.parametrize(
    ("own", "allowed"),
    [
        (Role.VIEWER, {Role.VIEWER}),
        (Role.OPERATOR, {Role.VIEWER, Role.OPERATOR}),
        (Role.ADMIN, {Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
    ],
)
def test_a_role_has_the_rights_of_the_roles_below_it(own: Role, allowed: set[Role]) -> None:
    assert {role for role in Role if Principal("id", "name", own).may_act_as(role)} == allowed


def test_the_holder_has_the_role_the_scope_and_the_expiry_of_the_token() -> None:
    scope = JobScope(frozenset({"flights"}), {"team": "a"})
    assert holder_of(token(expires_at_ms=NOW_MS + 1)) == Principal("id", "name", Role.OPERATOR, scope, NOW_MS + 1)
    assert holder_of(token(job_names=[], job_labels={})).scope == EVERYTHING


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"expires_at_ms": NOW_MS}, TokenExpiredError),
        ({"expires_at_ms": NOW_MS - 1}, TokenExpiredError),
        ({"revoked_at_ms": NOW_MS + 9}, TokenRevokedError),
        ({"revoked_at_ms": 1, "expires_at_ms": 1}, TokenRevokedError),
    ],
)
def test_an_expired_or_revoked_token_has_no_holder(columns: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        holder_of(token(**columns))


def test_a_token_is_found_by_its_hash_and_its_row_must_have_that_hash(find: Callable[..., None]) -> None:
    session: Any = None
    find(token())
    assert authenticate_token(session, "value").id == "id"
    longest = "v" * TOKEN_CHARACTERS_MAX
    find(token(sha256=token_sha256(longest)), of=longest)
    assert authenticate_token(session, longest).id == "id"
    for found, value in ((token(), "other"), (token(sha256=token_sha256("other")), "value")):
        find(found)
        with pytest.raises(TokenMissingError):
            authenticate_token(session, value)
    for value in ("", longest + "v"):
        find(token(sha256=token_sha256(value)), of=value)
        with pytest.raises(TokenMissingError):
            authenticate_token(session, value)


def test_a_session_of_an_issuers_user_has_the_labels_that_it_began_with(find: Callable[..., None]) -> None:
    session: Any = None
    find(None, session=row())
    scope = JobScope(any_labels=frozenset({("team", "a"), ("stage", "live")}))
    expected = Principal("issuer#7", "oidc:ada", Role.VIEWER, scope, NOW_MS + 50)
    assert authenticate_cookie(session, "value") == expected


@pytest.mark.parametrize(("token_expires_ms", "expected"), [(None, 50), (20, 20), (90, 50)])
def test_a_session_of_a_token_has_the_rights_of_the_token_and_ends_with_the_first_of_the_two(
    find: Callable[..., None], token_expires_ms: int | None, expected: int
) -> None:
    session: Any = None
    expires_at_ms = None if token_expires_ms is None else NOW_MS + token_expires_ms
    find(token(expires_at_ms=expires_at_ms), session=row())
    user = authenticate_cookie(session, "value")
    assert (user.id, user.role, user.scope.jobs) == ("id", Role.OPERATOR, {"flights"})
    assert user.expires_at_ms == NOW_MS + expected


@pytest.mark.parametrize(
    ("found", "columns", "error"),
    [
        (None, {"expires_at_ms": NOW_MS}, TokenExpiredError),
        (token(), {"expires_at_ms": NOW_MS}, TokenExpiredError),
        (token(revoked_at_ms=1), {}, TokenRevokedError),
        (token(expires_at_ms=NOW_MS), {}, TokenExpiredError),
    ],
)
def test_a_session_ends_with_its_time_and_with_its_token(
    find: Callable[..., None], found: Token | None, columns: dict[str, Any], error: type[Exception]
) -> None:
    session: Any = None
    find(found, session=row(**columns))
    with pytest.raises(error):
        authenticate_cookie(session, "value")


def test_an_unknown_an_empty_and_a_too_long_cookie_are_refused(find: Callable[..., None]) -> None:
    session: Any = None
    for cookie in ("", "v" * (TOKEN_CHARACTERS_MAX + 1)):
        find(None, of=cookie, session=row())
        with pytest.raises(TokenMissingError):
            authenticate_cookie(session, cookie)
    longest = "v" * TOKEN_CHARACTERS_MAX
    find(None, of=longest, session=row())
    assert authenticate_cookie(session, longest).id == "issuer#7"
    with pytest.raises(TokenMissingError):
        authenticate_cookie(session, "other")

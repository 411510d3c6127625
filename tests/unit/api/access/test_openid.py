"""The claims of an issuer's user give the user a role and a scope; only its own valid tokens name a user."""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from keyscale.api.access import openid
from keyscale.api.access.openid import Issuer, SignIn, claims_at, looks_issued, role_of, scope_of
from keyscale.api.access.principal import Principal
from keyscale.api.errors import ApiError, IssuerUnavailableError, RoleMissingError, TokenMissingError
from keyscale.api.settings import OpenIdSettings
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.vocabulary import Role

ROLES = {"platform": Role.ADMIN, "streams": Role.OPERATOR, "everybody": Role.VIEWER}
BILLING, LIVE = ("team", "billing"), ("stage", "live")
JOB_LABELS = (("streams", None), ("everybody", None), ("billing", BILLING), ("live", LIVE))
BILLED_OR_LIVE = JobScope(any_labels=frozenset({BILLING, LIVE}))
URL, BACK = "https://issuer.example/", "https://here/ui/signed-in"
SIGN_IN = SignIn("the-state", "the-nonce", "the-verifier-of-at-least-43-characters-in-all")
CHALLENGE = "jDR4RUGOHTe5Bzbi1Zw8qBkqRVFlpZyJgBRqLWxFBtk"
SETTINGS = OpenIdSettings(
    URL, "the-client", "the-secret", "the-api", ROLES, "realm.groups", job_labels=JOB_LABELS, scopes="openid groups"
)
HOUR_S = 3600.0
CLIENT = httpx.Client
"""The one of the library, in whose place the issuer's side is played."""


class PlayedIssuer:
    """The issuer's side, on a clock of the test: answers in the process, and notes what it is asked."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[str] = []
        self.redeemed: httpx.Request | None = None
        self.options: dict[str, Any] = {}
        self.id_token: dict[str, Any] = {"nonce": SIGN_IN.nonce, "aud": "the-client"}
        self.tokens: dict[str, Any] = {}
        self.answers: dict[str, httpx.Response | Exception] = {}
        self.documents: dict[str, Any] = {
            "/.well-known/openid-configuration": {
                "issuer": URL,
                "authorization_endpoint": f"{URL}authorize?tenant=7",
                "token_endpoint": f"{URL}token",
                "jwks_uri": f"{URL}keys",
            }
        }
        self.renew_key("first")

    def renew_key(self, name: str) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": name, "use": "sig", "alg": "ES256"})
        self.documents["/keys"] = KeySet([self.key]).as_dict(private=False)

    def token(self, **claims: Any) -> str:
        now_s = int(time.time())
        of_user = {"sub": "u-7", "exp": now_s + 300, "iat": now_s, "realm": {"groups": ["billing", "streams"]}}
        given = {"iss": URL, "aud": "the-api", **of_user, **claims}
        return jwt.encode(
            {"alg": "ES256", "kid": self.key.kid},
            {name: value for name, value in given.items() if value is not None},
            self.key,
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if (found := self.answers.get(path)) is not None:
            if isinstance(found, Exception):
                raise found
            return found
        if path != "/token":
            return httpx.Response(200, json=self.documents[path])
        self.redeemed = request
        return httpx.Response(200, json={"id_token": self.token(**self.id_token), **self.tokens})

    def client(self, **options: Any) -> httpx.Client:
        self.options = options
        return CLIENT(**{**options, "verify": False}, transport=httpx.MockTransport(self.answer))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedIssuer:
    played = PlayedIssuer()
    monkeypatch.setattr(openid, "trusted_certificates", str)
    monkeypatch.setattr(httpx, "Client", played.client)
    return played


@pytest.fixture
def issuer(played: PlayedIssuer) -> Issuer:
    return issuer_with(played)


def issuer_with(played: PlayedIssuer, **changes: Any) -> Issuer:
    return Issuer(replace(SETTINGS, **changes), ca_file=Path("/ca.pem"), clock=lambda: played.now_s)


def test_a_sign_in_begins_at_the_address_that_the_issuer_names(issuer: Issuer, played: PlayedIssuer) -> None:
    where = urlsplit(issuer.sign_in_url(SIGN_IN, BACK))
    assert f"{where.scheme}://{where.netloc}{where.path}" == f"{URL}authorize"
    assert dict(parse_qsl(where.query)) == {
        "tenant": "7",
        "response_type": "code",
        "client_id": "the-client",
        "redirect_uri": BACK,
        "scope": "openid groups",
        "state": "the-state",
        "nonce": "the-nonce",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
    }
    assert played.options == {"verify": "/ca.pem", "timeout": 10.0, "follow_redirects": False}


@pytest.mark.parametrize("secret", ["the-secret", None])
def test_a_code_is_redeemed_with_the_clients_secret_and_the_verifier(played: PlayedIssuer, secret: str | None) -> None:
    ends_s = int(time.time()) + 77
    played.id_token |= {"exp": ends_s, "preferred_username": "ann", "email": "ann@example.com"}
    user = issuer_with(played, client_secret=secret).redeem("the-code", SIGN_IN, BACK)
    assert user == Principal(f"{URL}#u-7", "oidc:ann", Role.OPERATOR, EVERYTHING, ends_s * 1000)
    asked = played.redeemed
    assert asked is not None
    assert (asked.method, str(asked.url), asked.headers["accept"]) == ("POST", f"{URL}token", "application/json")
    assert dict(parse_qsl(asked.content.decode())) == {
        "grant_type": "authorization_code",
        "code": "the-code",
        "redirect_uri": BACK,
        "client_id": "the-client",
        "code_verifier": SIGN_IN.verifier,
    }
    basic = asked.headers.get("authorization", "").removeprefix("Basic ")
    assert b64decode(basic) == (b"the-client:the-secret" if secret else b"")


PAST_S = -60
"""An end that is over for longer than clocks may differ."""


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"aud": "the-api"},
        {"aud": ["the-client", "another"], "azp": "another"},
        {"iss": "https://evil.example/"},
        {"exp": PAST_S},
        {"exp": None},
        {"sub": None},
        {"at_hash": "of another access token"},
    ],
    ids=str,
)
def test_an_id_token_for_something_else_names_no_user(
    issuer: Issuer, played: PlayedIssuer, claims: dict[str, Any]
) -> None:
    played.tokens = {"access_token": "opaque"}
    played.id_token |= claims | ({"exp": int(time.time()) + PAST_S} if claims.get("exp") else {})
    with pytest.raises(TokenMissingError, match="the issuer's token is not valid"):
        issuer.redeem("the-code", SIGN_IN, BACK)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "the-client"},
        {"aud": None},
        {"iss": "https://issuer.example"},
        {"iss": None},
        {"exp": PAST_S},
        {"exp": None},
        {"nbf": -PAST_S},
        {"sub": None},
    ],
    ids=str,
)
def test_a_bearer_token_for_something_else_names_no_user(
    issuer: Issuer, played: PlayedIssuer, claims: dict[str, Any]
) -> None:
    given = {name: int(time.time()) + value if isinstance(value, int) else value for name, value in claims.items()}
    with pytest.raises(TokenMissingError, match=r"the issuer's token is not valid: [a-z_]+$"):
        issuer.authenticate(played.token(**given))


def test_clocks_may_differ_by_half_a_minute(issuer: Issuer, played: PlayedIssuer) -> None:
    now_s = int(time.time())
    assert issuer.authenticate(played.token(exp=now_s - 20, nbf=now_s + 20)).expires_at_ms == (now_s - 20) * 1000
    played.id_token |= {"exp": now_s - 20}
    assert issuer.redeem("the-code", SIGN_IN, BACK).expires_at_ms == (now_s - 20) * 1000


@pytest.mark.parametrize(
    ("groups", "names", "expected"),
    [
        (["platform", "billing"], {}, ("u-7", Role.ADMIN, EVERYTHING)),
        (["streams", "x"], {"email": "a@example.com"}, ("a@example.com", Role.OPERATOR, EVERYTHING)),
        ("billing live", {"preferred_username": ""}, ("u-7", Role.OPERATOR, BILLED_OR_LIVE)),
    ],
)
def test_the_claims_of_a_bearer_token_are_the_user(
    played: PlayedIssuer, groups: Any, names: dict[str, str], expected: tuple[str, Role, JobScope]
) -> None:
    roles = {**ROLES, "billing": Role.OPERATOR}
    user = issuer_with(played, roles=roles).authenticate(played.token(realm={"groups": groups}, **names))
    assert (user.name, user.role, user.scope, user.id) == (f"oidc:{expected[0]}", *expected[1:], f"{URL}#u-7")


@pytest.mark.parametrize(
    ("groups", "changes", "setting"),
    [
        (["strangers"], {}, "KEYSCALE_OIDC_ROLES"),
        (["guests"], {"roles": {"guests": Role.VIEWER}}, "KEYSCALE_OIDC_JOB_LABELS"),
    ],
)
def test_a_user_without_a_role_or_a_scope_learns_which_setting_names_none(
    played: PlayedIssuer, groups: list[str], changes: dict[str, Any], setting: str
) -> None:
    with pytest.raises(RoleMissingError, match=f"no value of the claim realm.groups is in {setting}"):
        issuer_with(played, **changes).authenticate(played.token(realm={"groups": groups}))


def encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def part(of_token: dict[str, Any]) -> str:
    return encoded(json.dumps(of_token).encode())


def test_only_the_issuers_own_signature_counts(issuer: Issuer, played: PlayedIssuer) -> None:
    token = played.token()
    head, body, signature = token.split(".")
    stranger = ECKey.generate_key("P-256", {"kid": "first"})
    claims = json.loads(urlsafe_b64decode(body + "=="))
    signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{body}"
    public = played.key.as_pem(private=False)  # which everybody has, as the secret of an HMAC
    forged = [
        jwt.encode({"alg": "ES256", "kid": "first"}, claims, stranger),
        f"{signed}.{encoded(hmac.digest(public, signed.encode(), 'sha256'))}",
        f"{part({'alg': 'none', 'kid': 'first'})}.{body}.",
        f"{head}.{played.token(sub='u-8').split('.')[1]}.{signature}",
        f"{head}.{body}.",
        "a.b.c",
        f"{token}{'x' * 16_384}",
    ]
    for value in forged:
        with pytest.raises(TokenMissingError):
            issuer.authenticate(value)
    assert issuer.authenticate(token).id == f"{URL}#u-7"


def test_the_issuers_documents_are_asked_for_once_an_hour(issuer: Issuer, played: PlayedIssuer) -> None:
    token = played.token()
    for now_s, asked in ((0.0, ["/.well-known/openid-configuration", "/keys"]), (HOUR_S, []), (HOUR_S + 1, 2)):
        played.now_s, played.asked = now_s, []
        issuer.authenticate(token)
        assert played.asked == asked if isinstance(asked, list) else len(played.asked) == asked


def test_a_new_key_of_the_issuer_is_looked_for_but_not_with_every_foreign_token(
    issuer: Issuer, played: PlayedIssuer
) -> None:
    old = played.token()
    issuer.authenticate(old)
    played.renew_key("second")
    for now_s, expected in ((5.0, 1), (5.1, 2)):
        played.now_s = now_s
        if expected == 1:
            with pytest.raises(TokenMissingError):
                issuer.authenticate(played.token())
        else:
            issuer.authenticate(played.token())
        assert played.asked.count("/keys") == expected
    with pytest.raises(TokenMissingError):
        issuer.authenticate(old)


CONFIGURATION = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "answer", "detail"),
    [
        (CONFIGURATION, httpx.Response(503), "the issuer answered 503 to /.well-known/openid-configuration"),
        (CONFIGURATION, httpx.ReadTimeout("secret"), "the issuer does not answer: ReadTimeout"),
        (CONFIGURATION, httpx.Response(200, json=[]), "the issuer did not answer with JSON to /.well-known"),
        (CONFIGURATION, httpx.Response(200, text="<html>"), "the issuer did not answer with JSON to /.well-known"),
        (CONFIGURATION, httpx.Response(200, json={"issuer": "https://evil.example/"}), "names another issuer"),
        (CONFIGURATION, httpx.Response(200, json={"issuer": URL}), "the issuer's configuration has no jwks_uri"),
        ("/keys", httpx.Response(200, json={"keys": 7}), "the issuer's keys cannot be read"),
        ("/keys", httpx.Response(200, content=b" " * (1 << 20) + b"{}"), "the issuer answered 200 to /keys"),
        ("/keys", httpx.Response(302, headers={"location": f"{URL}elsewhere"}), "the issuer answered 302 to /keys"),
    ],
)
def test_an_issuer_that_answers_wrongly_is_an_outage_until_it_answers_rightly(
    issuer: Issuer, played: PlayedIssuer, path: str, answer: httpx.Response | Exception, detail: str
) -> None:
    played.answers[path] = answer
    for _ in range(2):
        with pytest.raises(IssuerUnavailableError, match=detail):
            issuer.authenticate(played.token())
    del played.answers[path]
    played.now_s = 2 * HOUR_S
    assert issuer.authenticate(played.token()).id == f"{URL}#u-7"


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (httpx.Response(400, json={"error": "invalid_grant"}), TokenMissingError, "the issuer refused the sign-in"),
        (httpx.Response(401), TokenMissingError, "the issuer refused the sign-in"),
        (httpx.Response(500), IssuerUnavailableError, "the issuer answered 500 to /token"),
        (httpx.ConnectError("secret"), IssuerUnavailableError, "the issuer does not answer: ConnectError"),
        (httpx.Response(200, json={}), TokenMissingError, "the issuer's token is not valid"),
    ],
)
def test_a_refused_code_is_the_users_and_an_outage_is_the_issuers(
    issuer: Issuer, played: PlayedIssuer, answer: Any, kind: type[ApiError], detail: str
) -> None:
    played.answers["/token"] = answer
    with pytest.raises(kind, match=detail):
        issuer.redeem("the-code", SIGN_IN, BACK)


def test_a_closed_issuer_has_no_open_connections(issuer: Issuer) -> None:
    issuer.close()
    with pytest.raises(RuntimeError, match="closed"):
        issuer.sign_in_url(SIGN_IN, BACK)


def test_a_claim_may_be_a_list_a_text_or_nested() -> None:
    assert claims_at({"groups": ["a", "b", 1]}, "groups") == {"a", "b"}
    assert claims_at({"scope": "a b"}, "scope") == {"a", "b"}
    assert claims_at({"realm_access": {"roles": ["a"]}}, "realm_access.roles") == {"a"}
    assert claims_at({"https://example.com/roles": ["a"]}, "https://example.com/roles") == {"a"}
    for claims in ({}, {"groups": None}, {"groups": 1}, {"groups": {"a": 1}}):
        assert claims_at(claims, "groups") == frozenset()


def test_of_several_roles_the_highest_counts_and_a_star_is_everybody() -> None:
    assert role_of(frozenset({"everybody", "streams"}), ROLES) is Role.OPERATOR
    assert role_of(frozenset({"strangers"}), ROLES) is None
    assert role_of(frozenset(), {"*": Role.VIEWER}) is Role.VIEWER
    assert role_of(frozenset({"platform"}), {"*": Role.VIEWER, **ROLES}) is Role.ADMIN


def test_a_scope_has_the_labels_of_all_values_and_a_star_is_everybody_or_every_job() -> None:
    assert scope_of(frozenset({"billing", "live"}), JOB_LABELS) == JobScope(any_labels=frozenset({BILLING, LIVE}))
    assert scope_of(frozenset({"billing", "streams"}), JOB_LABELS) == EVERYTHING
    assert scope_of(frozenset({"guests"}), JOB_LABELS) is None
    assert scope_of(frozenset({"guests"}), (("*", LIVE),)) == JobScope(any_labels=frozenset({LIVE}))
    assert scope_of(frozenset(), ()) == EVERYTHING


def test_only_a_token_of_three_parts_looks_issued() -> None:
    assert [looks_issued(value) for value in ("a.b.c", "a.b", "abc", "a.b.c.d")] == [True, False, False, False]

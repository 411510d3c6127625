"""Users of an OpenID Connect issuer, which runs as a process of its own and signs real tokens."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from keyscale.api.access import openid
from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.settings import OpenIdSettings
from keyscale.vocabulary import Role
from tests.integration.api.conftest import TOKEN
from tests.support.servers.issuer_process import IssuerProcess, running_issuer
from tests.support.servers.openid_issuer import CLIENT_ID, CLIENT_SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from keyscale.api.settings import Settings
    from tests.support.control_plane.running_application import RunningApplication

pytestmark = pytest.mark.real

ROLES = {
    "platform": Role.ADMIN,
    "streams": Role.OPERATOR,
    "billing": Role.OPERATOR,
    "everybody": Role.VIEWER,
    "guests": Role.VIEWER,
}
BILLING, LIVE = ("team", "billing"), ("stage", "live")
JOB_LABELS = (("streams", None), ("everybody", None), ("billing", BILLING), ("live", LIVE))
OWN = {"X-Requested-With": "keyscale"}


@pytest.fixture(scope="module")
def issuer_process() -> Iterator[IssuerProcess]:
    with running_issuer() as running:
        yield running


@pytest.fixture
def issuer(issuer_process: IssuerProcess) -> IssuerProcess:
    issuer_process.set(forget=True)
    return issuer_process


@pytest.fixture
def settings(settings: Settings, issuer: IssuerProcess) -> Settings:
    return replace(
        settings,
        openid=OpenIdSettings(
            issuer.url, CLIENT_ID, CLIENT_SECRET, audience=CLIENT_ID, roles=ROLES, job_labels=JOB_LABELS
        ),
    )


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def begin(client: httpx.Client, issuer: IssuerProcess) -> str:
    """Begins a sign-in, and returns the path and query with which the issuer sends the browser back."""
    leaving = client.get("/ui/sign-in", params={"next": "/ui/jobs/flights"})
    assert leaving.status_code == 303
    back = urlsplit(issuer.follow(leaving.headers["location"]))
    assert f"{back.scheme}://{back.netloc}" == str(client.base_url).rstrip("/")
    return f"{back.path}?{back.query}"


def events(client: httpx.Client, *kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/events", params={"kind": kinds}, headers=bearer(TOKEN)).json()[
        "events"
    ]
    return found


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_user_signs_in_at_the_issuer_and_has_the_role_of_the_claim(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    assert 'href="/ui/sign-in?next=%2Fui%2Fjobs%2Fflights"' in anonymous.get("/ui/login?next=/ui/jobs/flights").text
    issuer.set(user={"sub": "u-7", "preferred_username": "bob", "groups": ["streams", "everybody"]})
    answer = anonymous.get(begin(anonymous, issuer))
    # Not a redirect: a browser sends a strict cookie only if a page of ours leads on, not the issuer.
    assert answer.status_code == 200
    assert 'content="0; url=/ui/jobs/flights"' in answer.text
    sent = answer.headers["set-cookie"]
    assert all(part in sent for part in (SESSION_COOKIE, "HttpOnly", "SameSite=strict"))
    me = anonymous.get("/v1/whoami").json()
    assert (me["name"], me["role"], me["id"]) == ("oidc:bob", "OPERATOR", f"{issuer.url}#u-7")
    assert anonymous.post("/v1/jobs/none/start", headers=OWN).json()["code"] == "JOB_NOT_FOUND"
    assert anonymous.get("/v1/tokens").json()["code"] == "ROLE_TOO_LOW"
    signed_in = next(event for event in events(anonymous) if event["kind"] == "SIGNED_IN")
    assert (signed_in["actor"], signed_in["address"]) == ("oidc:bob", "127.0.0.1")
    anonymous.post("/ui/logout")
    assert anonymous.get("/v1/jobs").status_code == 401


def test_a_code_works_once_and_in_the_browser_that_began_only(
    anonymous: httpx.Client, application: RunningApplication, issuer: IssuerProcess
) -> None:
    back = begin(anonymous, issuer)
    with application.new_client() as other:
        assert other.get(back).status_code == 403
        assert SESSION_COOKIE not in other.cookies
    begin(anonymous, issuer)  # a newer sign-in: the older state is not this browser's any more
    assert anonymous.get(back).status_code == 403
    fresh = begin(anonymous, issuer)
    assert anonymous.get(fresh).status_code == 200
    assert anonymous.get(fresh).status_code == 403


@pytest.mark.parametrize(
    "overrides",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
        {"iss": "https://evil.example"},
        {"exp": int(time.time()) - 60},
        {"exp": None},
        {"sub": None},
    ],
)
def test_an_id_token_that_is_not_for_this_sign_in_begins_no_session(
    anonymous: httpx.Client, issuer: IssuerProcess, overrides: dict[str, Any]
) -> None:
    issuer.set(overrides=overrides)
    answer = anonymous.get(begin(anonymous, issuer))
    assert answer.status_code == 403
    assert "could not sign you in" in answer.text
    assert SESSION_COOKIE not in anonymous.cookies
    assert events(anonymous, "ACCESS_DENIED")


def test_a_user_without_a_mapped_value_has_no_role_and_is_told_so(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    issuer.set(user={"sub": "u-9", "groups": ["strangers"]})
    answer = anonymous.get(begin(anonymous, issuer))
    assert answer.status_code == 403
    assert "no role" in answer.text
    refused = anonymous.get("/v1/jobs", headers=bearer(issuer.token()))
    assert (refused.status_code, refused.json()["code"]) == (403, "ROLE_MISSING")


def test_the_issuers_refusal_is_shown_on_the_sign_in_page(anonymous: httpx.Client, issuer: IssuerProcess) -> None:
    state = parse_qs(urlsplit(begin(anonymous, issuer)).query)["state"][0]
    answer = anonymous.get("/ui/signed-in", params={"error": "access_denied", "state": state})
    assert answer.status_code == 403
    assert "could not sign you in" in answer.text


def test_an_issuer_that_is_down_is_an_outage_and_tokens_of_our_own_still_work(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    token = issuer.token()
    issuer.set(is_down=True)
    answer = anonymous.get("/v1/jobs", headers=bearer(token))
    assert (answer.status_code, answer.json()["code"]) == (503, "ISSUER_UNAVAILABLE")
    assert "retry-after" in answer.headers
    assert anonymous.get("/ui/sign-in").status_code == 503
    assert anonymous.get("/v1/jobs", headers=bearer(TOKEN)).status_code == 200
    issuer.set(is_down=False)
    assert anonymous.get("/v1/jobs", headers=bearer(token)).status_code == 200


# --- bearer tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "role"), [("platform", "ADMIN"), ("streams", "OPERATOR"), ("everybody", "VIEWER")])
def test_the_issuers_token_opens_the_api_with_the_role_of_the_claim(
    anonymous: httpx.Client, issuer: IssuerProcess, group: str, role: str
) -> None:
    me = anonymous.get("/v1/whoami", headers=bearer(issuer.token(groups=[group]))).json()
    assert (me["name"], me["role"]) == ("oidc:alice", role)


def test_a_user_with_a_scope_reaches_the_jobs_with_one_of_the_users_labels_and_creates_no_others(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    admin = bearer(TOKEN)
    artifact = anonymous.post("/v1/artifacts", files={"file": ("job.py", b"print(1)\n")}, headers=admin).json()["id"]
    labels = {
        "invoices": {"team": "billing", "stage": "test"},
        "payroll": {"team": "people", "stage": "live"},
        "trial": {"team": "people"},
        "unlabelled": {},
    }
    for name, of_job in labels.items():
        body = {"name": name, "labels": of_job, "spec": {"artifact_id": artifact}}
        assert anonymous.post("/v1/jobs", json=body, headers=admin).status_code == 201
    user = {"sub": "u-7", "preferred_username": "bob", "groups": ["billing", "live"]}
    issuer.set(user=user)
    anonymous.get(begin(anonymous, issuer))
    ways = [OWN, bearer(issuer.token(groups=user["groups"]))]
    for way in ways:
        assert {job["name"] for job in anonymous.get("/v1/jobs", headers=way).json()["jobs"]} == {"invoices", "payroll"}
        assert anonymous.get("/v1/jobs/invoices", headers=way).status_code == 200
        assert anonymous.post("/v1/jobs/trial/start", headers=way).json()["code"] == "JOB_NOT_FOUND"
        mine = {"name": f"mine-{ways.index(way)}", "labels": {"team": "people"}, "spec": {"artifact_id": artifact}}
        assert anonymous.post("/v1/jobs", json=mine, headers=way).json()["code"] == "OUT_OF_SCOPE"
        assert anonymous.get("/v1/whoami", headers=way).json()["scope"] == {
            "jobs": [],
            "labels": {},
            "any_labels": ["stage=live", "team=billing"],
        }
    everybody = anonymous.get("/v1/jobs", headers=bearer(issuer.token(groups=["platform"]))).json()["jobs"]
    assert {job["name"] for job in everybody} == set(labels)


def test_a_user_with_a_role_but_without_a_scope_is_refused_where_scopes_are_set(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    answer = anonymous.get("/v1/jobs", headers=bearer(issuer.token(groups=["guests"])))
    assert (answer.status_code, answer.json()["code"]) == (403, "ROLE_MISSING")
    assert "KEYSCALE_OIDC_JOB_LABELS" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("algorithm", "claims"),
    [
        ("none", {}),
        ("HS256", {}),
        ("stranger", {}),
        ("RS256", {"aud": "another-api"}),
        ("RS256", {"aud": None}),
        ("RS256", {"iss": "https://evil.example"}),
        ("RS256", {"iss": None}),
        ("RS256", {"exp": int(time.time()) - 60}),
        ("RS256", {"exp": None}),
        ("RS256", {"nbf": int(time.time()) + 86_400}),  # as of when the suite began
        ("RS256", {"sub": None}),
    ],
)
def test_a_token_that_is_not_the_issuers_for_us_and_valid_now_is_refused(
    anonymous: httpx.Client, issuer: IssuerProcess, algorithm: str, claims: dict[str, Any]
) -> None:
    answer = anonymous.get("/v1/jobs", headers=bearer(issuer.token(algorithm=algorithm, **claims)))
    assert (answer.status_code, answer.json()["code"]) == (401, "TOKEN_INVALID")


def test_a_changed_or_broken_token_is_refused(anonymous: httpx.Client, issuer: IssuerProcess) -> None:
    head, body, signature = issuer.token().split(".")
    other = issuer.token(groups=["platform"], extra=1).split(".")[1]
    for broken in (f"{head}.{other}.{signature}", f"{head}.{body}.", "a.b.c", "..", f"{head}.{body}.{'x' * 20_000}"):
        answer = anonymous.get("/v1/jobs", headers=bearer(broken))
        assert (answer.status_code, answer.json()["code"]) == (401, "TOKEN_INVALID")


def test_a_new_key_is_found_without_a_restart_and_the_old_one_is_no_longer_trusted(
    anonymous: httpx.Client, issuer: IssuerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid, "KEYS_AGE_MIN_S", 0.0)
    old = issuer.token()
    assert anonymous.get("/v1/jobs", headers=bearer(old)).status_code == 200
    issuer.set(rotate=True)
    assert anonymous.get("/v1/jobs", headers=bearer(issuer.token())).status_code == 200
    assert anonymous.get("/v1/jobs", headers=bearer(old)).json()["code"] == "TOKEN_INVALID"


def test_tokens_with_unknown_keys_do_not_make_us_ask_the_issuer_each_time(
    anonymous: httpx.Client, issuer: IssuerProcess
) -> None:
    assert anonymous.get("/v1/jobs", headers=bearer(issuer.token())).status_code == 200
    issuer.set(rotate=True)
    token = issuer.token()
    before = issuer.set()["key_requests"]
    for _ in range(20):
        anonymous.get("/v1/jobs", headers=bearer(token))
    assert issuer.set()["key_requests"] - before <= 2

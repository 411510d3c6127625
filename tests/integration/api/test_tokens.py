"""Tokens are made, listed and revoked; only their hash is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from keyscale.api.access.tokens import token_sha256
from keyscale.api.cli.root import main
from keyscale.api.web.serve import ensure_admin_token
from keyscale.clock import now_ms
from keyscale.db.repositories import tokens
from keyscale.vocabulary import Role
from tests.integration.api.conftest import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database

DAY_MS = 86_400_000


def create(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/v1/tokens", json={"name": "deploy", "role": "OPERATOR", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_new_token_opens_what_its_role_allows_and_its_value_is_shown_once(client: httpx.Client) -> None:
    made = create(client, scope={"jobs": ["flights"], "labels": {"team": "travel"}})
    assert client.get("/v1/jobs", headers=bearer(made["token"])).status_code == 200
    assert client.get("/v1/tokens", headers=bearer(made["token"])).json()["code"] == "ROLE_TOO_LOW"
    listed = client.get("/v1/tokens")
    assert made["token"] not in listed.text
    assert {key: value for key, value in made.items() if key != "token"} in listed.json()["tokens"]
    shown = client.get("/v1/whoami", headers=bearer(made["token"])).json()
    assert shown == {
        **{key: made[key] for key in ("id", "name", "role", "expires_at_ms")},
        "scope": {**made["scope"], "any_labels": []},
    }
    assert made["created_by"] == "admin"
    for roles, is_listed in ((made["role"], True), (["ADMIN", made["role"]], True), ("ADMIN", False)):
        chosen = client.get("/v1/tokens", params={"role": roles}).json()["tokens"]
        assert (made["id"] in {each["id"] for each in chosen}) is is_listed


@pytest.mark.real
def test_only_the_hash_of_a_token_is_in_the_database(client: httpx.Client, context: Context) -> None:
    made = create(client)
    with context.engine.connect() as connection:
        for table in ("tokens", "events"):
            rows = connection.execute(text(f"SELECT row_to_json({table})::text FROM {table}")).scalars().all()  # noqa: S608
            assert rows
            assert not [row for row in rows if made["token"] in row]
    with context.sessions() as session:
        assert tokens.find(session, token_sha256(made["token"])) is not None


@pytest.mark.parametrize(("lifetime_ms", "expected"), [({}, 90 * DAY_MS), ({"lifetime_ms": 5000}, 5000)])
def test_a_token_expires(client: httpx.Client, lifetime_ms: dict[str, int], expected: int) -> None:
    before = now_ms()
    made = create(client, **lifetime_ms)
    assert before + expected <= made["expires_at_ms"] <= now_ms() + expected
    assert create(client, name="forever", lifetime_ms=None)["expires_at_ms"] is None


def test_a_token_stops_working_at_the_moment_it_expires(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create(client, lifetime_ms=5000)
    for at_ms, status in ((made["expires_at_ms"] - 1, 200), (made["expires_at_ms"], 401)):
        monkeypatch.setattr("keyscale.api.access.principal.shared_now_ms", lambda at_ms=at_ms: at_ms)
        assert client.get("/v1/jobs", headers=bearer(made["token"])).status_code == status


def test_a_revoked_token_opens_nothing_at_once_and_twice_is_like_once(client: httpx.Client) -> None:
    made = create(client)
    for _ in range(2):
        assert client.delete(f"/v1/tokens/{made['id']}").status_code == 204
    assert client.get("/v1/jobs", headers=bearer(made["token"])).json()["code"] == "TOKEN_REVOKED"
    revoked = [event for event in client.get("/v1/events").json()["events"] if event["kind"] == "TOKEN_REVOKED"]
    assert [event["details"]["token_id"] for event in revoked] == [made["id"]]
    assert client.delete("/v1/tokens/unknown").json()["code"] == "TOKEN_NOT_FOUND"


def test_two_valid_tokens_have_different_names(client: httpx.Client) -> None:
    made = create(client)
    answer = client.post("/v1/tokens", json={"name": "deploy", "role": "VIEWER"})
    assert (answer.status_code, answer.json()["code"]) == (409, "TOKEN_NAME_TAKEN")
    client.delete(f"/v1/tokens/{made['id']}")
    create(client)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "ROOT"},
        {"name": "a b"},
        {"lifetime_ms": 0},
        {"lifetime_ms": 10**19},
        {"scope": {}},
        {"scope": {"jobs": [], "labels": {}}},
        {"scope": {"labels": {"": "x"}}},
        {"scope": {"jobs": ["a\x00"]}},
        {"role": "ADMIN", "scope": {"jobs": ["flights"]}},
        {"unknown": 1},
    ],
)
def test_a_wrong_request_makes_no_token(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post("/v1/tokens", json={"name": "deploy", "role": "OPERATOR", **fields})
    assert (answer.status_code, answer.json()["code"]) == (422, "REQUEST_INVALID")
    assert [token["name"] for token in client.get("/v1/tokens").json()["tokens"]] == ["admin"]


def test_events_about_access_and_addresses_are_for_administrators(client: httpx.Client) -> None:
    made = create(client, role="VIEWER")
    kinds = {event["kind"] for event in client.get("/v1/events").json()["events"]}
    assert "TOKEN_CREATED" in kinds
    seen = client.get("/v1/events", headers=bearer(made["token"])).json()["events"]
    assert not [event for event in seen if event["kind"] == "TOKEN_CREATED" or event["address"]]


def test_a_start_after_the_admins_token_was_revoked_makes_another(context: Context, tmp_path: Path) -> None:
    file = tmp_path / "token"
    first = ensure_admin_token(context.engine, file)
    assert ensure_admin_token(context.engine, file) == first
    with context.sessions.begin() as session:
        found = tokens.find(session, token_sha256(first))
        assert found is not None
        found.revoked_at_ms = 1
    second = ensure_admin_token(context.engine, file)
    assert second != first
    assert file.read_text().strip() == second
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("on_socket")
def test_the_commands_make_list_and_revoke_tokens(
    client: httpx.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str, token: str = TOKEN) -> str:
        monkeypatch.setenv("KEYSCALE_TOKEN", token)
        assert main(["--url", str(client.base_url), *arguments]) == 0
        return capsys.readouterr().out

    options = ("--role", "operator", "--job", "flights", "--label", "team=travel", "--days", "3")
    token = run("tokens", "create", "deploy", *options).strip()
    who = run("whoami", token=token)
    assert all(shown in who for shown in ("deploy", "OPERATOR", "flights, team=travel"))
    listed = run("tokens", "list")
    assert token not in listed
    row = next(line for line in listed.splitlines() if "deploy" in line)
    run("tokens", "revoke", row.split()[0])
    monkeypatch.setenv("KEYSCALE_TOKEN", token)
    assert main(["--url", str(client.base_url), "whoami"]) == 1
    assert "TOKEN_REVOKED" in capsys.readouterr().err


def test_a_new_database_gets_the_admins_token_of_the_file(context: Context, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-database-before\n")
    assert ensure_admin_token(context.engine, file) == "of-the-database-before"
    with context.sessions() as session:
        found = tokens.find(session, token_sha256("of-the-database-before"))
        assert found is not None
        assert (found.name, found.role, found.created_by) == ("admin", Role.ADMIN, "system")
        assert (found.job_names, found.job_labels, found.expires_at_ms) == ([], {}, None)

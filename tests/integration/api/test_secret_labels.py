"""A user with a scope gives jobs only the secrets whose labels the scope covers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.job_secrets import JobSecrets
from keyscale.api.jobs import clones
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Revision
from keyscale.vocabulary import Role
from tests.integration.api.conftest import add_token
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database

OF_A = {"Authorization": "Bearer operator-of-a"}
NAMED_LIKE_THE_JOB = {"Authorization": "Bearer operator-by-name"}
UNKNOWN = (422, "SECRET_UNKNOWN")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    names = ("OF_A", "OF_B", "OF_ALL")
    return replace(settings, job_secrets=JobSecrets({f"KEYSCALE_JOB_SECRET_{name}": "value-of-it" for name in names}))


@pytest.fixture
def labelled(client: httpx.Client, context: Context) -> None:
    """Two secrets with labels of two teams, and operators of the first team."""
    for name, team in (("OF_A", "a"), ("OF_B", "b")):
        answer = client.put(f"/v1/secrets/{name}/labels", json={"labels": {"team": team, "stage": "live"}})
        assert (answer.status_code, answer.json()["is_set"]) == (200, True)
    with context.sessions.begin() as session:
        add_token(session, "operator-of-a", Role.OPERATOR, JobScope(labels={"team": "a"}))
        add_token(session, "operator-by-name", Role.OPERATOR, JobScope(frozenset({"bills"})))


@pytest.fixture
def body(client: httpx.Client, labelled: None) -> dict[str, Any]:  # noqa: ARG001 - whose operator uploads
    """A job of the first team, with a program of its operator."""
    artifact = client.post("/v1/artifacts", files={"file": ("job.py", b"print(1)\n")}, headers=OF_A)
    return {"name": "bills", "labels": {"team": "a"}, "spec": {"artifact_id": artifact.json()["id"]}}


def outcome(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("code")


def test_no_request_gives_a_job_the_secret_of_another_team(
    client: httpx.Client, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = SimpleNamespace(max_parallelism=128, hash_id="spark")
    monkeypatch.setattr(clones, "find_source", lambda *_: snapshot)  # the job has none
    create = with_spec(**body, secrets=["OF_A"])
    for secrets in (["OF_B"], ["OF_ALL"], ["OF_A", "OF_B"], ["MISSING"]):
        wanted = with_spec(**body, secrets=secrets)
        assert outcome(client.post("/v1/jobs", json=wanted, headers=OF_A)) == UNKNOWN, secrets
    by_parameter = with_spec(**body, parameters={"password": {"secret": "OF_B"}})
    assert outcome(client.post("/v1/jobs", json=by_parameter, headers=OF_A)) == UNKNOWN
    assert client.post("/v1/jobs", json=create, headers=OF_A).status_code == 201
    steals: dict[str, Any] = {"spec": {"secrets": ["OF_A", "OF_B"]}}
    for change in (steals, {"spec": {"parameters": {"password": {"secret": "OF_B"}}}}):
        assert outcome(client.patch("/v1/jobs/bills", json={**change, "dry_run": True}, headers=OF_A)) == UNKNOWN
        match = {**OF_A, "If-Match": "1"}
        assert outcome(client.patch("/v1/jobs/bills", json=change, headers=match)) == UNKNOWN
        clone = {"name": "copy", **change}
        assert outcome(client.post("/v1/jobs/bills/clone", json=clone, headers=OF_A)) == UNKNOWN
    admin = client.patch("/v1/jobs/bills", json=steals, headers={"If-Match": "1"})
    assert admin.status_code == 200, admin.text
    assert client.patch("/v1/jobs/bills", json={"spec": {"secrets": []}}, headers={"If-Match": "2"}).status_code == 200
    back = {"revision": 2, "state": "CURRENT", "plan_first": False}
    assert outcome(client.post("/v1/jobs/bills/rollback", json=back, headers=OF_A)) == UNKNOWN
    assert client.post("/v1/jobs/bills/rollback", json={**back, "revision": 1}, headers=OF_A).status_code in {200, 202}


def test_a_job_keeps_the_secrets_that_it_has(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/v1/jobs", json=with_spec(**body, secrets=["OF_A", "OF_B"])).status_code == 201
    for version, headers in (("1", OF_A), ("2", NAMED_LIKE_THE_JOB)):
        change = {"parallelism": 1 + int(version), "secrets": ["OF_A", "OF_B"], "parameters": {"x": version}}
        answer = client.patch("/v1/jobs/bills", json={"spec": change}, headers={**headers, "If-Match": version})
        assert answer.status_code == 200, answer.text


def test_a_clone_has_the_secrets_of_its_original(client: httpx.Client, context: Context, body: dict[str, Any]) -> None:
    original = client.post("/v1/jobs", json=with_spec(**body, secrets=["OF_A", "OF_B"])).json()
    Snapshots(context.sessions, original["id"]).take(1, {})
    answer = client.post("/v1/jobs/bills/clone", json={"name": "copy"}, headers=OF_A)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["secrets"] == ["OF_A", "OF_B"]


def test_a_job_that_gets_all_secrets_keeps_its_program_until_they_are_named(
    client: httpx.Client, context: Context, body: dict[str, Any]
) -> None:
    job_id = client.post("/v1/jobs", json=body).json()["id"]
    with context.sessions.begin() as session:
        revision = session.get(Revision, (job_id, 1))
        assert revision is not None
        revision.spec = {**revision.spec, "secrets": None}
    match = {**OF_A, "If-Match": "1"}
    refused = client.patch("/v1/jobs/bills", json={"spec": {"parameters": {"x": "1"}}}, headers=match)
    assert outcome(refused) == (403, "OUT_OF_SCOPE")
    assert client.patch("/v1/jobs/bills", json={"spec": {"parallelism": 2}}, headers=match).status_code == 200
    named = {"parameters": {"x": "1"}, "secrets": ["OF_A"]}
    assert client.patch("/v1/jobs/bills", json={"spec": named}, headers={**OF_A, "If-Match": "2"}).status_code == 200


@pytest.mark.usefixtures("labelled")
def test_secrets_are_listed_by_scope_and_without_values(client: httpx.Client) -> None:
    def names(headers: dict[str, str]) -> list[str]:
        answer = client.get("/v1/secrets", headers=headers)
        assert "value-of-it" not in answer.text
        return [each["name"] for each in answer.json()["secrets"]]

    assert (names({}), names(OF_A), names(NAMED_LIKE_THE_JOB)) == (["OF_A", "OF_ALL", "OF_B"], ["OF_A"], [])
    assert client.put("/v1/secrets/OF_A/labels", json={"labels": {}}).json()["labels"] == {}
    later = client.put("/v1/secrets/LATER/labels", json={"labels": {"team": "a"}}).json()
    assert later == {"name": "LATER", "labels": {"team": "a"}, "is_set": False}
    assert names(OF_A) == ["LATER"]
    kinds = [each["kind"] for each in client.get("/v1/events").json()["events"]]
    assert kinds.count("SECRET_LABELLED") == 4
    assert outcome(client.put("/v1/secrets/a b/labels", json={"labels": {}})) == (422, "REQUEST_INVALID")
    assert outcome(client.put("/v1/secrets/OF_A/labels", json={"labels": {}}, headers=OF_A)) == (403, "ROLE_TOO_LOW")

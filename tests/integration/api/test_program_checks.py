"""Checks of programs over HTTP, with a stand-in for the process that loads programs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.control_plane.context import CHECKS_OF_USER_MAX
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.db.job_scope import JobScope
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramAnswer, ProgramDeclaration
from keyscale.vocabulary import Role
from tests.integration.api.conftest import add_token
from tests.support.jobs.declared_totals import TOTALS

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database

DECLARATION = ProgramDeclaration(
    (TOTALS,),
    (DeclaredSource("views", ("kafka",)),),
    (DeclaredSink("out", "FileSink"),),
    operator_kinds={"totals": "Process"},
)
OF_A = {"Authorization": "Bearer operator-of-a"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    names = ("OF_A", "OF_B")
    return replace(settings, job_secrets=JobSecrets({f"KEYSCALE_JOB_SECRET_{name}": "value-of-it" for name in names}))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The loads that the stand-in has been asked for."""
    kept: list[dict[str, Any]] = []

    def load(_: ProgramLoading, question: Any, content: Any, **settings: Any) -> ProgramAnswer:
        kept.append({"question": question, "content": b"".join(content), **settings})
        if question.parameters.get("fails"):
            return ProgramAnswer(failure={"code": "JOB_SCRIPT_FAILED", "message": "it has value-of-it"})
        return ProgramAnswer(DECLARATION)

    monkeypatch.setattr(ProgramLoading, "load", load)
    return kept


@pytest.fixture
def program(client: httpx.Client, context: Context) -> str:
    """A program of an operator of the team `a`, which has one of two secrets."""
    for name, team in (("OF_A", "a"), ("OF_B", "b")):
        client.put(f"/v1/secrets/{name}/labels", json={"labels": {"team": team}})
    with context.sessions.begin() as session:
        add_token(session, "operator-of-a", Role.OPERATOR, JobScope(labels={"team": "a"}))
        add_token(session, "viewer", Role.VIEWER)
    return uploaded(client, OF_A, "job.py", b"print(1)\n")


def uploaded(client: httpx.Client, headers: dict[str, str], name: str, content: bytes) -> str:
    artifact_id: str = client.post("/v1/artifacts", files={"file": (name, content)}, headers=headers).json()["id"]
    return artifact_id


def checked(client: httpx.Client, program: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    return client.post(f"/v1/artifacts/{program}/check", json=body or {}, headers=headers)


def test_a_program_is_loaded_as_no_jobs_user_and_shows_what_it_declares(
    client: httpx.Client, program: str, loads: list[dict[str, Any]]
) -> None:
    body = {
        "parameters": {"a": "b", "key": {"secret": "OF_A"}},
        "parallelism": 3,
        "max_parallelism": None,
        "secrets": None,
    }
    answer = checked(client, program, body, **OF_A)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "valid": True,
        "failure": None,
        "operators": [
            {
                "uid": "totals",
                "kind": "Process",
                "key": [{"name": "user", "type": "string"}],
                "states": [{"name": "total", "kind": "value", "declared": "value of int64", "ttl_ms": 1000}],
            }
        ],
        "sources": [{"uid": "views", "kind": "kafka"}],
        "sinks": [{"uid": "out", "kind": "FileSink"}],
    }
    [load] = loads
    assert (load["content"], load["holder"], load["secrets"]) == (b"print(1)\n", None, ["OF_A"])
    question = load["question"]
    assert (question.parameters, question.parallelism, question.max_parallelism) == (body["parameters"], 3, 128)
    [event] = client.get("/v1/events", params={"kind": "ARTIFACT_CHECKED"}).json()["events"]
    assert (event["actor"], event["details"]["secrets"]) == ("operator-of-a", ["OF_A"])


@pytest.mark.real
@pytest.mark.usefixtures("loads")
def test_a_failure_is_shown_with_secrets_masked(client: httpx.Client, program: str) -> None:
    body = {"parameters": {"fails": "now"}, "secrets": ["OF_A"]}
    answer = checked(client, program, body).json()
    assert (answer["valid"], answer["operators"]) == (False, [])
    assert (answer["failure"]["code"], answer["failure"]["message"]) == ("JOB_SCRIPT_FAILED", "it has *****")


def test_what_a_new_job_of_the_user_may_not_have_is_refused_before_anything_is_loaded(
    client: httpx.Client, program: str, loads: list[dict[str, Any]]
) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"secrets": ["OF_B"]}, "SECRET_UNKNOWN"),
        ({"parameters": {"key": {"secret": "OF_B"}}}, "SECRET_UNKNOWN"),
        ({"secrets": ["NOBODYS"]}, "SECRET_UNKNOWN"),
        ({"libraries": ["0" * 32]}, "ARTIFACT_NOT_FOUND"),
        ({"parallelism": 17, "max_parallelism": 16}, "PARALLELISM_OUT_OF_RANGE"),
        ({"spark_conf": {"spark.driver.extraJavaOptions": "-x"}}, "SPARK_CONF_NOT_ALLOWED"),
        ({"artifact_id": "another"}, "REQUEST_INVALID"),
        ({"checkpoints": None}, "REQUEST_INVALID"),
    ]
    for body, code in refused:
        assert checked(client, program, body, **OF_A).json()["code"] == code, body
    assert loads == []


@pytest.mark.real
def test_artifacts_of_other_tenants_and_roles_below_operator_are_refused(
    client: httpx.Client, program: str, loads: list[dict[str, Any]]
) -> None:
    foreign = uploaded(client, {}, "other.py", b"print(2)\n")
    assert checked(client, foreign, **OF_A).json()["code"] == "ARTIFACT_NOT_FOUND"
    assert checked(client, program, {"libraries": [foreign]}, **OF_A).json()["code"] == "ARTIFACT_NOT_FOUND"
    assert checked(client, program, Authorization="Bearer viewer").json()["code"] == "ROLE_TOO_LOW"
    assert checked(client, "unknown").json()["code"] == "ARTIFACT_NOT_FOUND"
    assert loads == []


@pytest.mark.real
def test_a_user_checks_a_limited_number_of_programs_at_once(
    client: httpx.Client, context: Context, program: str, loads: list[dict[str, Any]]
) -> None:
    user = client.get("/v1/whoami").json()["id"]
    places = [context.checks.place(user) for _ in range(CHECKS_OF_USER_MAX)]
    for place in places:
        place.__enter__()
    assert checked(client, program).json()["code"] == "TOO_MANY_IN_FLIGHT"
    places[0].__exit__(None, None, None)
    assert checked(client, program).status_code == 200
    assert len(loads) == 1

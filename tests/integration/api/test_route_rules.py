"""The table of routes in docs/guide/access.md, compared with the application and tried out.

The routes come from the application, so that a new one needs a row in the table.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Attempt, Operation
from keyscale.jobs.protocol.program import ProgramAnswer, ProgramDeclaration
from keyscale.vocabulary import AttemptStage, CommandStatus, DriverState, OperationKind, OperationStatus, Role
from tests.integration.api.conftest import add_token
from tests.support.control_plane.served_routes import Route, served_routes
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx
    from fastapi import FastAPI

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

NOT_FOUND = {
    "job_id": "JOB_NOT_FOUND",
    "operation_id": "OPERATION_NOT_FOUND",
    "artifact_id": "ARTIFACT_NOT_FOUND",
    "subscription_id": "SUBSCRIPTION_NOT_FOUND",
}
LOWER = {Role.OPERATOR: Role.VIEWER, Role.ADMIN: Role.OPERATOR}
EVERYBODY, PAGE, ATTEMPT = "everybody", "page", "attempt"


def documented_rules() -> dict[Route, str]:
    """The rule of each route in docs/guide/access.md: a role, `everybody`, `page` or `attempt`."""
    text = (DOCS / "guide" / "access.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| (\w+) \|", text, re.MULTILINE)
    return {(method, path): rule for method, path, rule in rows}


RULES = documented_rules()


def user_rules() -> Iterator[tuple[Route, Role]]:
    for route, rule in sorted(RULES.items()):
        if rule in Role.__members__:
            yield route, Role(rule)


@dataclass
class World:
    """A job of team a with an artifact, an operation and an attempt; tokens of every role, also for team b only."""

    client: httpx.Client
    job: dict[str, Any]
    ids: dict[str, str]

    def filled(self, path: str) -> str:
        return re.sub(r"{(\w+)(?::path)?}", lambda name: self.ids[name[1]], path)

    def call(self, route: Route, token: str | None, **options: Any) -> httpx.Response:
        method, path = route
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if method in {"POST", "PATCH"} and "json" not in options:
            options["json"] = {}
        if path.endswith("/stream"):
            options["params"] = {"seconds": 0}  # else it would not end
        return self.client.request(method, self.filled(path), headers=headers, **options)

    def code(self, route: Route, token: str | None) -> tuple[int, str]:
        answer = self.call(route, token)
        is_json = answer.headers.get("content-type", "").endswith(("/json", "+json"))
        body = answer.json() if is_json else {}
        return answer.status_code, body.get("code", "")


@pytest.fixture
def world(anonymous: httpx.Client, context: Context) -> World:
    with context.sessions.begin() as session:
        for role in Role:
            add_token(session, f"{role}", role)
            add_token(session, f"{role}-EXPIRED", role, expires_at_ms=1)
            add_token(session, f"{role}-REVOKED", role).revoked_at_ms = 1
            add_token(session, f"{role}-A", role, JobScope(labels={"team": "a"}))
            add_token(session, f"{role}-B", role, JobScope(labels={"team": "b"}))
    admin = {"Authorization": "Bearer ADMIN"}
    files = {"file": ("secretive.py", b"print(1)\n")}
    artifact = anonymous.post("/v1/artifacts", files=files, headers=admin).json()
    body = {"name": "payroll", "labels": {"team": "a", "stage": "test"}, "spec": {"artifact_id": artifact["id"]}}
    job = anonymous.post("/v1/jobs", json=body, headers=admin).json()
    wanted = {"target": "https://alerts.example.com/hook", "selector": {"jobs": ["payroll"]}}
    subscription = anonymous.post("/v1/subscriptions", json=wanted, headers=admin).json()
    with context.sessions.begin() as session:
        session.add(
            Operation(
                id="nightly",
                job_id=job["id"],
                old_attempt=1,
                kind=OperationKind.SAVEPOINT,
                status=OperationStatus.COMPLETED,
                command_status=CommandStatus.COMPLETED,
                requested_at_ms=1,
            )
        )
        for number, stage in ((1, AttemptStage.ENDED), (2, AttemptStage.ACTIVE)):
            session.add(
                Attempt(
                    job_id=job["id"],
                    number=number,
                    stage=stage,
                    cause="start",
                    parallelism=1,
                    token_sha256=token_sha256(f"{stage}"),
                    created_at_ms=1,
                    driver_state=DriverState.RUNNING,
                )
            )
    return World(
        anonymous,
        job,
        {
            "job_id": "payroll",
            "operation_id": "nightly",
            "savepoint_id": "nightly",
            "diagnostic_id": "none",
            "checkpoint_id": "1",
            "id": "none",
            "revision": "1",
            "token_id": "none",
            "secret": "NONE",
            "subscription_id": subscription["id"],
            "job": "payroll",
            "tab": "overview",
            "checkpoint": "7",
            "path": "login",
            "operator": "none",
            "state": "none",
            "name": "style.css",
            "artifact_id": artifact["id"],
        },
    )


def test_every_route_has_a_documented_rule_and_every_rule_a_route(app: FastAPI) -> None:
    assert served_routes(app) == set(RULES)
    assert len(list(user_rules())) > 25


def test_a_route_without_a_rule_is_noticed(app: FastAPI) -> None:
    app.get("/v1/jobs/{job_id}/leak")(lambda job_id: job_id)
    assert served_routes(app) - set(RULES) == {("GET", "/v1/jobs/{job_id}/leak")}


@pytest.mark.parametrize("token", [None, "wrong", "x" * 600, "A.B.C"])
def test_without_a_valid_token_no_route_of_users_or_attempts_is_open(world: World, token: str | None) -> None:
    guarded = [route for route, rule in RULES.items() if rule not in {EVERYBODY, PAGE}]
    found = {route: world.code(route, token) for route in guarded}
    assert {route: code for route, code in found.items() if code != (401, "TOKEN_INVALID")} == {}


def test_a_cookie_that_is_not_a_sessions_opens_nothing(world: World) -> None:
    for value in ("x", "ADMIN"):
        headers = {"Cookie": f"keyscale_session={value}", "X-Requested-With": "keyscale"}
        for (method, path), _ in user_rules():
            assert world.client.request(method, world.filled(path), headers=headers).status_code == 401, (method, path)


@pytest.mark.parametrize("state", ["EXPIRED", "REVOKED"])
def test_an_expired_or_revoked_token_opens_no_route(world: World, state: str) -> None:
    found = {route: world.code(route, f"ADMIN-{state}") for route, _ in user_rules()}
    assert {route: code for route, code in found.items() if code != (401, f"TOKEN_{state}")} == {}


@pytest.mark.usefixtures("on_socket")
def test_no_route_reads_a_large_body_before_it_knows_the_sender(world: World) -> None:
    address = (world.client.base_url.host, world.client.base_url.port or 0)
    methods = {"POST", "PATCH", "PUT"}
    with_body = [route for route, rule in RULES.items() if rule not in {EVERYBODY, PAGE} and route[0] in methods]
    assert len(with_body) > 12
    for method, path in with_body:
        for size in ("Content-Length: 500000", "Transfer-Encoding: chunked"):
            with socket.create_connection(address, timeout=20) as client:
                head = (
                    f"{method} {world.filled(path)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                )
                client.sendall(f"{head}{size}\r\n\r\n".encode())  # and nothing of the body
                assert client.recv(1000).startswith(b"HTTP/1.1 401 "), (method, path, size)


def test_a_lower_role_is_refused_on_every_route(world: World) -> None:
    found = {route: world.code(route, LOWER[role]) for route, role in user_rules() if role in LOWER}
    assert len(found) > 10
    assert {route: code for route, code in found.items() if code != (403, "ROLE_TOO_LOW")} == {}


def test_a_user_of_another_scope_learns_nothing_and_changes_nothing(world: World) -> None:
    for route, role in user_rules():
        token = f"{role}-B"
        named = [name for name in NOT_FOUND if f"{{{name}}}" in route[1]]
        if named:
            assert world.code(route, token) == (404, NOT_FOUND[named[0]]), route
        elif route[0] == "GET" and role is not Role.ADMIN:
            shown = world.call(route, token).text
            assert not [text for text in ("payroll", world.job["id"], world.ids["artifact_id"]) if text in shown], route
    body = {"name": "other", "labels": {"team": "b"}, "spec": {"artifact_id": world.ids["artifact_id"]}}
    refused = world.call(("POST", "/v1/jobs"), "OPERATOR-B", json=body)
    assert (refused.status_code, refused.json()["code"]) == (404, "ARTIFACT_NOT_FOUND")
    refused = world.call(("POST", "/v1/jobs"), "OPERATOR-B", json={**body, "labels": {"team": "a"}})
    assert (refused.status_code, refused.json()["code"]) == (403, "OUT_OF_SCOPE")
    assert world.call(("GET", "/v1/jobs/{job_id}"), "ADMIN").json() == world.job | {
        "status": world.call(("GET", "/v1/jobs/{job_id}"), "ADMIN").json()["status"]
    }


@pytest.mark.parametrize("suffix", ["", "-A"])
def test_the_right_role_in_the_right_scope_is_let_in_everywhere(
    world: World, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ProgramAnswer(ProgramDeclaration((), (), ()))
    monkeypatch.setattr(ProgramLoading, "load", lambda *_, **__: answer)  # Spark would take five seconds
    # Deletions come last: they take away what the other routes name.
    rules = sorted(user_rules(), key=lambda rule: rule[0][0] == "DELETE")
    for route, role in rules:
        status, code = world.code(route, f"{role}{suffix}")
        assert status < 500, route
        assert status not in {401, 403}, (route, code)
        assert code not in {"JOB_NOT_FOUND", "OPERATION_NOT_FOUND"}, route


def test_a_route_of_drivers_takes_an_attempts_token_only(world: World) -> None:
    for route in (route for route, rule in RULES.items() if rule == ATTEMPT):
        assert world.code(route, "ADMIN") == (401, "TOKEN_INVALID"), route
        if route == ("GET", "/driver/unknown"):  # only for attempts that the database has lost
            continue
        assert world.code(route, "ACTIVE")[0] != 401, route
        assert world.code(route, "ENDED")[0] != 401, route
    for route, _ in user_rules():
        assert world.code(route, "ACTIVE") == (401, "TOKEN_INVALID"), route


def test_what_is_open_to_everybody_holds_no_data(world: World, context: Context) -> None:
    context.settings.token_file.write_text("the-admins")  # of which the home's proof is made
    for route in (route for route, rule in RULES.items() if rule in {EVERYBODY, PAGE} and route[0] == "GET"):
        answer = world.call(route, None)
        assert answer.status_code in {200, 303, 307, 403, 503}, route
        assert world.job["id"] not in answer.text, route


def test_a_scope_of_names_and_one_of_labels_reach_their_jobs_only(
    world: World, context: Context, upload: Callable[..., Any]
) -> None:
    artifact = upload(b"print(2)\n", "other.py").json()["id"]
    for name, labels in (("invoices", {"team": "b", "stage": "live"}), ("refunds", {"team": "b"})):
        body = {"name": name, "labels": labels, "spec": {"artifact_id": artifact}}
        assert world.call(("POST", "/v1/jobs"), "ADMIN", json=body).status_code == 201
    cases = {
        "named": (JobScope(jobs=frozenset({"payroll"})), {"payroll"}),
        "by-id": (JobScope(jobs=frozenset({world.job["id"]})), {"payroll"}),
        "labelled": (JobScope(labels={"team": "b"}), {"invoices", "refunds"}),
        "all-labels": (JobScope(labels={"team": "b", "stage": "live"}), {"invoices"}),
        "either": (JobScope(frozenset({"payroll"}), {"stage": "live"}), {"payroll", "invoices"}),
        "none": (JobScope(labels={"team": "c"}), set()),
    }
    with context.sessions.begin() as session:
        for name, (scope, _) in cases.items():
            add_token(session, name, Role.VIEWER, scope)
    for name, (scope, expected) in cases.items():
        listed = world.call(("GET", "/v1/jobs"), name).json()["jobs"]
        assert {job["name"] for job in listed} == expected, name
        about = {event["job_id"] for event in world.call(("GET", "/v1/events"), name).json()["events"]}
        assert about == {job["id"] for job in listed}, name
        every = world.call(("GET", "/v1/jobs"), "ADMIN").json()["jobs"]
        covered = {
            job["name"] for job in every if scope.covers(job_id=job["id"], name=job["name"], labels=job["labels"])
        }
        assert covered == expected, name

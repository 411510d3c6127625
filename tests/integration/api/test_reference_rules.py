"""Bodies and queries refer to other jobs, artifacts and operations: none outside of the user's scope is read or used.

The fields come from the description of the API, so that a new one must be said to refer to something or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from keyscale.db.job_scope import JobScope
from keyscale.db.repositories import artifacts
from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.protocol.declared_settings import declared_settings
from keyscale.state.documents.claim import take_claim
from keyscale.state.documents.manifest import FileHandle, read_manifest, write_manifest
from keyscale.state.layout import location_of
from keyscale.vocabulary import Role
from tests.integration.api.conftest import add_token
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

REFERENCES = {
    "spec.artifact_id",
    "spec.libraries[]",
    "libraries[]",
    "restore_from.job",
    "restore_from.location",
    "restore_from.checkpoint_id",
    "restore_from.savepoint_id",
    "id",
    "?job",
}
WITHIN_THE_JOB = {
    "restore_from.before_ms", "revision", "?attempt", "?operator", "?state", "?to",
    "changes[].operator", "changes[].state", "checkpoint_id", "operator", "operator_uid", "state",
}  # fmt: skip
"""They refer to something of the job that the path or `restore_from.job` names."""
OF_ADMINISTRATORS = {"store_url", "jobs[]", "after"}
"""Of the request that rebuilds jobs: only administrators send it, and they have no scope."""
VALUES = {
    "changes[].key", "changes[].time_ms",
    "duration_ms", "file", "key", "kind", "last_state_age_ms_max", "lifetime_ms", "max_parallelism", "message", "name",
    "parallelism", "parameters{}", "parameters{}.secret", "secrets[]", "spark_conf{}",
    "spec.autoscaler.excluded_hours[]", "spec.parameters{}", "spec.parameters{}.secret", "spec.restart.type",
    "scope.jobs[]", "spec.secrets[]", "spec.spark_conf{}", "?actor",
    "?channel", "?created_by", "?name", "?owner", "?role",
    "selector.jobs[]", "rows", "rows_max", "statement", "target", "time_ms",
    "?after", "?at", "?dry_run", "?format", "?from_ms", "?hours", "?if-match", "?keep_objects", "?key",
    "?kind", "?limit", "?limit_bytes", "?moves_only", "?names",
    "?offset", "?parallelism", "?points", "?search", "?seconds", "?status", "?tail_bytes", "?to_ms",
}  # fmt: skip
NUMBERS = {f"spec.{each.path}" for each in declared_settings() if each.type == "integer"}
"""Settings that are numbers refer to nothing."""


def fields_of(document: dict[str, Any]) -> set[str]:
    """The names of all texts and numbers that bodies and queries have."""
    schemas = document["components"]["schemas"]

    def leaves(schema: dict[str, Any], name: str) -> Iterator[str]:
        if "$ref" in schema:
            yield from leaves(schemas[schema["$ref"].rpartition("/")[2]], name)
        for each in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
            yield from leaves(each, name)
        if "items" in schema:
            yield from leaves(schema["items"], f"{name}[]")
        for inner, value in schema.get("properties", {}).items():
            yield from leaves(value, f"{name}.{inner}".removeprefix("."))
        if isinstance(schema.get("additionalProperties"), dict):
            yield from leaves(schema["additionalProperties"], f"{name}{{}}")
        if schema.get("type") in {"string", "integer"} and "enum" not in schema:
            yield name

    found = set()
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        found |= {f"?{each['name']}" for each in operation.get("parameters", ()) if each["in"] != "path"}
        for content in operation.get("requestBody", {}).get("content", {}).values():
            found |= set(leaves(content["schema"], ""))
    return found


def test_every_field_is_known_to_refer_to_something_or_not(client: httpx.Client) -> None:
    assert (
        fields_of(client.get("/v1/openapi.json", timeout=60).json())
        == REFERENCES | WITHIN_THE_JOB | OF_ADMINISTRATORS | VALUES | NUMBERS
    )


@dataclass
class World:
    """The job `payroll` of team a and the job `shop` of team b, each with a program, a checkpoint and a savepoint."""

    client: httpx.Client
    context: Context
    jobs: dict[str, dict[str, Any]]
    snapshots: dict[str, Snapshots]

    def call(self, token: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "If-Match": "*"}
        return self.client.request(method, path, headers=headers, **options)

    def location(self, job: str, savepoint_id: str) -> str:
        snapshots = self.snapshots[job]
        return location_of(snapshots.store_url, f"{snapshots.layout.savepoint(savepoint_id)}manifest.json")

    def shown(self) -> list[Any]:
        """All that an administrator sees of `payroll`."""
        paths = ("", "/checkpoints", "/savepoints", "/revisions", "/operations", "/v1/events")
        return [self.call("ADMIN", "GET", f"/v1/jobs/payroll{path}").json() for path in paths]


@pytest.fixture
def world(anonymous: httpx.Client, context: Context) -> World:
    with context.sessions.begin() as session:
        for role in Role:
            add_token(session, f"{role}", role)
        for token, team, expires_at_ms in (
            ("A", "a", None),
            ("B", "b", None),
            ("EXPIRED", "b", 1),
            ("REVOKED", "b", None),
        ):
            made = add_token(session, token, Role.OPERATOR, JobScope(labels={"team": team}), expires_at_ms)
            made.revoked_at_ms = 1 if token == "REVOKED" else None  # noqa: S105 - a test's own
    made = World(anonymous, context, {}, {})
    for name, team in (("payroll", "a"), ("shop", "b")):
        files = {"file": (f"{name}.py", f"print({name!r})\n".encode())}
        program = made.call(team.upper(), "POST", "/v1/artifacts", files=files).json()
        body = {"name": name, "labels": {"team": team}, "spec": {"artifact_id": program["id"], "max_parallelism": 16}}
        made.jobs[name] = made.call(team.upper(), "POST", "/v1/jobs", json=body).json()
        made.snapshots[name] = Snapshots(context.sessions, made.jobs[name]["id"])
        layout = made.snapshots[name].layout
        made.snapshots[name].take(1, {f"{layout.shared}a-1-1": b"one"})
        made.snapshots[name].take(2, {f"{layout.savepoint(f'{name}-s')}files/a-1-2": b"two"}, f"{name}-s")
    return made


ROUTES = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/shop/start"),
    ("POST", "/v1/jobs/shop/clone"),
    ("PATCH", "/v1/jobs/shop"),
    ("POST", "/v1/jobs/shop/operations"),
)
RESTORING = ROUTES[:3]


def bodies(world: World) -> Iterator[tuple[str, str, str, dict[str, Any], str, str]]:
    """Yields bodies that refer to something of `payroll`: the route, the field, the body, and the same of nothing."""
    program, own = (world.jobs[name]["spec"]["artifact_id"] for name in ("payroll", "shop"))
    nothing = "0" * 32
    yield "POST", f"/v1/artifacts/{own}/check", "libraries[]", {"libraries": [program]}, program, nothing
    for method, path in ROUTES:
        new = {"name": "new", "labels": {"team": "b"}} if path in {"/v1/jobs", "/v1/jobs/shop/clone"} else {}
        needed = with_spec(artifact_id=own, **new) if path == "/v1/jobs" else new
        if not path.endswith("/start"):
            yield method, path, "spec.artifact_id", with_spec(**needed, artifact_id=program), program, nothing
            yield method, path, "spec.libraries[]", with_spec(**needed, libraries=[program]), program, nothing
        if (method, path) not in RESTORING:
            continue
        for job in ("payroll", world.jobs["payroll"]["id"]):
            for which in (
                {"checkpoint_id": 1},
                {"savepoint_id": "payroll-s"},
                {"latest": True},
                {"before_ms": 1 << 50},
            ):
                yield method, path, "restore_from.job", {**needed, "restore_from": {"job": job, **which}}, job, nothing
        there = world.location("payroll", "payroll-s")
        absent = world.location("payroll", "payroll-t")
        yield method, path, "restore_from.location", {**needed, "restore_from": {"location": there}}, there, absent


def replaced(body: Any, old: str, new: str) -> Any:
    if isinstance(body, dict):
        return {name: replaced(value, old, new) for name, value in body.items()}
    if isinstance(body, list):
        return [replaced(each, old, new) for each in body]
    return new if body == old else body


def test_what_is_outside_of_the_scope_is_refused_like_what_does_not_exist(world: World) -> None:
    before, tried = world.shown(), set()
    for method, path, field, body, there, absent in bodies(world):
        refused = world.call("B", method, path, json=body)
        unknown = world.call("B", method, path, json=replaced(body, there, absent))
        assert 400 <= refused.status_code < 500, (path, field, refused.text)
        assert refused.status_code == unknown.status_code, (path, field, refused.text, unknown.text)
        assert refused.text.replace(there, absent) == unknown.text, (path, field)
        tried.add(field)
    assert tried == REFERENCES - {"id", "?job", "restore_from.checkpoint_id", "restore_from.savepoint_id"}
    assert world.shown() == before
    assert world.call("B", "GET", "/v1/jobs/shop").json()["revision"] == 1
    assert len(world.call("ADMIN", "GET", "/v1/jobs").json()["jobs"]) == 2


@pytest.mark.parametrize(
    ("token", "code"), [("VIEWER", "ROLE_TOO_LOW"), ("EXPIRED", "TOKEN_EXPIRED"), ("REVOKED", "TOKEN_REVOKED")]
)
def test_a_token_without_the_right_to_send_a_body_learns_nothing_by_it(world: World, token: str, code: str) -> None:
    for method, path, field, body, _, _ in bodies(world):
        assert world.call(token, method, path, json=body).json()["code"] == code, (path, field)


def test_the_number_and_the_savepoint_of_a_job_are_looked_for_in_that_job_alone(world: World) -> None:
    for which in ({"checkpoint_id": 9}, {"savepoint_id": "payroll-s"}):
        for path in ("start", "clone"):
            body = {"restore_from": which} | ({"name": "new", "labels": {"team": "b"}} if path == "clone" else {})
            assert (
                world.call("B", "POST", f"/v1/jobs/shop/{path}", json=body).json()["code"] == "RESTORE_SOURCE_INVALID"
            )
    for path in ("savepoints/payroll-s", "checkpoints/1/compare?to=9"):
        assert world.call("B", "GET", f"/v1/jobs/shop/{path}").status_code == 404, path
    for method, path in (("GET", ""), ("POST", "/cancel")):
        assert world.call("B", method, f"/v1/operations/payroll-s{path}").status_code == 404, path


def test_an_operations_id_of_another_job_is_neither_used_nor_said_whose_it_is(world: World) -> None:
    for method, path, body in (
        ("POST", "stop", {"id": "payroll-s"}),
        ("POST", "checkpoint", {"id": "payroll-s"}),
        ("POST", "savepoint", {"id": "payroll-s"}),
        ("POST", "operations", {"id": "payroll-s", "kind": "CANCEL"}),
        ("POST", "rescale", {"id": "payroll-s", "parallelism": 2}),
        ("PATCH", "", {"id": "payroll-s", "spec": {"parallelism": 2}}),
        ("POST", "rollback", {"id": "payroll-s", "revision": 1}),
    ):
        refused = world.call("B", method, f"/v1/jobs/shop/{path}".rstrip("/"), json=body)
        assert refused.json()["code"] == "OPERATION_ID_TAKEN", path
        assert "payroll" not in refused.text.replace("payroll-s", ""), path


def test_an_artifact_that_another_scopes_job_uses_is_kept_without_naming_that_job(world: World) -> None:
    program = world.jobs["shop"]["spec"]["artifact_id"]
    body = {"name": "secret-plan", "labels": {"team": "a"}, "spec": {"artifact_id": program}}
    assert world.call("ADMIN", "POST", "/v1/jobs", json=body).status_code == 201
    refused = world.call("B", "DELETE", f"/v1/artifacts/{program}")
    assert (refused.json()["code"], "shop" in refused.text) == ("ARTIFACT_IN_USE", True)
    assert world.call("B", "DELETE", "/v1/jobs/shop").status_code == 204
    refused = world.call("B", "DELETE", f"/v1/artifacts/{program}")
    assert (refused.status_code, refused.json()["code"]) == (409, "ARTIFACT_IN_USE")
    assert "secret-plan" not in refused.text
    assert "secret-plan" in world.call("ADMIN", "DELETE", f"/v1/artifacts/{program}").text
    with world.context.reads() as session:
        assert artifacts.find(session, program) is not None


def test_a_savepoint_that_another_scopes_job_has_claimed_is_refused_without_naming_that_job(world: World) -> None:
    snapshots, payroll = world.snapshots["shop"], world.jobs["payroll"]["id"]
    path = f"{snapshots.layout.savepoint('shop-s')}manifest.json"
    take_claim(snapshots.store, read_manifest(snapshots.store, path), JobId(payroll))
    body = {"restore_from": {"savepoint_id": "shop-s"}}
    for token, is_named in (("B", False), ("ADMIN", True)):
        refused = world.call(token, "POST", "/v1/jobs/shop/start", json=body)
        assert (refused.json()["code"], "has claimed it" in refused.text) == ("RESTORE_SOURCE_INVALID", True)
        assert ("the job payroll" in refused.text, payroll in refused.text) == (is_named, False), token
        deletion = world.call(token, "DELETE", "/v1/jobs/shop/savepoints/shop-s", params={"dry_run": True})
        assert (deletion.json()["allowed"], "the job payroll" in deletion.text) == (False, is_named), deletion.text
        assert payroll not in deletion.text


def forged(world: World, number: int, **fields: Any) -> dict[str, Any]:
    """The job `shop` publishes a manifest of its own making; returns how to restore from it."""
    snapshots = world.snapshots["shop"]
    true = read_manifest(snapshots.store, f"{snapshots.layout.checkpoint(CheckpointId(1))}manifest.json")
    made = msgspec.structs.replace(true, checkpoint_id=CheckpointId(number), **fields)
    return {"restore_from": {"location": location_of(snapshots.store_url, write_manifest(snapshots.store, made))}}


def test_a_forged_manifest_does_not_tell_whether_another_job_has_a_file(world: World) -> None:
    payroll = world.snapshots["payroll"]
    [theirs] = payroll.store.list(payroll.layout.shared)
    for number, path in ((11, theirs.path), (12, f"{theirs.path}0"), (13, "../token"), (14, "")):
        file = FileHandle("positions", path, theirs.size_bytes, "0" * 64)
        body = forged(world, number, positions=file)
        refused = world.call("B", "POST", "/v1/jobs/shop/start", json=body).json()
        assert refused["code"] == "RESTORE_SOURCE_INVALID", refused
        assert refused["detail"].endswith(f": it has 1 file of another job: {path}")


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769, 1 << 40, 1 << 62])
def test_a_forged_manifest_gives_no_job_more_key_groups_than_a_job_may_have(world: World, max_parallelism: int) -> None:
    body = forged(world, 11, max_parallelism=max_parallelism)
    needed = {
        "name": "new",
        "labels": {"team": "b"},
        "spec": {"artifact_id": world.jobs["shop"]["spec"]["artifact_id"]},
    }
    refused = world.call("B", "POST", "/v1/jobs", json={**needed, **body})
    assert (refused.status_code, refused.json()["code"]) == (422, "RESTORE_SOURCE_INVALID"), refused.text

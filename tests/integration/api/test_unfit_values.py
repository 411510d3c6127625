"""Text that PostgreSQL and UTF-8 cannot hold, and numbers that no column can: clear answers, and nothing is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from keyscale.api.access.tokens import token_sha256
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.requests import SNAPSHOTS_MAX
from keyscale.api.lifecycle.steps import Cause, CreateAttempt, ShowStatus
from keyscale.db.models import Operation
from keyscale.db.repositories import jobs
from keyscale.jobs.protocol.storable_text import storable
from keyscale.vocabulary import CommandStatus, JobStatus
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.served_routes import api_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx
    from fastapi import FastAPI

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

UNFIT_TEXTS = ("\x00", "a\x00b", "\ud800", "a\udfffb")
PATH_PARTS = ("%00", "a%00b", "%ED%A0%80", "%FF", "%0A", "..%2F..", "%F4%90%80%80")
QUERY_PARTS = ("%00", "%ED%A0%80", "%F4%90%80%80")
"""One of each kind: the database, UTF-8 and Unicode do not have them."""


def as_json(body: Any) -> dict[str, Any]:
    """The body with escapes for what UTF-8 cannot hold, as a client would send it."""
    return {"content": json.dumps(body).encode("ascii"), "headers": {"Content-Type": "application/json"}}


def test_no_path_can_hold_a_character_that_makes_a_route_fail(app: FastAPI, client: httpx.Client) -> None:
    tried = 0
    for method, path in api_routes(app):
        if "{" not in path:
            continue
        for part in PATH_PARTS:
            pieces = [part if piece.startswith("{") else piece for piece in path.split("/")]
            body = {"parallelism": 2} if method in {"POST", "PATCH"} else None
            answer = client.request(method, "/".join(pieces), json=body)
            tried += 1
            assert answer.status_code in {404, 405, 422}, (method, path, part, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
    assert tried > 100


def test_no_query_can_hold_a_character_that_makes_a_route_fail(
    app: FastAPI, client: httpx.Client, job: dict[str, Any]
) -> None:
    documented = app.openapi()["paths"]
    for method, path in api_routes(app):
        if method != "GET" or path in {"/", "/health"} or path.startswith("/driver"):
            continue
        place = path.replace("{job_id}", job["id"]).replace("{checkpoint_id}", "1").replace("{", "").replace("}", "")
        known = [
            each["name"]
            for each in documented.get(path, {}).get("get", {}).get("parameters", [])
            if each["in"] == "query"
        ]
        for part in QUERY_PARTS:
            for name in (*known, part):  # one alone: a refused one would hide the others
                # Not read to its end: a stream of events has none.
                with client.stream("GET", f"{place}?{name}={part}") as answer:
                    assert answer.status_code in {200, 404, 422}, (path, name, part, answer.read())


def test_text_that_cannot_be_stored_is_refused_wherever_a_request_has_text(
    client: httpx.Client, job: dict[str, Any]
) -> None:
    client.post("/v1/jobs/flights/start")
    for text in UNFIT_TEXTS:
        for path, body in requests_with(text, job["spec"]["artifact_id"]):
            method = "PATCH" if path == "/v1/jobs/flights" else "POST"
            answer = client.request(method, path, **as_json(body))
            assert answer.status_code == 422, (path, body, answer.text)
            assert answer.json()["code"] in {"REQUEST_INVALID", "SPARK_CONF_NOT_ALLOWED"}


def requests_with(text: str, artifact_id: str) -> list[tuple[str, Any]]:
    """A text in every place of every request that takes one."""
    new = {"name": "x", "spec": {"artifact_id": artifact_id}}
    return [
        ("/v1/jobs", {**new, "name": text}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "artifact_id": text}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "hash_id": text}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "parameters": {"input": text}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "parameters": {text: "input"}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "spark_conf": {"spark.executor.memory": text}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "spark_conf": {text: "1g"}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "checkpoints": {text: 1}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "restart": {"type": text}}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "restart": {"type": "none", text: 1}}}),
        ("/v1/jobs", {**new, text: 1}),
        ("/v1/jobs", text),
        ("/v1/jobs/flights/start", {text: 1}),
        ("/v1/jobs/flights/stop", {"id": text}),
        ("/v1/jobs/flights/savepoint", {"id": text}),
        ("/v1/jobs/flights/operations", {"kind": "STOP", "id": text}),
        ("/v1/jobs/flights/rescale", {"parallelism": 3, "id": text}),
        *((path, {**required, **change}) for path, required in CHANGED.items() for change in changes_with(text)),
        ("/v1/jobs/flights", {"id": text}),
        ("/v1/jobs/flights/rollback", {"revision": 1, "id": text}),
        ("/v1/jobs/flights/clone", {"name": text}),
        ("/v1/jobs/flights/clone", {"name": "x", "restore_from": {"job": text, "latest": True}}),
        ("/v1/jobs/flights/start", {"restore_from": {"savepoint_id": text}}),
        ("/v1/jobs/flights/start", {"restore_from": {"location": text}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "libraries": [text]}}),
        ("/v1/jobs", {**new, "labels": {"team": text}}),
        ("/v1/jobs", {"name": "x", "spec": {**new["spec"], "secrets": [text]}}),
    ]


CHANGED: dict[str, dict[str, Any]] = {
    "/v1/jobs/flights": {},
    "/v1/jobs/flights/clone": {"name": "x"},
}


def changes_with(text: str) -> list[dict[str, Any]]:
    return [
        {"spec": {"artifact_id": text}},
        {"spec": {"libraries": [text]}},
        {"spec": {"parameters": {"input": text}}},
        {"spec": {"parameters": {text: "input"}}},
        {"spec": {"parameters": {"password": {"secret": text}}}},
        {"spec": {"secrets": [text]}},
        {"spec": {"spark_conf": {"spark.executor.memory": text}}},
        {"spec": {"restart": {"type": text}}},
        {"message": text},
        {text: 1},
        {"spec": {text: 1}},
    ]


def test_a_files_name_and_a_form_may_hold_any_text(client: httpx.Client, upload: Callable[..., Any]) -> None:
    for text in ("\x00", "job\x00.py"):
        assert upload(filename=text).status_code == 422
        assert upload(name=text).status_code == 422
        assert client.post("/ui/login", data={"token": text}).status_code == 403
    boundary = b'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x; charset=unicode_escape"}
    assert client.post("/ui/login", content=boundary, headers=kind).status_code in {403, 422}


def test_a_number_out_of_range_is_refused(client: httpx.Client, job: dict[str, Any]) -> None:
    client.post("/v1/jobs/flights/start")
    for number in (-1, 1 << 31, 1 << 63, -(1 << 63) - 1, 1 << 70, 10**400):
        refuse(client, job, number)


def refuse(client: httpx.Client, job: dict[str, Any], number: int) -> None:
    base = f"/v1/jobs/{job['id']}"
    assert client.get(f"{base}/checkpoints/{number}").status_code in {404, 422}
    assert client.get(f"{base}/logs?attempt={number}").status_code in {404, 422}
    for path in (
        f"{base}/logs?tail_bytes={number}",
        f"{base}/checkpoints?limit={number}",
        f"/v1/events?limit={number}",
    ):
        assert client.get(path).status_code in {404, 422}, path
    new = {"name": "x", "spec": {"artifact_id": job["spec"]["artifact_id"]}}
    for body in ({"parallelism": number}, {"max_parallelism": number}, {"batch_interval_ms": number}):
        assert client.post("/v1/jobs", json=with_spec(**new, **body)).status_code == 422, body
    assert client.post(f"{base}/rescale", json={"parallelism": number}).status_code == 422
    body = {"name": "x", "spec": {"parallelism": number}}
    assert client.post(f"{base}/clone", json=body).status_code == 422
    assert client.post(f"{base}/rollback", json={"revision": number}).status_code in {404, 422}


def test_every_number_of_a_request_has_bounds(app: FastAPI) -> None:
    """Those of a parallelism are checked with those of its job, by an error of their own."""
    document = app.openapi()

    def unbounded(schema: Any, place: str) -> Iterator[str]:
        if isinstance(schema, list):
            for part in schema:
                yield from unbounded(part, place)
        elif isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            yield from unbounded(document["components"]["schemas"][name], place)
        elif isinstance(schema, dict):
            is_number = schema.get("type") in ("integer", "number")
            if is_number and not ({"minimum", "exclusiveMinimum"} & schema.keys() and "maximum" in schema):
                yield place
            for name, part in schema.items():
                yield from unbounded(part, f"{place} {name}")

    found, seen = [], 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            asked = [each["schema"] for each in operation.get("parameters", [])]
            asked.append(operation.get("requestBody", {}).get("content", {}))
            seen += len(asked)
            found += unbounded(asked, f"{method} {path}")
    assert seen > 100
    assert [place for place in found if "parallelism" not in place] == []


@pytest.fixture
def two_running_jobs(client: httpx.Client, context: Context, job: dict[str, Any]) -> tuple[str, str]:
    """Two jobs in a status in which they take commands."""
    client.post("/v1/jobs", json=with_spec(name="other", artifact_id=job["spec"]["artifact_id"], max_parallelism=16))
    for name in ("flights", "other"):
        client.post(f"/v1/jobs/{name}/start")
        with context.sessions.begin() as session:
            found = jobs.find(session, name, lock=True)
            assert found is not None
            for step in (CreateAttempt(found.revision, Cause.START), ShowStatus(JobStatus.RUNNING)):
                apply(step, JobTransaction(session, found))
    return "flights", "other"


def test_an_operation_id_on_two_jobs_at_once_is_taken_by_one(
    client: httpx.Client, context: Context, two_running_jobs: tuple[str, str]
) -> None:
    def send(name: str, number: int) -> int:
        return client.post(f"/v1/jobs/{name}/checkpoint", json={"id": f"id-{number}"}).status_code

    with ThreadPoolExecutor(4) as pool:
        for number in range(SNAPSHOTS_MAX):  # none of them ends, as no driver runs
            statuses = list(pool.map(send, two_running_jobs * 2, [number] * 4))
            assert sorted(statuses) == [202, 202, 409, 409]
            with context.sessions.begin() as session:  # only a few of a job may wait for their results
                session.execute(update(Operation).values(command_status=CommandStatus.FAILED))


def test_an_id_used_for_a_rescale_and_a_checkpoint_at_once_names_one_of_them(
    client: httpx.Client, two_running_jobs: tuple[str, str]
) -> None:
    flights, other = two_running_jobs
    requests = {
        f"/v1/jobs/{flights}/checkpoint": {"id": "mine"},
        f"/v1/jobs/{other}/rescale": {"parallelism": 3, "id": "mine"},
    }
    with ThreadPoolExecutor(2) as pool:
        statuses = list(pool.map(lambda path: client.post(path, json=requests[path]).status_code, requests))
    assert sorted(statuses) == [202, 409]


def test_a_failure_whose_text_cannot_be_stored_is_still_shown(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).create_attempt(found.revision, Cause.START).token_sha256 = token_sha256("driver")
    headers = {"Authorization": "Bearer driver", "Content-Type": "application/json"}
    for text in UNFIT_TEXTS:
        for path, message in messages_with(text).items():
            answer = client.post(f"/driver/{path}", content=json.dumps(message).encode("ascii"), headers=headers)
            assert answer.is_success, (path, answer.text)
        for name in ("savepoint_id", "external_path"):  # a failed checkpoint has neither
            false = {**messages_with(text)["checkpoints"], name: text}
            answer = client.post("/driver/checkpoints", content=json.dumps(false).encode("ascii"), headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "REPORT_INVALID")
        shown = client.get("/v1/jobs/flights").json()["status"]["attempt"]["failure"]
        assert shown["code"] == "JOB_SCRIPT_FAILED"
        assert shown["message"] == f"ValueError: plate {storable(text)}"
        assert shown["traceback"] == f"line 1\n{storable(text)}"
        [checkpoint] = client.get("/v1/jobs/flights/checkpoints").json()["history"]
        assert checkpoint["failure_message"] == f"no space {storable(text)}"


def messages_with(text: str) -> dict[str, dict[str, Any]]:
    """A text in every place of a driver's messages that takes one."""
    failure = {"code": "JOB_SCRIPT_FAILED", "message": f"ValueError: plate {text}", "traceback": f"line 1\n{text}"}
    subtask = {"operator_uid": text, "index": 0, "key_group_start": 0, "key_group_end": 7, "status": "FAILED"}
    return {
        "heartbeat": {
            "state": "FAILED",
            "failure": failure,
            "metrics": {
                "last_failure": failure,
                "clean_up": {"failure": failure},
                "sink_outage": {"uid": text, "since_ms": 1, "reason": text},
                "operators": [{"uid": text}],
            },
            "results": [{"command_id": text, "status": "FAILED", "location": text, "failure": failure}],
        },
        "attach": {"pid": 1, "host": text, "spark_ui_url": text},
        "checkpoints": {
            "checkpoint_id": 1,
            "status": "FAILED",
            "trigger_timestamp": 1,
            "failure_message": f"no space {text}",
            "subtasks": [subtask],
        },
    }

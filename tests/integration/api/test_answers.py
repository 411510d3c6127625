"""Answers that say what a client needs to go on, and settings that are not taken for others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.repositories import jobs
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.served_routes import api_routes
from tests.support.error_trees import error_classes
from tests.support.repository import ROOT

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real


def test_a_method_that_a_path_does_not_support_is_answered_with_the_supported_methods(client: httpx.Client) -> None:
    for path, allowed in (
        ("/v1/jobs", "GET, POST"),
        ("/v1/jobs/flights", "DELETE, GET, PATCH"),
        ("/v1/jobs/flights/checkpoints", "GET"),
        ("/v1/events", "GET"),
        ("/health", "GET"),
        ("/driver/heartbeat", "POST"),
        ("/ui/login", "GET, POST"),
    ):
        answer = client.request("PUT", path)
        assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED"), path
        assert answer.headers["allow"] == allowed, path


@pytest.mark.parametrize(
    "body",
    [
        {"checkpoints": {"intervall_ms": 5000}},
        {"checkpoints": {"min_pause_ms": True}},
        {"checkpoints": {"retained_count": False}},
        {"restart": {"type": "fixed-delay", "attempts": True}},
        {"restart": {"type": "fixed-delay", "attempts": 3, "delay": 1}},
        {"parallelism": True},
        {"max_parallelism": True},
        {"batch_interval_ms": False},
    ],
)
def test_a_misspelt_setting_or_a_truth_value_for_a_number_is_refused(
    client: httpx.Client, job: dict[str, Any], body: dict[str, Any]
) -> None:
    answer = client.post("/v1/jobs", json=with_spec(name="x", artifact_id=job["spec"]["artifact_id"], **body))
    assert (answer.status_code, answer.json()["code"]) == (422, "REQUEST_INVALID")
    [field] = body
    assert answer.json()["errors"][0]["field"].startswith(f"body.spec.{field}")


def test_a_rescale_to_true_is_refused(client: httpx.Client, job: dict[str, Any]) -> None:
    answer = client.post(f"/v1/jobs/{job['id']}/rescale", json={"parallelism": True})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.parallelism")


def test_settings_of_checkpoints_are_kept_with_the_defaults_filled_in(
    client: httpx.Client, job: dict[str, Any]
) -> None:
    body = {"name": "x", "spec": {"artifact_id": job["spec"]["artifact_id"], "checkpoints": {"interval_ms": 5000}}}
    made = client.post("/v1/jobs", json=body).json()["spec"]["checkpoints"]
    assert (made["interval_ms"], made["retained_count"]) == (5000, 3)


def test_a_stop_that_drains_differs_from_a_plain_stop(client: httpx.Client, job: dict[str, Any]) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    assert client.post("/v1/jobs/flights/stop", json={"id": "mine"}).status_code == 202
    other = client.post("/v1/jobs/flights/drain", json={"id": "mine"})
    assert (other.status_code, other.json()["code"]) == (409, "OPERATION_ID_TAKEN")
    assert client.post("/v1/jobs/flights/stop", json={"id": "mine"}).status_code == 202


def test_a_log_on_another_host_is_not_taken_for_an_empty_one(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        attempt = JobTransaction(session, found).create_attempt(found.revision, Cause.START)
        attempt.launched_on, attempt.launched_at_ms = context.launcher.place, 1
    assert client.get("/v1/jobs/flights/logs").json()["text"] == "", "the driver has not written yet"
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).attempt(1).launched_on = "elsewhere"
    answer = client.get("/v1/jobs/flights/logs")
    assert (answer.status_code, answer.json()["code"]) == (404, "LOG_NOT_HERE")
    assert "elsewhere" in answer.json()["detail"]
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        transaction = JobTransaction(session, found)
        transaction.attempt(1).launched_on = context.launcher.place
        transaction.end_attempt(1)
    answer = client.get("/v1/jobs/flights/logs")
    assert (answer.status_code, answer.json()["code"]) == (404, "LOG_NOT_HERE"), "it was deleted"


def test_every_page_and_path_that_an_error_points_to_exists(app: FastAPI) -> None:
    known = {re.sub(r"{\w+}", "{}", f"{method} {path}") for method, path in api_routes(app)}
    pages, paths = set(), set()
    for error in error_classes():
        advice = error.advice  # type: ignore[attr-defined]
        pages |= set(re.findall(r"[\w/-]+\.md\b", advice))
        paths |= {re.sub(r"{\w+}", "{}", path) for path in re.findall(r"(?:GET|POST|DELETE) /[\w/{}.]*[\w}]", advice)}
    assert pages
    assert {page for page in pages if not (ROOT / page).is_file()} == set()
    assert len(paths) > 5
    assert paths - known == set()

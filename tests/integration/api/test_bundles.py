"""A support bundle has all that is known of a job, and leaves out its secrets."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.repositories import jobs
from keyscale.jobs.protocol.messages import DriverMetrics, Failure

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.real

SECRET = "of-the-orders"  # noqa: S105 - the value that tests give it
LISTS = ("attempts", "exceptions", "operations", "checkpoints", "events", "series", "platform")


@pytest.fixture
def indiscreet(client: httpx.Client, context: Context, settings: Settings, job: dict[str, Any]) -> str:
    """A job whose driver has told its secret everywhere, past the masks of driver and control plane."""
    spec = {
        "artifact_id": job["spec"]["artifact_id"],
        "secrets": ["ORDERS"],
        "parameters": {"database": "postgres://me:sesame-opens@host/db"},
    }
    job_id = str(client.post("/v1/jobs", json={"name": "indiscreet", "spec": spec}).json()["id"])
    with context.sessions.begin() as session:
        found = jobs.lock(session, job_id)
        assert found is not None
        attempt = JobTransaction(session, found).create_attempt(found.revision, Cause.START)
        attempt.launched_on, attempt.launched_at_ms = context.launcher.place, 1
        told = Failure(code="JOB_FUNCTION_FAILED", message=f"refused by {SECRET}", traceback=f"in {SECRET}")
        attempt.metrics = DriverMetrics(batches=3, last_failure=told).model_dump(mode="json")
    directory = settings.home / "runs" / job_id / "1"
    directory.mkdir(parents=True)
    (directory / "driver.log").write_text(f"first\nthe key is {SECRET}\nlast\n")
    return job_id


def unpacked(content: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()}


def test_a_bundle_has_each_part_and_no_secret(client: httpx.Client, indiscreet: str) -> None:
    answer = client.get(f"/v1/jobs/{indiscreet}/bundle")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert 'filename="indiscreet-' in answer.headers["content-disposition"]
    found = unpacked(answer.content)
    assert set(found) == {f"{name}.json" for name in (*LISTS, "job", "versions", "missing")} | {"log.txt"}
    assert list(json.loads(found["missing.json"])) == ["threads"], "no driver is attached"
    for name, text in found.items():
        for secret in (SECRET, "sesame"):
            assert secret not in text, name
    shown = json.loads(found["job.json"])
    assert shown["status"]["attempt"]["metrics"]["last_failure"]["message"] == "refused by *****"
    assert "me:*****@host" in shown["spec"]["parameters"]["database"]
    assert found["log.txt"] == "first\nthe key is *****\nlast\n"


def test_a_bundle_names_what_cannot_be_read(client: httpx.Client, job: dict[str, Any]) -> None:
    found = unpacked(client.get(f"/v1/jobs/{job['name']}/bundle").content)
    assert list(json.loads(found["missing.json"])) == ["threads", "log"], "the job has never been started"
    assert "log.txt" not in found

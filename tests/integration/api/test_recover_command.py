"""The command that rebuilds jobs, on a control plane of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from keyscale.api.launching.job_records import keep_record
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.recorded_definition import record_of
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.models import DeletedJob
from keyscale.db.repositories import artifacts, jobs
from keyscale.identifiers import Attempt, JobId
from keyscale.state.layout import Layout
from keyscale.state.objects.opening import open_store
from tests.support.control_plane.command_line import done, keyscale

if TYPE_CHECKING:
    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

STRANGER = "f" * 32
NO_RECORD = "the store has no record of a job"


@pytest.fixture
def lost(platform: Platform) -> str:
    """The id of a job that the store knows, and the database no longer."""
    job_id = platform.create_job("flights")
    with platform.sessions.begin() as session:
        job = jobs.lock(session, job_id)
        assert job is not None
        transaction = JobTransaction(session, job)
        attempt = transaction.create_attempt(1, Cause.START)
        record = record_of(session, job, transaction.revision(1), attempt)
        program = b"".join(artifacts.read_bytes(session, record.artifacts[0].sha256))
        keep_record(job.store_url, record, lambda _: [program])
        transaction.end_attempt(attempt.number)
        attempt.reaped = True
    done(keyscale(platform, "jobs", "delete", "flights", "--keep-objects"))
    with platform.sessions.begin() as session:
        session.execute(delete(DeletedJob))
    return job_id


def test_jobs_are_rebuilt_and_refused_ones_make_it_fail(platform: Platform, lost: str) -> None:
    store_url = platform.context.settings.store_url
    planned = done(keyscale(platform, "recover", "--store", store_url, "--dry-run"))
    assert "would be recovered" in planned.stdout
    assert platform.api.get("/v1/jobs")["jobs"] == []
    elsewhere = done(keyscale(platform, "recover", "--store", f"{store_url}-elsewhere", "--dry-run"))
    assert (NO_RECORD in elsewhere.stdout, NO_RECORD in planned.stdout) == (True, False)
    open_store(store_url).put(Layout(JobId(STRANGER)).record(Attempt(1)), b"{}")
    answer = keyscale(platform, "recover", "--json")
    assert answer.exit_code == 1
    assert {job["id"]: job["outcome"] for job in answer.json["jobs"]} == {lost: "RECOVERED", STRANGER: "REFUSED"}
    refused = keyscale(platform, "recover", "--job", STRANGER)
    assert (refused.exit_code, "JOB_RECORD_INVALID" in refused.stdout) == (1, True)
    assert "known" in done(keyscale(platform, "recover", "--job", lost)).stdout
    assert platform.api.get("/v1/jobs/flights")["status"]["state"] == "STOPPED"

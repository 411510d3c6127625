"""A job's whole state on an S3 store: batches, checkpoints, savepoints, rescales, garbage collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.state.log.recovery import choose_base
from keyscale.state.objects.opening import open_store
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.support.servers.s3_server import running_s3_server
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real
def test_state_lives_on_s3_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with running_s3_server() as server:
        monkeypatch.setenv("KEYSCALE_S3_ENDPOINT", server.endpoint_url)
        job = StateJob(open_store(f"s3://{server.new_bucket()}/root"), tmp_path / "local")
        job.start(2)
        job.run_batch(dict.fromkeys(range(25000), 1))
        job.checkpoint()
        job.run_batch(dict.fromkeys(range(0, 25000, 50), 2))
        savepoint, _ = job.checkpoint("mine")
        job.run_batch({3: 3})
        job.local_root = tmp_path / "another host"
        base = choose_base(job.store, job.job_id, savepoint.path)
        assert base.manifest == savepoint
        job.start(3, savepoint.path)
        assert job.dump() == job.reference
        job.checkpoint()
        delete_planned(
            job.store, plan_deletion(gather_facts(job.store, job.job_id, 4_000_000_000_000), RetentionPolicy(1))
        )
        job.local_root = tmp_path / "a third host"
        assert job.dump() == job.reference

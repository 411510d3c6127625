"""The local files of removed attempts and of deleted jobs are deleted, except those of what still runs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

import keyscale.api.launching.launcher
from keyscale.api.launching import supervisor
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.maintenance.run_removal import RemovedRuns, RunRemoval
from keyscale.db.repositories import history, jobs
from keyscale.directory_tree import remove_tree
from tests.support.deep_directories import deepened
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real


@pytest.fixture
def removal(context: Context) -> RunRemoval:
    return RunRemoval(context.sessions, context.launcher)


def add_attempts(context: Context, job_id: str, count: int) -> None:
    """Adds attempts that have ended, each with a log of 100 bytes."""
    for _ in range(count):
        with context.sessions.begin() as session:
            job = jobs.lock(session, job_id)
            assert job is not None
            transaction = JobTransaction(session, job)
            attempt = transaction.create_attempt(job.revision, Cause.START)
            transaction.end_attempt(attempt.number)
            attempt.reaped = True
        context.launcher.prepare(job_id, attempt.number)
        context.launcher.clean_up(job_id, attempt.number)
        (directory(context, job_id) / str(attempt.number) / "driver.log").write_bytes(b"x" * 100)


def directory(context: Context, job_id: str) -> Path:
    return context.settings.runs_directory / job_id


def runs(context: Context, job_id: str) -> set[str]:
    return {path.name for path in directory(context, job_id).iterdir()}


def reports(client: httpx.Client) -> list[dict[str, Any]]:
    return [one["details"] for one in client.get("/v1/events").json()["events"] if one["kind"] == "RUNS_REMOVED"]


def test_the_runs_of_removed_attempts_go_and_the_runs_of_kept_attempts_stay(
    context: Context, client: httpx.Client, job: dict[str, Any], removal: RunRemoval
) -> None:
    add_attempts(context, job["id"], 3)
    (directory(context, job["id"]) / "state").mkdir()
    assert removal.run() == RemovedRuns(0, 0, 0)
    with context.sessions.begin() as session:
        assert history.remove_attempts(session, job["id"], keep=1, some=10) == 2
    assert removal.run() == RemovedRuns(jobs=0, attempts=2, size_bytes=200)
    assert runs(context, job["id"]) == {"3", "state"}
    [report] = reports(client)
    assert report == {"jobs": 0, "attempts": 2, "size_bytes": 200, "host": context.launcher.host}


def test_the_local_files_of_a_job_that_another_replica_has_deleted_go(
    context: Context, client: httpx.Client, job: dict[str, Any], removal: RunRemoval, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_attempts(context, job["id"], 2)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(context.launcher, "forget", lambda _: None)
        assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
    assert directory(context, job["id"]).exists()
    assert removal.run() == RemovedRuns(jobs=1, attempts=0, size_bytes=200)
    assert not directory(context, job["id"]).exists()
    assert [report["jobs"] for report in reports(client)] == [1]


@contextmanager
def unknown_run(context: Context) -> Iterator[Path]:
    """A run that goes on, of a job that the database does not know, as after a restore from a backup."""
    context.launcher.prepare("unknown", 7)
    run = directory(context, "unknown") / "7"
    command = [sys.executable, "-I", supervisor.__file__, str(run), "/bin/sleep", "600"]
    process = subprocess.Popen(command, env={"KEYSCALE_WORK_DIR": str(run / "work")})
    try:
        wait_until(lambda: context.launcher.has_supervisor("unknown", 7), what="the supervisor")
        yield run
    finally:
        context.launcher.kill("unknown", 7)
        process.wait()


def test_a_run_that_the_database_has_lost_is_killed_and_reported(
    context: Context, client: httpx.Client, removal: RunRemoval
) -> None:
    with unknown_run(context) as run:
        removal.run()
        wait_until(lambda: not context.launcher.has_supervisor("unknown", 7), what="the end of the run")
    [event] = [each for each in client.get("/v1/events").json()["events"] if each["kind"] == "LOST_RUN_KILLED"]
    assert event["details"] == {"job": "unknown", "attempt": 7, "host": context.launcher.host}
    removal.run()
    assert not run.exists()


def test_a_run_that_another_database_has_started_goes_on(context: Context, removal: RunRemoval) -> None:
    """As after a start with the address of a wrong database."""
    with unknown_run(context) as run:
        with context.sessions.begin() as session:
            session.execute(text("UPDATE replica_key SET value = 'another'"))
        assert removal.run() == RemovedRuns(0, 0, 0)
        assert context.launcher.has_supervisor("unknown", 7)
        assert run.exists()


def test_directories_of_plans_are_no_runs(context: Context, removal: RunRemoval) -> None:
    plan = context.settings.runs_directory / "plans" / "0123"
    plan.mkdir(parents=True)
    assert removal.run() == RemovedRuns(0, 0, 0)
    assert plan.exists()
    context.programs.sweep()  # as a control plane that starts does
    assert not plan.exists()


def test_a_run_that_cannot_be_removed_keeps_no_other(
    context: Context, job: dict[str, Any], removal: RunRemoval, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("first", "second", "third"):
        context.launcher.prepare(job_id, 1)
    add_attempts(context, job["id"], 3)
    with context.sessions.begin() as session:
        assert history.remove_attempts(session, job["id"], keep=1, some=10) == 2
    refused = {str(directory(context, "second")), str(directory(context, job["id"]) / "1")}

    def refusing(path: Path) -> int:
        if str(path) in refused:
            raise RecursionError
        return remove_tree(path)

    monkeypatch.setattr(keyscale.api.launching.launcher, "remove_tree", refusing)
    removed = removal.run()
    assert (removed.jobs, removed.attempts) == (2, 1)
    assert [directory(context, job_id).exists() for job_id in ("first", "second", "third")] == [False, True, False]
    refused.clear()
    removed = removal.run()
    assert (removed.jobs, removed.attempts) == (1, 1)


def test_directories_of_a_job_may_be_deeper_than_a_path_is_long(
    context: Context, client: httpx.Client, job: dict[str, Any], removal: RunRemoval
) -> None:
    context.launcher.prepare("gone", 1)
    add_attempts(context, job["id"], 1)
    works = [directory(context, job_id) / "1" / "work" for job_id in ("gone", job["id"])]
    with deepened(*works):
        context.launcher.clean_up(job["id"], 1)
        assert {path.name for path in works[1].parent.iterdir()} == {"driver.log"}
        assert removal.run().jobs == 1
        assert not works[0].exists()
    plan = context.settings.runs_directory / "plans" / "0123"
    with deepened(directory(context, job["id"]), plan):
        assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
        assert not directory(context, job["id"]).exists()
        context.programs.sweep()  # as a control plane that starts does
        assert not plan.exists()

"""State outlives its program: upgraded, taken back by itself, and cloned beside the running job; every count exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.client.request_paths import job_path
from tests.support.control_plane.command_line import done, keyscale
from tests.support.control_plane.counts_job import RAISES, SECONDS, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_an_upgrade_survives_its_control_plane_and_programs_that_raise_are_taken_back_or_fail(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    raising = start_a_script_that_raises(control_plane)
    job = counting(control_plane, tmp_path, parallelism=2, max_parallelism=16)
    assert_it_failed_with_the_scripts_message(control_plane, raising)

    upgrade = job.update(2)
    control_plane.kill()
    control_plane.start_again()
    assert job.ended(upgrade)["status"] == "COMPLETED", "the next control plane carries the change on"
    job.deliver()
    job.wait_for_all()
    newest = [row["version"] for row in job.rows() if row["count"] == job.files]
    assert set(newest) == {2}

    failed = job.ended(job.update(RAISES))
    assert (failed["status"], "version 3 counts nothing" in failed["failure"]["message"]) == ("ROLLED_BACK", True)
    job.deliver()
    job.wait_for_all()
    shown = job.show()
    assert (shown["status"]["state"], shown["revision"]) == ("RUNNING", 2)


def start_a_script_that_raises(control_plane: RunningControlPlane) -> str:
    """Starts a job whose script raises at once; returns the job's name."""
    script = b'raise ValueError("there is no such topic")\n'
    artifact = control_plane.api.upload("/v1/artifacts", filename="raises.py", content=script)
    name = str(control_plane.api.post("/v1/jobs", {"name": "raises", "spec": {"artifact_id": artifact["id"]}})["name"])
    control_plane.api.post(job_path(name, "start"))
    return name


def assert_it_failed_with_the_scripts_message(control_plane: RunningControlPlane, name: str) -> None:
    failed = wait_until(lambda: has_failed(control_plane, name), SECONDS, what="the job to fail", poll=0.5)
    assert failed["status"]["failure"]["code"]
    assert "there is no such topic" in f"{failed['status']['failure']}"
    assert keyscale(control_plane, "jobs", "show", name).exit_code == 0
    assert keyscale(control_plane, "jobs", "delete", name).exit_code == 0


def has_failed(control_plane: RunningControlPlane, name: str) -> Any:
    shown = control_plane.api.get(job_path(name))
    return shown if shown["status"]["state"] == "FAILED" else None


@pytest.mark.exhaustive
def test_a_clone_runs_beside_its_job_from_a_savepoint_and_both_are_exact(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    job = counting(control_plane, tmp_path, parallelism=2, max_parallelism=16, checkpoints={"interval_ms": 2000})
    done(keyscale(control_plane, "savepoints", "trigger", "counts", "--id", "fork"))
    forked_at = job.files
    options = ("--from", "fork", "-p", "3", "-P", f"output={tmp_path / 'clone'}", "--start")
    done(keyscale(control_plane, "jobs", "clone", "counts", "copy", *options))
    job.deliver()
    job.wait_for_all()
    job.wait_for_all(tmp_path / "clone", after=forked_at)
    shown = [(each["status"]["state"], each["spec"]["parallelism"]) for each in map(job.show, ("counts", "copy"))]
    assert shown == [("RUNNING", 2), ("RUNNING", 3)]


@pytest.mark.exhaustive
def test_a_running_job_follows_new_settings_without_another_driver(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    job = counting(control_plane, tmp_path, parallelism=2, max_parallelism=16, checkpoints={"interval_ms": 2000})
    job.wait_for_all()
    attempt = job.show()["status"]["attempt"]["number"]
    settings = {"checkpoints": {"interval_ms": 60_000}, "restart": {"type": "none"}, "batch_interval_ms": 100}
    told = control_plane.api.patch(job_path("counts"), {"spec": settings}, if_match='"1"')
    assert (told["status"], told["to_revision"]) == ("COMPLETED", 2)
    wait_until(lambda: follows(control_plane, 2), SECONDS, what="the driver that follows the revision", poll=0.5)
    job.deliver()
    job.wait_for_all()
    shown_last = job.show()
    assert (shown_last["status"]["state"], shown_last["status"]["attempt"]["number"]) == ("RUNNING", attempt)
    control_plane.api.post(job_path("counts", "cancel"))


def counting(platform: RunningControlPlane, directory: Path, **specification: Any) -> CountsJob:
    """Starts the first version of the program, and waits for its first counts."""
    job = CountsJob(lambda: platform.api, directory)
    job.create(1, **specification)
    job.act("start")
    job.deliver()
    job.wait_for_all()
    return job


def follows(platform: RunningControlPlane, revision: int) -> bool:
    """Whether the driver says that it follows a revision's settings."""
    log = platform.api.get(job_path("counts", "logs"), tail_bytes=1 << 20)["text"]
    return f"the job follows the settings of revision {revision}" in log


def let_fail(platform: RunningControlPlane, job: CountsJob) -> None:
    """Gives a running job the program that fails on every batch, so that it can take no savepoint any more."""
    job.act("cancel")
    assert keyscale(platform, "jobs", "wait", "counts", "--for", "STOPPED").exit_code == 0
    program = {"artifact_id": job.program(RAISES)}
    platform.api.patch(job_path("counts"), {"spec": program}, if_match=f'"{job.show()["revision"]}"')
    job.act("start")
    job.deliver()
    wait_until(lambda: job.show()["status"]["failure"], SECONDS, what="a failure of the third version")


@pytest.mark.exhaustive
def test_a_running_job_goes_back_to_a_revision_with_its_savepoint_and_begins_again_without_state(
    tmp_path: Path,
) -> None:
    with running_control_plane() as platform:
        job = counting(platform, tmp_path, parallelism=2, checkpoints={"interval_ms": 2000})
        assert job.ended(job.update(2))["status"] == "COMPLETED"
        job.deliver()
        job.wait_for_all()
        assert {row["version"] for row in job.rows()} == {1, 2}

        back = job.act("rollback", {"revision": 1})
        assert job.ended(back["id"])["status"] == "COMPLETED"
        job.deliver()
        job.wait_for_all()
        assert {row["version"] for row in job.rows()} == {1}, "what the second version has counted is counted again"

        stateless = {"spec": {"artifact_id": job.program(2)}, "upgrade_mode": "STATELESS"}
        change = platform.api.patch(job_path("counts"), stateless, if_match='"1"')
        assert job.ended(change["id"])["status"] == "COMPLETED"
        job.deliver()
        job.wait_for_all()
        assert {row["version"] for row in job.rows()} == {2}, "all input is read again"
        assert job.show()["status"]["state"] == "RUNNING"
        job.act("cancel")


@pytest.mark.exhaustive
def test_a_program_that_fails_on_its_first_record_is_taken_back_although_timers_are_due_before_it(
    tmp_path: Path,
) -> None:
    with running_control_plane() as platform:
        job = counting(platform, tmp_path, tick_ms=300, parallelism=2, checkpoints={"interval_ms": 2000})
        before = job.show()["status"]["attempt"]["metrics"]["batches"]
        wait_until(
            lambda: job.show()["status"]["attempt"]["metrics"]["batches"] > before + 2, what="batches of timers alone"
        )

        failed = job.ended(job.update(RAISES))
        assert (failed["status"], failed["failure"]["code"]) == ("ROLLED_BACK", "JOB_FUNCTION_FAILED")
        job.deliver()
        job.wait_for_all()
        back = job.show()["status"]["attempt"]
        assert failed["downtime_ms"] == back["first_commit_at_ms"] - failed["steps"][0]["started_at_ms"]
        job.act("cancel")


@pytest.mark.exhaustive
def test_a_job_that_fails_on_every_batch_and_can_take_no_savepoint_is_upgraded_from_its_last_state(
    tmp_path: Path,
) -> None:
    with running_control_plane() as platform:
        restart = {"type": "fixed-delay", "attempts": 100_000, "delay_ms": 200}
        job = counting(platform, tmp_path, parallelism=2, checkpoints={"interval_ms": 2000}, restart=restart)
        taken = keyscale(platform, "checkpoints", "trigger", "counts")
        assert taken.exit_code == 0, taken.stderr
        let_fail(platform, job)

        job.program(2)
        options = ("--file", str(job.directory / "counts_2.py"), "--upgrade-mode", "last-state")
        old = keyscale(platform, "jobs", "update", "counts", *options, "--last-state-age-ms-max", "1")
        assert (old.exit_code, "LAST_STATE_TOO_OLD" in old.stderr) == (1, True), old.stderr
        done = keyscale(platform, "jobs", "update", "counts", *options)
        assert done.exit_code == 0, done.stderr
        job.deliver()
        job.wait_for_all()
        assert {row["version"] for row in job.rows() if row["count"] > 1} == {2}
        change = platform.api.get(job_path("counts", "operations"), kind="UPGRADE")["operations"][0]
        assert (change["status"], change["upgrade_mode"]) == ("COMPLETED", "LAST_STATE")
        assert platform.api.get(job_path("counts", "savepoints"))["savepoints"] == []
        job.act("cancel")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("back_to", "state", "versions"), [(2, "CURRENT", {1, 2}), (1, "SAVEPOINT", {1})])
def test_a_job_that_fails_on_every_batch_goes_back_to_a_revision_that_did_not(
    tmp_path: Path, back_to: int, state: str, versions: set[int]
) -> None:
    with running_control_plane() as platform:
        restart = {"type": "fixed-delay", "attempts": 100_000, "delay_ms": 200}
        job = counting(platform, tmp_path, parallelism=2, checkpoints={"interval_ms": 2000}, restart=restart)
        assert job.ended(job.update(2))["status"] == "COMPLETED"
        job.deliver()
        job.wait_for_all()
        let_fail(platform, job)

        back = job.act("rollback", {"revision": back_to, "state": state, "plan_first": False})
        ended = job.ended(back["id"])
        assert (ended["status"], ended["upgrade_mode"]) == ("COMPLETED", "LAST_STATE")
        job.deliver()
        job.wait_for_all()
        assert {row["version"] for row in job.rows()} == versions
        assert job.show()["status"]["state"] == "RUNNING"
        job.act("cancel")

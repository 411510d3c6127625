"""The README's blocks work when they are pasted as they are, and its job counts on after the classic failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.client.request_paths import job_path
from keyscale.vocabulary import DiagnosticKind
from tests.support.control_plane.command_line import done, follow, keyscale, refused

if TYPE_CHECKING:
    from tests.support.control_plane.readme_job import ReadmeJob
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200), pytest.mark.xdist_group("readme")]


def test_the_readmes_blocks_work_and_its_job_counts_on_after_a_rescale_a_stop_and_a_crash_before_a_checkpoint(
    readme_job: ReadmeJob,
) -> None:
    control_plane = readme_job.control_plane
    assert "COMPLETED: 2 -> 4" in readme_job.printed
    assert '{"user":"ada","visits":1}' in readme_job.printed
    readme_job.ensure_running()
    readme_job.click()
    assert_operators_add_up(readme_job)
    assert_the_stacks_show_driver_worker_and_jvm(readme_job)

    checkpoint, attempt = readme_job.newest_checkpoint(), readme_job.show()["status"]["attempt"]["number"]
    readme_job.click()
    kill(readme_job)
    assert readme_job.newest_checkpoint() == checkpoint, "what was counted last is in no checkpoint"
    readme_job.click()
    assert readme_job.visits() == list(range(1, readme_job.clicks + 1))
    assert readme_job.show()["status"]["attempt"]["number"] == attempt + 1
    assert "ATTEMPT_REPLACED" in kinds_of_events(readme_job)

    for arguments in (("checkpoints", "list", "visits"), ("logs", "visits"), ("jobs", "list")):
        done(keyscale(control_plane, *arguments))
    follow_the_advice_up_to_the_stop(control_plane)


def assert_operators_add_up(job: ReadmeJob) -> None:
    """Files that subtasks share after a rescale count once in an operator's size, as in the checkpoint's."""
    done(keyscale(job.control_plane, "checkpoints", "trigger", "visits"))
    checkpoint = job.control_plane.api.get(job_path(job.id, "checkpoints", job.newest_checkpoint()))
    assert sum(operator["state_size"] for operator in checkpoint["operators"]) == checkpoint["state_size"] > 0


def assert_the_stacks_show_driver_worker_and_jvm(job: ReadmeJob) -> None:
    looks = job.control_plane.api.diagnostics
    found = {
        part.name: part.text
        for part in looks.wait(job.id, looks.request(job.id, kind=DiagnosticKind.THREAD_DUMP).id, 30).parts
    }
    assert '"reporter"' in found["driver"]
    assert '"dag-scheduler-event-loop"' in found["JVM"]
    workers = {
        name: text for name, text in found.items() if re.fullmatch(r"worker \d+: operator \S+, subtask .*", name)
    }
    assert workers, list(found)
    assert all("most recent call first" in text for text in workers.values())


def kill(job: ReadmeJob) -> None:
    killed = job.processes()
    assert killed
    for process in killed:
        process.kill()
    psutil.wait_procs(killed)


def kinds_of_events(job: ReadmeJob) -> list[str]:
    return [event["kind"] for event in job.control_plane.api.get(job_path(job.id, "events"))["events"]]


def follow_the_advice_up_to_the_stop(control_plane: RunningControlPlane) -> None:
    """Each refused command names the command that makes it possible."""
    follow(control_plane, refused(keyscale(control_plane, "jobs", "start", "visits"), "JOB_STATUS_CONFLICT"))
    follow(control_plane, refused(keyscale(control_plane, "jobs", "delete", "visits"), "JOB_STATUS_CONFLICT"))
    assert control_plane.api.get(job_path("visits"))["status"]["state"] == "STOPPED", (
        "`jobs stop` returns when the list says so"
    )

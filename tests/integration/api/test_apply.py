"""Jobs live in files: `keyscale apply` and `keyscale export` against a control plane in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.command_line import CommandAnswer, done, keyscale

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

PROGRAM = "from keyscale import StreamEnvironment\n\nStreamEnvironment.current().execute()\n"


def job_file(directory: Path, name: str, *lines: str, team: str = "travel") -> Path:
    (directory / "program.py").write_text(PROGRAM)
    file = directory / f"{name}.yaml"
    file.write_text("\n".join([f"name: {name}", f"labels: {{team: {team}}}", "program: program.py", *lines, ""]))
    return file


def apply(platform: Platform, *arguments: object) -> CommandAnswer:
    return keyscale(platform, "apply", *(str(each) for each in arguments))


def shown(platform: Platform, name: str) -> Any:
    return platform.api.get(f"/v1/jobs/{name}")


def test_a_file_makes_a_job_and_changes_it_and_then_nothing(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "made", "state: STOPPED", "spec:", "  parallelism: 2", "  parameters: {output: /a}")
    planned = apply(platform, "-f", file, "--dry-run")
    assert (planned.exit_code, "made: create" in planned.stdout) == (4, True), planned
    assert "made" not in {job.name for job in platform.api.jobs.list()}
    done(apply(platform, "-f", file, "--yes"))
    assert shown(platform, "made")["spec"]["parallelism"] == 2
    for more in ((), ("--dry-run",)):
        again = apply(platform, "-f", tmp_path, *more)
        assert (again.exit_code, again.stdout) == (0, "made: unchanged\n")
    job_file(tmp_path, "made", "spec:", "  parallelism: 2", "  checkpoints: {interval_ms: 5000}")
    changed = done(apply(platform, "-f", file, "--yes"))
    assert "parameters.output: /a -> none  (RESTART)" in changed.stdout
    assert "checkpoints.interval_ms: 10000 -> 5000  (AT_ONCE)" in changed.stdout
    spec = shown(platform, "made")["spec"]
    assert (spec["parameters"], spec["checkpoints"]["interval_ms"]) == ({}, 5000)
    (tmp_path / "program.py").write_text(PROGRAM + "# better\n")
    before = spec["artifact_id"]
    assert "artifact_id" in done(apply(platform, "-f", file, "--yes")).stdout
    assert shown(platform, "made")["spec"]["artifact_id"] != before


def test_a_job_runs_or_stops_as_its_file_says(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "running", "state: RUNNING")
    waited = apply(platform, "-f", file, "--yes", "--wait", "--timeout", 0)
    assert (waited.exit_code, "running: create, start" in waited.stdout) == (3, True), "no driver runs here"
    assert shown(platform, "running")["status"]["desired"] == "RUNNING"
    assert apply(platform, "-f", file).stdout == "running: unchanged\n"
    job_file(tmp_path, "running")
    assert apply(platform, "-f", file).stdout == "running: unchanged\n", "a file without a state leaves it alone"
    job_file(tmp_path, "running", "state: STOPPED")
    assert "running: stop\n" in done(apply(platform, "-f", file, "--yes")).stdout
    assert shown(platform, "running")["status"]["desired"] == "STOPPED"


def test_git_and_an_autoscaler_agree_on_the_parallelism(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "owned", "platform_owns: [parallelism]", "spec:", "  parallelism: 2")
    done(apply(platform, "-f", file, "--yes"))
    assert shown(platform, "owned")["spec"]["parallelism"] == 2
    platform.api.jobs.update("owned", 1, spec={"parallelism": 3})
    assert apply(platform, "-f", file).stdout == "owned: unchanged\n"
    for mode, plan in (("ACTIVE", "unchanged"), ("MONITORING", "change")):
        name = f"scaled-{mode.lower()}"
        file = job_file(tmp_path, name, "spec:", "  parallelism: 2", f"  autoscaler: {{mode: {mode}}}")
        done(apply(platform, "-f", file, "--yes"))
        platform.api.jobs.update(name, 1, spec={"parallelism": 3})
        assert f"{name}: {plan}" in apply(platform, "-f", file, "--dry-run").stdout


def test_a_fixed_setting_is_refused_before_anything_changes(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "fixed", "spec:", "  max_parallelism: 16")
    done(apply(platform, "-f", file, "--yes"))
    job_file(tmp_path, "fixed", "spec:", "  max_parallelism: 32")
    job_file(tmp_path, "another")
    refused = apply(platform, "-f", tmp_path, "--yes")
    assert refused.exit_code == 1
    assert "fixed: cannot be applied: max_parallelism is fixed: the job has 16, not 32" in refused.stdout
    assert "another" not in {job.name for job in platform.api.jobs.list()}


def test_only_selected_jobs_are_pruned_and_their_objects_are_kept(platform: Platform, tmp_path: Path) -> None:
    for name, team in (("pruned", "pruning"), ("kept", "pruning"), ("other", "others")):
        job_file(tmp_path, name, team=team)
    done(apply(platform, "-f", tmp_path, "--yes"))
    (tmp_path / "pruned.yaml").unlink()
    (tmp_path / "other.yaml").unlink()
    without = apply(platform, "-f", tmp_path, "--prune", "--yes")
    assert (without.exit_code, "--selector" in without.stderr) == (2, True)
    pruned = done(apply(platform, "-f", tmp_path, "--prune", "--selector", "team=pruning", "--yes"))
    assert "pruned: delete" in pruned.stdout
    names = {job.name for job in platform.api.jobs.list()}
    assert ("pruned" in names, {"kept", "other"} <= names) == (False, True)
    event = next(platform.api.events.list(kind=["JOB_DELETED"]))
    assert event.message == "deleted pruned, and kept its objects"


def test_nothing_is_changed_without_a_confirmation(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "unconfirmed")
    asked = apply(platform, "-f", file)
    assert (asked.exit_code, "--yes" in asked.stderr) == (2, True)
    assert "unconfirmed" not in {job.name for job in platform.api.jobs.list()}


def test_a_wrong_file_is_wrong_usage_and_named_with_its_line(platform: Platform, tmp_path: Path) -> None:
    file = job_file(tmp_path, "wrong", "stat: RUNNING")
    wrong = apply(platform, "-f", file, "--yes")
    assert (wrong.exit_code, f"{file}:4: stat: the field is unknown; do you mean state?" in wrong.stderr) == (2, True)


def test_a_job_that_is_exported_and_applied_is_unchanged(platform: Platform, tmp_path: Path) -> None:
    settings = ("  parallelism: 2", "  parameters: {output: /data/out}", "  restart: {type: fixed-delay, attempts: 2}")
    done(apply(platform, "-f", job_file(tmp_path, "exported", "spec:", *settings), "--yes"))
    printed = done(keyscale(platform, "export", "exported")).stdout
    directory = tmp_path / "exports"
    done(keyscale(platform, "export", "exported", "--output", str(directory)))
    assert (directory / "exported.yaml").read_text() == printed
    assert (directory / "program.py").read_text() == PROGRAM
    again = apply(platform, "-f", directory, "--dry-run")
    assert (again.exit_code, again.stdout) == (0, "exported: unchanged\n"), again

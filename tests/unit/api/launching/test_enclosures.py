"""What encloses a driver's processes. Plain directories stand in for cgroups, which this kernel may not have."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.errors import SettingInvalidError
from keyscale.api.job_quota import JobQuota
from keyscale.api.launching import enclosures, launcher, supervisor
from keyscale.api.launching.driver_log import LOG_FILE, LogWriter
from keyscale.api.launching.enclosures import NO_ENCLOSURES, Enclosures, cgroup_of_jobs, enclosures_here, own_cgroup
from keyscale.api.launching.isolation import Isolation
from keyscale.api.launching.quota_means import Means, QuotaHost, QuotaMeans
from keyscale.api.libraries.job_libraries import NO_JOB_LIBRARIES
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt, Job, Revision

if TYPE_CHECKING:
    from collections.abc import Mapping

QUOTA = JobQuota(processes_max=1000, memory_bytes_max=4 << 30, cores_max=1.5, file_bytes_max=1 << 30)
CONTROLLERS = frozenset({"pids", "memory", "cpu"})
JOB_USER = 59_989  # used by this file alone


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A cgroup that keeps all controllers from the cgroups below."""
    made = tmp_path / "cgroup"
    made.mkdir()
    (made / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (made / "cgroup.subtree_control").write_text("")
    return made


def supervised(directory: Path, script: str, **variables: str) -> tuple[int, str]:
    """Runs a shell script below a supervisor; returns the exit code and the output."""
    command = [sys.executable, "-I", supervisor.__file__, str(directory), "/bin/sh", "-c", script]
    code = subprocess.run(command, env={"PATH": os.defpath, **variables}, check=False).returncode
    return code, (directory / LOG_FILE).read_text()


def told(quota: Mapping[str, Any]) -> dict[str, str]:
    return {supervisor.DRIVER_QUOTA_VARIABLE: json.dumps(quota)}


def test_a_driver_has_a_cgroup_with_its_quota_until_it_is_cleaned_up(group: Path) -> None:
    jobs = cgroup_of_jobs(group, CONTROLLERS)
    assert (group / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (jobs / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    made = Enclosures(QuotaMeans(QUOTA, Means.CGROUP), jobs)
    variables = made.variables("job-1")
    limits = {file.name: file.read_text() for file in (jobs / "job-1").iterdir()}
    assert limits == {"pids.max": "1000", "memory.max": str(4 << 30), "cpu.max": "150000 100000"}
    given = {"processes": 1000, "file_bytes": 1 << 30, "disk_bytes": None, "cgroup": str(jobs / "job-1")}
    assert variables == told(given)
    assert made.command("job-1") == []
    for name in limits:
        (jobs / "job-1" / name).unlink()  # the kernel deletes a cgroup together with its files
    made.remove("job-1")
    assert list(jobs.glob("job-*")) == []
    made.remove("job-1")


def test_the_launcher_starts_a_driver_in_its_enclosure_and_removes_that_with_the_run(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launcher, "start_supervised", lambda *given: started.append(given))
    monkeypatch.setattr(launcher, "driver_command", lambda *_, **__: ["the-driver"])
    monkeypatch.setattr(launcher, "keep_record", lambda *_: None)
    settings = Settings(home=tmp_path, store_url=(tmp_path / "store").as_uri())
    made = launcher.Launcher(settings, enclosures=Enclosures(QuotaMeans(QUOTA, Means.CGROUP), group))
    made.prepare("job", 1)
    job, revision, attempt = (
        Job(id="job", store_url=settings.store_url),
        Revision(spec={"artifact_id": "program"}),
        Attempt(number=1),
    )
    made.launch(job, revision, attempt, NO_JOB_LIBRARIES, cast("Any", None), cast("Any", None), {})
    [(_, command, environment, inside)] = started
    assert (command, inside) == (["the-driver"], [])
    assert json.loads(environment[supervisor.DRIVER_QUOTA_VARIABLE])["cgroup"] == str(group / "job-1")
    for file in (group / "job-1").iterdir():
        file.unlink()  # the kernel deletes a cgroup together with its files
    made.clean_up("job", 1)
    assert not (group / "job-1").exists()


def test_only_quotas_that_are_set_are_written(group: Path) -> None:
    Enclosures(QuotaMeans(JobQuota(memory_bytes_max=1 << 30), Means.CGROUP), group).variables("job-1")
    assert [file.name for file in (group / "job-1").iterdir()] == ["memory.max"]


def test_systemd_starts_a_driver_in_a_scope_with_its_quota() -> None:
    command = Enclosures(QuotaMeans(QUOTA, Means.SYSTEMD)).command("job-1")
    assert Path(command[0]).name == "systemd-run"
    assert command[1:] == [
        "--scope",
        "--quiet",
        "--collect",
        "--unit=keyscale-job-job-1",
        "--property=TasksMax=1000",
        f"--property=MemoryMax={4 << 30}",
        "--property=CPUQuota=150%",
        "--",
    ]


def test_without_quotas_nothing_is_made_and_a_user_still_has_a_limit_of_processes() -> None:
    assert NO_ENCLOSURES.command("job-1") == []
    assert NO_ENCLOSURES.variables("job-1") == told({"processes": 8192, "file_bytes": None, "disk_bytes": None})


class BusyUntilMoved:
    """In place of the kernel: a cgroup with processes cannot limit cgroups below.

    Args:
        moves: How often this process has to be moved away until the cgroup is empty.
    """

    def __init__(self, moves: int) -> None:
        self.left = moves
        self.moved: list[str] = []

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(path: Path, text: str) -> int:
            return self._write(path, text)

        monkeypatch.setattr(Path, "write_text", write)

    def _write(self, path: Path, text: str) -> int:
        if path.name == "cgroup.procs":
            assert text == str(os.getpid())
            self.moved.append(path.parent.name)
            self.left -= 1
        elif path.parent.name == "cgroup" and self.left > 0:
            raise OSError(errno.EBUSY, "busy")
        return path.write_bytes(text.encode())


def test_the_control_plane_moves_out_of_a_cgroup_that_is_to_limit_others(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = BusyUntilMoved(1)
    kernel.take_over(monkeypatch)
    assert cgroup_of_jobs(group, CONTROLLERS) == group / "keyscale-jobs"
    assert kernel.moved == ["keyscale-control-plane"]


def test_the_control_plane_goes_back_into_a_cgroup_that_holds_other_processes(
    group: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = BusyUntilMoved(9)
    kernel.take_over(monkeypatch)
    settings = Settings(home=tmp_path, job_quota=QUOTA, job_cgroup=group)
    with pytest.raises(SettingInvalidError, match="it holds other processes"):
        enclosures_here(settings, Isolation())
    assert kernel.moved == ["keyscale-control-plane", "cgroup"]


def test_a_host_is_asked_for_an_enclosure_only_if_a_quota_needs_one(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = Settings(home=tmp_path, job_quota=QUOTA, job_cgroup=group)
    assert enclosures_here(named, Isolation()).means.enclosure is Means.CGROUP
    assert (group / "keyscale-jobs").is_dir()

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(enclosures, "own_cgroup", refuse)
    monkeypatch.setattr(enclosures, "_has_systemd", refuse)
    assert enclosures_here(Settings(home=tmp_path), Isolation()).means.enclosure is Means.NONE
    users = enclosures_here(Settings(home=tmp_path, job_quota=JobQuota(processes_max=300)), Isolation(50_000, 10))
    assert users.means.statement["processes"] == "300 per job, by the job's user"


@pytest.mark.parametrize("is_named", [True, False])
def test_the_means_are_chosen_by_all_that_the_host_offers(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
) -> None:
    asked: list[Any] = []

    def decide(quota: JobQuota, host: QuotaHost) -> QuotaMeans:
        asked.append((quota, host))
        return QuotaMeans(quota, Means.SYSTEMD, host.has_users)

    monkeypatch.setattr(enclosures, "own_cgroup", lambda *_: group)
    monkeypatch.setattr(enclosures, "_has_systemd", lambda: True)
    monkeypatch.setattr(enclosures, "quota_means_of", decide)
    settings = Settings(home=tmp_path, job_quota=QUOTA, job_cgroup=group if is_named else None)
    made = enclosures_here(settings, Isolation(50_000, 10))
    host = QuotaHost(
        has_users=True,
        has_systemd=not is_named,
        cgroup=group,
        is_cgroup_named=is_named,
        controllers=CONTROLLERS | {"cpuset", "io"},
        is_writable=True,
    )
    assert asked == [(QUOTA, host)]
    assert made.means == QuotaMeans(QUOTA, Means.SYSTEMD, has_users=True)
    assert not (group / "keyscale-jobs").exists(), "systemd makes the cgroups"


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        ("0::/a/b\n", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/a/b"),
        ("4:memory:/x\n0::/\n", "29 1 0:26 / /cgroup/unified rw shared:9 - cgroup2 none rw\n", "/cgroup/unified"),
        ("0::/docker/7/a\n", "29 1 0:26 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/a"),
        ("0::/docker/77\n", "29 1 0:26 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", None),
        ("4:memory:/x\n", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", None),
        ("0::/a\n", "29 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", None),
    ],
)
def test_the_control_plane_finds_its_cgroup(tmp_path: Path, groups: str, mounts: str, expected: str | None) -> None:
    (tmp_path / "groups").write_text(groups)
    (tmp_path / "mounts").write_text(mounts)
    found = own_cgroup(tmp_path / "mounts", tmp_path / "groups")
    assert found == (None if expected is None else Path(expected))
    assert own_cgroup(tmp_path / "none", tmp_path / "groups") is None


def test_a_driver_starts_in_its_cgroup_and_cannot_write_larger_files(tmp_path: Path, group: Path) -> None:
    quota = {"processes": 1000, "file_bytes": 512, "cgroup": str(group)}
    script = f"echo $PPID; head -c 2000 /dev/zero > {tmp_path}/large; stat -c %s {tmp_path}/large; env"
    code, log = supervised(tmp_path, script, **told(quota))
    assert code == 0
    assert log.split()[0] == (group / "cgroup.procs").read_text(), "the supervisor joins, and so all below it"
    assert (tmp_path / "large").stat().st_size == 512
    assert supervisor.DRIVER_QUOTA_VARIABLE not in log


def test_a_driver_whose_job_takes_too_much_space_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "DISK_POLL_S", 0.02)
    (tmp_path / "job").mkdir()
    written, log = tmp_path / "state", LogWriter(tmp_path)
    script = f"head -c 5000000 /dev/zero > {written}; mv {written} {tmp_path}/job; exec sleep 60"  # at once

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", script])

    assert supervisor.waited(started(), [tmp_path / "job"], 2 << 20, log) == supervisor.EXIT_DISK_FULL
    assert "the files of the job take 4 MiB, more than 2 MiB" in (tmp_path / "driver.log").read_text()
    script = "exit 3"
    assert supervisor.waited(started(), [tmp_path / "job"], 9 << 20, log) == 3


def test_a_driver_does_not_start_without_its_cgroup(tmp_path: Path) -> None:
    code, log = supervised(tmp_path, "echo started", **told({"cgroup": str(tmp_path / "none")}))
    assert code == supervisor.EXIT_CANNOT_RUN
    assert "the driver cannot be started" in log
    assert "echo started" not in log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
def test_the_kernel_counts_the_processes_of_a_jobs_own_user(tmp_path: Path) -> None:
    variables = told({"processes": 300}) | {supervisor.DRIVER_USER_VARIABLE: f"{JOB_USER}:{JOB_USER}"}
    _, log = supervised(tmp_path, "grep processes /proc/self/limits", **variables)
    assert log.split()[2:4] == ["300", "300"]


def test_when_memory_ends_a_driver_is_ended_before_its_supervisor_and_the_control_plane(tmp_path: Path) -> None:
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    # The supervisor goes back to its own score right after it has started the driver.
    wait = f"i=0; until grep -qx {mine} $S || [ $i = 999 ]; do sleep 0.01; i=$((i + 1)); done"
    _, log = supervised(tmp_path, f"S=/proc/$PPID/oom_score_adj; {wait}; cat /proc/self/oom_score_adj $S")
    assert [int(score) for score in log.split()] == [min(1000, mine + 500), mine]

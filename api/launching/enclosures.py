"""Encloses the processes of drivers in cgroups, or in scopes of systemd.

The enclosures hold the quotas of jobs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SettingInvalidError
from ..job_quota import PROCESSES_OF_USER, JobQuota
from .quota_means import Means, QuotaHost, QuotaMeans, controllers_for, quota_means_of
from .supervisor import DRIVER_QUOTA_VARIABLE

if TYPE_CHECKING:
    from ..settings import Settings
    from .isolation import Isolation

logger = logging.getLogger(__name__)

CPU_PERIOD_US = 100_000
_JOBS = "keyscale-jobs"
_OWN = "keyscale-control-plane"
_TRIED_WITHIN_S = 10.0


class Enclosures:
    """Encloses the processes of drivers, each with its quota.

    Args:
        means: How this host holds the quotas.
        cgroup: The parent of the drivers' cgroups, if cgroups hold the quotas.
    """

    def __init__(self, means: QuotaMeans, cgroup: Path | None = None) -> None:
        self.means = means
        self._cgroup = cgroup

    def command(self, run: str) -> list[str]:
        """Returns the command that starts another command inside a run's enclosure.

        It is empty where the supervisor enters the enclosure by itself.
        """
        if self.means.enclosure is not Means.SYSTEMD:
            return []
        quota = self.means.quota
        properties = {
            "TasksMax": quota.processes_max,
            "MemoryMax": quota.memory_bytes_max,
            "CPUQuota": None if quota.cores_max is None else f"{round(quota.cores_max * 100)}%",
        }
        given = [f"--property={name}={value}" for name, value in properties.items() if value is not None]
        return [*_scope_command(f"keyscale-job-{run}"), *given, "--"]

    def variables(self, run: str) -> dict[str, str]:
        """Makes a run's cgroup; returns the variables for its supervisor.

        The supervisor takes the quota from them.

        Raises:
            OSError: The cgroup cannot be made.
        """
        quota = self.means.quota
        told: dict[str, int | str | None] = {
            "processes": quota.processes_max or PROCESSES_OF_USER,
            "file_bytes": quota.file_bytes_max,
            "disk_bytes": quota.disk_bytes_max,
        }
        if self._cgroup is not None:
            group = self._cgroup / run
            group.mkdir(exist_ok=True)
            for name, text in _cgroup_limits(quota).items():
                (group / name).write_text(text)
            told["cgroup"] = str(group)
        return {DRIVER_QUOTA_VARIABLE: json.dumps(told)}

    def remove(self, run: str) -> None:
        """Deletes a run's cgroup, after its processes have ended."""
        if self._cgroup is None:
            return
        try:
            (self._cgroup / run).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("the cgroup of %s stays: %s", run, error)


NO_ENCLOSURES = Enclosures(QuotaMeans(JobQuota()))


def enclosures_here(settings: Settings, isolation: Isolation) -> Enclosures:
    """Returns what holds the quotas of jobs on this host.

    Makes the cgroup of all drivers, if that is needed. The control plane then moves into a cgroup beside, because a
    cgroup that limits others may hold no processes.

    Raises:
        SettingInvalidError: The host cannot hold a quota that is set.
    """
    quota, has_users = settings.job_quota, isolation.count > 0
    needed = controllers_for(quota, has_users=has_users)
    if not needed:
        return Enclosures(QuotaMeans(quota, has_users=has_users))
    parent = settings.job_cgroup or own_cgroup(Path("/proc/self/mountinfo"), Path("/proc/self/cgroup"))
    means = quota_means_of(
        quota,
        QuotaHost(
            has_users=has_users,
            has_systemd=settings.job_cgroup is None and _has_systemd(),
            cgroup=parent,
            is_cgroup_named=settings.job_cgroup is not None,
            controllers=frozenset() if parent is None else _words(parent / "cgroup.controllers"),
            is_writable=parent is not None and os.access(parent / "cgroup.subtree_control", os.W_OK),
        ),
    )
    if means.enclosure is not Means.CGROUP or parent is None:
        return Enclosures(means)
    try:
        return Enclosures(means, cgroup_of_jobs(parent, needed))
    except OSError as error:
        reason = "it holds other processes" if error.errno == errno.EBUSY else error.strerror
        raise SettingInvalidError(f"KEYSCALE_JOB_CGROUP: {parent} cannot hold quotas: {reason}") from error


def own_cgroup(mounts: Path, groups: Path) -> Path | None:
    """Returns the directory of this process's cgroup of version 2.

    Args:
        mounts: The file of the kernel that lists the mounts.
        groups: The file of the kernel that lists the cgroups of this process.
    """
    try:
        paths = [line.partition("::")[2] for line in groups.read_text().splitlines() if line.startswith("0::")]
        fields = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    places = [(line[3], line[4]) for line in fields if line[line.index("-") + 1] == "cgroup2"]
    for path in paths:
        for root, place in places:
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return Path(place) / path[len(root.rstrip("/")) :].lstrip("/")
    return None


def cgroup_of_jobs(parent: Path, controllers: frozenset[str]) -> Path:
    """Makes the cgroup below which each driver has its own.

    Raises:
        OSError: It cannot be made, or its parent holds other processes than this one.
    """
    try:
        _enable(parent, controllers)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        own = parent / _OWN
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
        try:
            _enable(parent, controllers)
        except OSError:
            (parent / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):
                own.rmdir()
            raise
    jobs = parent / _JOBS
    jobs.mkdir(exist_ok=True)
    _enable(jobs, controllers)
    return jobs


def _enable(group: Path, controllers: frozenset[str]) -> None:
    control = group / "cgroup.subtree_control"
    if missing := controllers - _words(control):
        control.write_text(" ".join(f"+{name}" for name in sorted(missing)))


def _cgroup_limits(quota: JobQuota) -> dict[str, str]:
    """Returns the content of the files of a driver's cgroup."""
    cores = quota.cores_max
    limits = {
        "pids.max": None if quota.processes_max is None else str(quota.processes_max),
        "memory.max": None if quota.memory_bytes_max is None else str(quota.memory_bytes_max),
        "cpu.max": None if cores is None else f"{round(cores * CPU_PERIOD_US)} {CPU_PERIOD_US}",
    }
    return {name: text for name, text in limits.items() if text is not None}


def _has_systemd() -> bool:
    """Returns whether systemd makes scopes for the control plane."""
    if os.geteuid() != 0 or not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run") is None:
        return False
    try:
        tried = subprocess.run(  # noqa: S603 - our own arguments
            [*_scope_command(f"keyscale-try-{os.getpid()}"), "--property=TasksMax=100", "--", "true"],
            check=False,
            capture_output=True,
            timeout=_TRIED_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def _scope_command(unit: str) -> list[str]:
    return [shutil.which("systemd-run") or "systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}"]


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text().split())
    except OSError:
        return frozenset()

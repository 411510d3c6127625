"""Decides how this host holds the quotas of jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..errors import SettingInvalidError
from ..job_quota import PROCESSES_OF_USER

if TYPE_CHECKING:
    from pathlib import Path

    from ..job_quota import JobQuota


class Means(StrEnum):
    """What encloses the processes of a driver."""

    CGROUP = "cgroup"
    SYSTEMD = "systemd"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class QuotaHost:
    """What a host offers for quotas.

    Attributes:
        has_users: Whether jobs have users of their own.
        has_systemd: Whether the control plane may ask systemd for scopes.
        cgroup: The cgroup (version 2) below which drivers would have theirs, if there is one.
        is_cgroup_named: Whether a setting names the cgroup.
        controllers: The controllers that the cgroup has.
        is_writable: Whether the control plane may make cgroups below.
    """

    has_users: bool = False
    has_systemd: bool = False
    cgroup: Path | None = None
    is_cgroup_named: bool = False
    controllers: frozenset[str] = frozenset()
    is_writable: bool = False


@dataclass(frozen=True, slots=True)
class QuotaMeans:
    """How a host holds the quotas of jobs.

    Attributes:
        quota: The quotas.
        enclosure: What encloses the processes of a driver.
        has_users: Whether jobs have users of their own, whose processes the kernel counts.
    """

    quota: JobQuota
    enclosure: Means = Means.NONE
    has_users: bool = False

    @property
    def statement(self) -> dict[str, str]:
        """Each resource's limit, and what holds the limit."""
        quota, by = self.quota, f" per driver, by {self.enclosure}"
        processes = f"{quota.processes_max or PROCESSES_OF_USER} per job, by the job's user" if self.has_users else ""
        if quota.processes_max is not None and self.enclosure is not Means.NONE:
            processes = f"{quota.processes_max}{by}"
        disk = [
            f"{most >> 20} MiB per {what}"
            for most, what in ((quota.disk_bytes_max, "job"), (quota.file_bytes_max, "file"))
            if most is not None
        ]
        return {
            "processes": processes or UNLIMITED,
            "memory": UNLIMITED if quota.memory_bytes_max is None else f"{quota.memory_bytes_max >> 20} MiB{by}",
            "processor": UNLIMITED
            if quota.cores_max is None
            else f"{quota.cores_max:g} {'core' if quota.cores_max == 1 else 'cores'}{by}",
            "disk": ", ".join(disk) or UNLIMITED,
        }


UNLIMITED = "not limited"


def controllers_for(quota: JobQuota, *, has_users: bool) -> frozenset[str]:
    """Returns the controllers that an enclosure needs to hold a quota.

    Without a memory and a processor quota, the kernel can count the processes of a job's own user instead.
    """
    needs = {"memory": quota.memory_bytes_max is not None, "cpu": quota.cores_max is not None}
    others = {name for name, is_needed in needs.items() if is_needed}
    counts_here = quota.processes_max is not None and (others or not has_users)
    return frozenset(others | ({"pids"} if counts_here else set()))


def quota_means_of(quota: JobQuota, host: QuotaHost) -> QuotaMeans:
    """Decides how a host holds the quotas of jobs.

    A cgroup that a setting names comes first, then systemd, whose cgroups other programs should leave alone, and then
    the control plane's own cgroup.

    Raises:
        SettingInvalidError: The host cannot hold a quota that is set.
    """
    needed = controllers_for(quota, has_users=host.has_users)
    if not needed:
        return QuotaMeans(quota, Means.NONE, host.has_users)
    if host.has_systemd and not host.is_cgroup_named:
        return QuotaMeans(quota, Means.SYSTEMD, host.has_users)
    if (reason := _why_no_cgroup(host, needed)) is None:
        return QuotaMeans(quota, Means.CGROUP, host.has_users)
    names = {"pids": "PROCESSES", "memory": "MEMORY", "cpu": "CORES"}
    first = next(name for name in ("memory", "cpu", "pids") if name in needed)
    raise SettingInvalidError(f"KEYSCALE_JOB_QUOTA_{names[first]}: this host cannot hold it: {reason}")


def _why_no_cgroup(host: QuotaHost, needed: frozenset[str]) -> str | None:
    if host.cgroup is None:
        return "it has no cgroups of version 2"
    if missing := needed - host.controllers:
        return f"the cgroup {host.cgroup} has no controller {', '.join(sorted(missing))}"
    if host.is_writable:
        return None
    helps = "run the control plane as root, in a systemd unit with Delegate=yes, or in a container of its own"
    return f"the control plane may not make cgroups in {host.cgroup}: {helps}"

"""The means by which a host holds the quotas of jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.errors import SettingInvalidError
from keyscale.api.job_quota import JobQuota
from keyscale.api.launching.quota_means import UNLIMITED, Means, QuotaHost, controllers_for, quota_means_of

CONTROLLERS = frozenset({"pids", "memory", "cpu", "io"})
BARE = QuotaHost()
CGROUPS = QuotaHost(cgroup=Path("/sys/fs/cgroup/keyscale"), controllers=CONTROLLERS, is_writable=True)
MEMORY, PROCESSES = JobQuota(memory_bytes_max=4 << 30), JobQuota(processes_max=1000)

quotas = st.builds(
    JobQuota,
    processes_max=st.none() | st.integers(256, 9999),
    memory_bytes_max=st.none() | st.integers(1 << 30, 1 << 40),
    cores_max=st.none() | st.sampled_from([0.5, 2.0]),
    file_bytes_max=st.none() | st.integers(1 << 28, 1 << 40),
    disk_bytes_max=st.none() | st.integers(1 << 30, 1 << 40),
)
hosts = st.builds(
    QuotaHost,
    has_users=st.booleans(),
    has_systemd=st.booleans(),
    cgroup=st.none() | st.just(CGROUPS.cgroup),
    is_cgroup_named=st.booleans(),
    controllers=st.frozensets(st.sampled_from(sorted(CONTROLLERS))),
    is_writable=st.booleans(),
)


@given(quotas, hosts)
def test_every_quota_that_is_set_is_held_or_refused(quota: JobQuota, host: QuotaHost) -> None:
    try:
        means = quota_means_of(quota, host)
    except SettingInvalidError:
        assert controllers_for(quota, has_users=host.has_users), "nothing was set that could be refused"
        return
    held = {name for name, text in means.statement.items() if text != UNLIMITED}
    are_set = {
        "processes": quota.processes_max is not None or host.has_users,
        "memory": quota.memory_bytes_max is not None,
        "processor": quota.cores_max is not None,
        "disk": quota.file_bytes_max is not None or quota.disk_bytes_max is not None,
    }
    assert held == {name for name, is_set in are_set.items() if is_set}
    if means.enclosure is Means.CGROUP:
        assert host.is_writable
        assert controllers_for(quota, has_users=host.has_users) <= host.controllers


@pytest.mark.parametrize(
    ("quota", "host", "expected"),
    [
        (JobQuota(), BARE, Means.NONE),
        (JobQuota(file_bytes_max=1 << 30), BARE, Means.NONE),
        (PROCESSES, replace(BARE, has_users=True), Means.NONE),
        (PROCESSES, CGROUPS, Means.CGROUP),
        (MEMORY, CGROUPS, Means.CGROUP),
        (MEMORY, replace(CGROUPS, has_systemd=True), Means.SYSTEMD),
        (MEMORY, replace(CGROUPS, has_systemd=True, is_cgroup_named=True), Means.CGROUP),
        (MEMORY, replace(BARE, has_systemd=True), Means.SYSTEMD),
    ],
)
def test_a_quota_needs_an_enclosure_unless_the_kernel_holds_it_for_a_user_or_a_file(
    quota: JobQuota, host: QuotaHost, expected: Means
) -> None:
    assert quota_means_of(quota, host).enclosure is expected


@pytest.mark.parametrize(
    ("quota", "host", "reason"),
    [
        (MEMORY, BARE, "MEMORY.*no cgroups of version 2"),
        (PROCESSES, BARE, "PROCESSES.*no cgroups of version 2"),
        (JobQuota(cores_max=2), replace(CGROUPS, controllers=frozenset({"memory"})), "CORES.*no controller cpu"),
        (
            MEMORY,
            replace(CGROUPS, is_writable=False),
            "MEMORY.*may not make cgroups in /sys/fs/cgroup/keyscale: .*Delegate=yes",
        ),
    ],
)
def test_a_quota_that_a_host_cannot_hold_is_refused_with_the_reason(
    quota: JobQuota, host: QuotaHost, reason: str
) -> None:
    with pytest.raises(SettingInvalidError, match=reason):
        quota_means_of(quota, host)


def test_the_statement_says_how_much_a_job_may_take_and_what_holds_it() -> None:
    quota = JobQuota(processes_max=1000, memory_bytes_max=4 << 30, cores_max=1.5, file_bytes_max=1 << 30)
    assert quota_means_of(quota, CGROUPS).statement == {
        "processes": "1000 per driver, by cgroup",
        "memory": "4096 MiB per driver, by cgroup",
        "processor": "1.5 cores per driver, by cgroup",
        "disk": "1024 MiB per file",
    }
    disk = JobQuota(file_bytes_max=1 << 30, disk_bytes_max=50 << 30)
    assert quota_means_of(disk, BARE).statement["disk"] == "51200 MiB per job, 1024 MiB per file"
    unset = {"memory": UNLIMITED, "processor": UNLIMITED, "disk": UNLIMITED}
    assert quota_means_of(JobQuota(), BARE).statement == {"processes": UNLIMITED, **unset}
    users = replace(BARE, has_users=True)
    assert quota_means_of(JobQuota(), users).statement == {"processes": "8192 per job, by the job's user", **unset}

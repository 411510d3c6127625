"""The quotas of jobs that an administrator sets."""

from __future__ import annotations

import pytest

from keyscale.api.errors import SettingInvalidError
from keyscale.api.job_quota import JobQuota


def test_quotas_are_read_from_the_environment() -> None:
    assert JobQuota.from_environment({}) == JobQuota()
    given = {"PROCESSES": "2000", "MEMORY": "4g", "CORES": "1.5", "FILE": "256m", "DISK": "1g"}
    read = JobQuota.from_environment({f"KEYSCALE_JOB_QUOTA_{name}": text for name, text in given.items()})
    assert read == JobQuota(
        processes_max=2000,
        memory_bytes_max=4 << 30,
        cores_max=1.5,
        file_bytes_max=256 << 20,
        disk_bytes_max=1 << 30,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PROCESSES", "255"),
        ("PROCESSES", "many"),
        ("MEMORY", "511m"),
        ("MEMORY", "much"),
        ("CORES", "0.05"),
        ("CORES", "-1"),
        ("CORES", "1e3"),
        ("FILE", "255m"),
        ("DISK", "1023m"),
    ],
)
def test_a_quota_with_which_no_job_can_run_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingInvalidError, match=f"KEYSCALE_JOB_QUOTA_{name}"):
        JobQuota.from_environment({f"KEYSCALE_JOB_QUOTA_{name}": text})

"""The quota of each driver of a job. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import JobLimitError, SettingInvalidError
from .job_limits import size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

PROCESSES_OF_USER = 8192
"""Processes and threads of a job with its own user, if no quota is set."""
_PROCESSES_MIN = 256  # an idle driver has about 100 threads
_MEMORY_MIN = 512 << 20
_FILE_MIN = 256 << 20  # a driver's log, which has the same limit, may have half of it
_DISK_MIN = 1 << 30  # a driver's log and temporary files, and a little state
_CORES = re.compile(r"[0-9]{1,5}(\.[0-9]{1,2})?")
_CORES_MIN = 0.1


@dataclass(frozen=True, slots=True)
class JobQuota:
    """The quota of each driver of a job.

    It is the most that the driver may take of its host, with all processes that it starts. A job has two drivers while
    it is rescaled or upgraded. None is no quota.

    Attributes:
        processes_max: Processes and threads.
        memory_bytes_max: Memory.
        cores_max: Processor time, in cores.
        file_bytes_max: Size of each file that it writes.
        disk_bytes_max: Space of all files in the directory of the job.
    """

    processes_max: int | None = None
    memory_bytes_max: int | None = None
    cores_max: float | None = None
    file_bytes_max: int | None = None
    disk_bytes_max: int | None = None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> JobQuota:
        """Reads KEYSCALE_JOB_QUOTA_PROCESSES, _MEMORY, _CORES, _FILE and _DISK.

        Raises:
            SettingInvalidError: A value is not a quota with which a job can run.
        """
        return cls(
            processes_max=_processes(variables.get("KEYSCALE_JOB_QUOTA_PROCESSES")),
            memory_bytes_max=_size(variables, "KEYSCALE_JOB_QUOTA_MEMORY", _MEMORY_MIN),
            cores_max=_cores(variables.get("KEYSCALE_JOB_QUOTA_CORES")),
            file_bytes_max=_size(variables, "KEYSCALE_JOB_QUOTA_FILE", _FILE_MIN),
            disk_bytes_max=_size(variables, "KEYSCALE_JOB_QUOTA_DISK", _DISK_MIN),
        )


def _processes(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not _PROCESSES_MIN <= int(text) <= 1 << 22:
        raise SettingInvalidError(f"KEYSCALE_JOB_QUOTA_PROCESSES must be a number from {_PROCESSES_MIN} to {1 << 22}")
    return int(text)


def _cores(text: str | None) -> float | None:
    if not text:
        return None
    if _CORES.fullmatch(text) is None or float(text) < _CORES_MIN:
        raise SettingInvalidError(f"KEYSCALE_JOB_QUOTA_CORES must be a number from {_CORES_MIN}, such as 2 or 1.5")
    return float(text)


def _size(variables: Mapping[str, str], name: str, least: int) -> int | None:
    if not (text := variables.get(name)):
        return None
    try:
        size = size_bytes(text, name)
    except JobLimitError as error:
        raise SettingInvalidError(error.detail) from None
    if size < least:
        raise SettingInvalidError(f"{name} must be at least {least >> 20}m")
    return size

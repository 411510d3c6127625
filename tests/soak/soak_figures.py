"""The figures that must not grow in a soak: memory, descriptors and threads by kind of process, processes, files."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import psutil

from keyscale.deploy.demo.home_processes import processes_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.soak.soak_faults import SoakRig

    Figures: TypeAlias = dict[str, int]

ALLOWED_SHARE = 1.25
ALLOWED = {"MiB": 64, "descriptors": 30, "threads": 20, "processes": 10, "files": 500}
"""The further growth that is allowed, by the figure's unit: the last word of its name."""
ALLOWED_BY_NAME = {
    "executor MiB": 400,  # a JVM fills its heap before it collects, so an older one is larger
    "executor threads": 200,  # of Spark's two pools for the removal of blocks, which grow to 100 threads each
}
_SECONDS = 600.0


def job_metrics_of(rig: SoakRig) -> Figures:
    """Returns the figures of now: of each kind of process the largest one's, once there is one of each."""

    def look() -> Figures:
        try:
            return _figures(rig)
        except psutil.NoSuchProcess:
            return {}

    found: Figures = wait_until(look, _SECONDS, what="all kinds of processes", poll=0.5)
    return found


def grown(samples: Sequence[Figures]) -> list[str]:
    """Returns the figures that were larger in the last third of the samples than in the first third, by the median."""
    third = max(1, len(samples) // 3)
    found = []
    for name in samples[0]:
        first = median(sample[name] for sample in samples[:third])
        last = median(sample[name] for sample in samples[-third:])
        allowed = ALLOWED_BY_NAME.get(name) or ALLOWED[name.rpartition(" ")[2]]
        if last > ALLOWED_SHARE * first + allowed:
            found.append(f"{name}: {first:.0f} at first, {last:.0f} at last")
    return found


def _figures(rig: SoakRig) -> Figures:
    found: Figures = {}
    for kind, processes in rig.processes().items():
        if not processes:
            return {}
        found |= {
            f"{kind} MiB": max(each.memory_info().rss for each in processes) >> 20,
            f"{kind} descriptors": max(each.num_fds() for each in processes),
            f"{kind} threads": max(each.num_threads() for each in processes),
        }
    home = rig.control_plane.home
    return {
        **found,
        "processes": len(processes_of(home)),
        "state files": _files(rig.disk.path),
        "other local files": sum(_files(part) for part in rig.job_directory.iterdir() if part != rig.disk.path),
    }


def _files(directory: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(directory))

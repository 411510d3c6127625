"""The space of a job's files is counted once, and not through links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyscale.api.launching.disk_use import disk_use_bytes

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_files_with_several_names_count_once_and_links_lead_nowhere(tmp_path: Path) -> None:
    job, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    (job / "state" / "0").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(b"x" * 9 * MIB)
    (job / "state" / "0" / "a.sst").write_bytes(b"x" * 3 * MIB)
    (job / "state" / "a-snapshot.sst").hardlink_to(job / "state" / "0" / "a.sst")
    (job / "linked").symlink_to(elsewhere)
    (job / "linked.sst").symlink_to(elsewhere / "large")
    with (job / "sparse").open("wb") as file:
        file.truncate(50 * MIB)
    assert 3 * MIB <= disk_use_bytes(job) < 4 * MIB
    assert disk_use_bytes(tmp_path / "missing") == 0


def test_files_below_a_path_that_is_too_long_for_a_call_count(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (tmp_path / "linked").symlink_to(job)
    inner = os.open(job, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=inner)
        outer, inner = inner, os.open("d" * 200, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    file = os.open("hidden", os.O_WRONLY | os.O_CREAT, dir_fd=inner)
    assert os.write(file, b"x" * 3 * MIB) == 3 * MIB
    for opened in (file, inner):
        os.close(opened)
    assert 3 * MIB <= disk_use_bytes(job) < 4 * MIB
    assert disk_use_bytes(tmp_path / "linked") == disk_use_bytes(job)

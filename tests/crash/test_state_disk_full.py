"""A full disk fails the batch cleanly, and work continues once there is space."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MOUNT_AND_RUN = 'mount -t tmpfs -o size=6m none "$1" && exec "$2" -m tests.crash.disk_child "$3" "$1"'


def may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.real
@pytest.mark.skipif(not may_mount(), reason="a small disk of its own needs user namespaces")
def test_a_batch_on_a_full_disk_fails_cleanly_and_runs_again(tmp_path: Path) -> None:
    local_root, store = tmp_path / "local", tmp_path / "store"
    local_root.mkdir()
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT_AND_RUN, "sh", str(local_root), sys.executable, str(store)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr

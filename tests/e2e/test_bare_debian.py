"""The launcher installs all that Keyscale and its tests need on a bare Debian, which has no more than its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = ROOT / "deploy" / "bare-debian"

pytestmark = [
    pytest.mark.real,
    pytest.mark.exhaustive,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a Debian in a directory"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed"),
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("debian")
    yield directory
    shutil.rmtree(directory)


def launch(debian: Path, *arguments: str) -> str:
    run = subprocess.run([str(SCRIPT), str(debian), *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return run.stdout


def test_the_demo_is_exact(debian: Path) -> None:
    assert "EXACT" in launch(debian, "demo")


def test_tests_of_the_pages_and_of_the_local_stack_pass(debian: Path) -> None:
    assert " passed" in launch(debian, "test", "tests/pages/test_every_page.py", "tests/integration/deploy")

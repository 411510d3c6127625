"""The reference of the Python API is generated without a warning, and describes every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import DOCS

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC_MODULES = ("keyscale", "keyscale.state", "keyscale.testing")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-W", "error", "-P", str(DOCS / "reference.py"), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return directory


@pytest.mark.real
@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_has_a_place_in_the_reference(reference: Path, module: str) -> None:
    page = (reference / f"{module.replace('.', '/')}.html").read_text(encoding="utf-8")
    assert set(import_module(module).__all__) <= set(re.findall(r'<section id="(\w+)">', page))


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    public = import_module(module)
    without = [name for name in public.__all__ if not (getattr(public, name).__doc__ or "").strip()]
    assert without == []

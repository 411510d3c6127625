from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING

from keyscale.api.libraries import platform_packages
from keyscale.api.libraries.platform_packages import installed_platform
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_platform_is_what_the_lock_pins_and_not_what_only_tests_need() -> None:
    packages = installed_platform().packages
    lock = (ROOT / "requirements.lock").read_text()
    for name in ("pyspark", "numpy", "pyarrow", "msgspec", "rocksdict"):
        assert f"{name}=={packages[name].version} " in lock
        assert name in installed_platform().module_owners
    assert "pytest" not in packages
    assert "py4j" in installed_platform().module_owners
    assert "keyscale" in packages


def test_an_installed_wheel_of_keyscale_finds_the_same_packages_without_the_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    own = re.findall(r'^  "([^"]+)"', declared, flags=re.MULTILINE)
    requires = importlib.metadata.requires
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: own if name == "keyscale" else requires(name))
    locked = {found.name for found in platform_packages._distributions()}
    monkeypatch.setattr(platform_packages, "IMPORT_PATH", tmp_path / "site-packages")
    assert {found.name for found in platform_packages._distributions()} == locked


def test_the_requirements_of_a_package_are_followed_with_their_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = {
        "keyscale": ["A.B[fast]>=1", "gone; python_version < '3'", "missing"],
        "a-b": ["keyscale", "extra-of-fast; extra == 'fast'", "extra-of-slow; extra == 'slow'"],
        "extra-of-fast": ["last", "A_B"],
        "last": None,
    }

    def required(name: str) -> list[str] | None:
        try:
            return requires[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError from None

    monkeypatch.setattr(importlib.metadata, "requires", required)
    found = platform_packages._required_by("keyscale")
    assert found == {"a-b", "missing", "keyscale", "extra-of-fast", "last"}

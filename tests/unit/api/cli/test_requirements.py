"""Requirements become wheels by the real pip, from a directory of wheels instead of an index."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from keyscale.api.cli.errors import RequirementsError
from keyscale.api.cli.requirements import download_command, downloaded_wheels

PLATFORM = {
    "python_version": "3.11.7",
    "platforms": ["linux_x86_64", "manylinux_2_17_x86_64"],
    "packages": {"numpy": "2.4.0", "some-part": "1.0"},
}


def add_wheel(directory: Path, name: str, version: str, *requires: str, tags: str = "py3-none-any") -> None:
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    with zipfile.ZipFile(directory / f"{name}-{version}-{tags}.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n")
        archive.writestr(f"{info}/RECORD", "")


def requirements(directory: Path, *lines: str) -> Path:
    file = directory / "requirements.txt"
    file.write_text("\n".join(["--no-index", f"--find-links {directory}", *lines]))
    return file


def test_wheels_are_chosen_for_the_platform_and_what_it_has_is_left_out(tmp_path: Path) -> None:
    add_wheel(tmp_path, "top", "1.0", "numpy>=2", "Some.Part", "below>=2", tags="cp311-cp311-manylinux_2_17_x86_64")
    add_wheel(tmp_path, "top", "1.0", tags="cp311-cp311-win_amd64")
    add_wheel(tmp_path, "below", "2.0")
    add_wheel(tmp_path, "numpy", "9.0")
    with downloaded_wheels(requirements(tmp_path, "top"), PLATFORM) as wheels:
        assert [wheel.name for wheel in wheels] == [
            "below-2.0-py3-none-any.whl",
            "top-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        ]
    assert not any(wheel.exists() for wheel in wheels)


def test_what_does_not_go_with_the_platform_is_refused_with_pips_own_reason(tmp_path: Path) -> None:
    add_wheel(tmp_path, "old", "1.0", "numpy<2")
    with (
        pytest.raises(RequirementsError, match=r"(?s)old 1\.0 depends on numpy<2.*The platform has numpy 2\.4\.0"),
        downloaded_wheels(requirements(tmp_path, "old"), PLATFORM),
    ):
        pass


def test_nothing_is_built_on_this_machine() -> None:
    command = list(download_command(Path("r"), Path("c"), Path("w"), PLATFORM))
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[command.index("--python-version") + 1] == "3.11.7"
    assert command.count("--platform") == 2

"""Resolves requirements of a program to wheels that the platform can use.

This machine's pip resolves them.

The platform's own packages take part as empty wheels of their versions. pip then resolves compatible versions, fails if
there are none, and downloads only what is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from .errors import RequirementsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: keyscale\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_CONSTRAINED = re.compile(r"\(constraint\) (\S+)")
_SAID_CHARACTERS_MAX = 4000


@contextmanager
def downloaded_wheels(requirements: Path, platform: Mapping[str, Any]) -> Iterator[list[Path]]:
    """Yields the wheels that requirements need and the platform lacks.

    The wheels are deleted afterwards.

    Args:
        requirements: A file in pip's format.
        platform: The answer of `GET /v1/artifacts/platform`.

    Raises:
        RequirementsError: pip finds no wheels that fit the platform.
    """
    with tempfile.TemporaryDirectory(prefix="keyscale-requirements-") as directory:
        constraints, wheels = Path(directory, "constraints.txt"), Path(directory, "wheels")
        stand_ins = Path(directory, "platform")
        stand_ins.mkdir()
        constraints.write_text(
            "".join(
                f"{name} @ {_stand_in(stand_ins, name, version).as_uri()}\n"
                for name, version in platform["packages"].items()
            )
        )
        command = download_command(requirements, constraints, wheels, platform)
        done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)  # noqa: S603 - pip, with the user's own file
        if done.returncode != 0:
            said = f"{_conflict(done.stdout, platform['packages'])}\n{done.stderr}".strip()[-_SAID_CHARACTERS_MAX:]
            raise RequirementsError(f"{requirements}: {said}")
        found = sorted(wheels.glob("*.whl"))
        yield [wheel for wheel in found if _name(wheel) not in platform["packages"]]


def download_command(requirements: Path, constraints: Path, wheels: Path, platform: Mapping[str, Any]) -> Sequence[str]:
    """Returns pip's command line for the platform's Python and system.

    This machine's Python and system do not count.
    """
    options = [part for name in platform["platforms"] for part in ("--platform", name)]
    return [
        sys.executable,
        *("-m", "pip", "download", "--progress-bar", "off", "--disable-pip-version-check", "--no-input"),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", platform["python_version"]),
        *options,
        *("--constraint", str(constraints), "--requirement", str(requirements), "--dest", str(wheels)),
    ]


def _conflict(said: str, packages: Mapping[str, str]) -> str:
    """Returns pip's explanation of a conflict.

    It has the versions of the platform's packages in the conflict.
    """
    _, begin, rest = said.partition("The conflict is caused by:")
    if not begin:
        return ""
    explanation = rest.partition("To fix this")[0].strip()
    names = sorted({name.lower() for name in _CONSTRAINED.findall(explanation)} & packages.keys())
    return f"{explanation}\n" + "\n".join(f"The platform has {name} {packages[name]}." for name in names)


def _stand_in(directory: Path, name: str, version: str) -> Path:
    escaped = name.replace("-", "_")
    path = directory / f"{escaped}-{version}-py3-none-any.whl"
    info = f"{escaped}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", _METADATA.format(name=name, version=version))
        archive.writestr(f"{info}/WHEEL", _WHEEL)
        archive.writestr(f"{info}/RECORD", "")
    return path


def _name(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])

"""The Python packages that the platform uses.

A job shares them, and cannot replace them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.tags import platform_tags, sys_tags
from packaging.utils import canonicalize_name

from keyscale.installation import IMPORT_PATH, VERSION

from .artifact_inspector import import_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.tags import Tag

_OWN_NAME = "keyscale"
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PlatformPackage:
    """An installed package of the platform.

    It has a normalised name, version, import names and requirements.
    """

    name: str
    version: str
    modules: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlatformPackages:
    """The platform's packages, its Python and the wheel tags that it accepts.

    Attributes:
        packages: By normalised name.
        python_version: Such as 3.11.7.
        tags: The tags of wheels that it can use.
        platforms: The names of its operating system in such tags, most specific first.
        module_owners: Packages by the import names of their modules and, with a dot at the end, of namespaces.
    """

    packages: Mapping[str, PlatformPackage]
    python_version: str
    tags: frozenset[Tag] = frozenset()
    platforms: tuple[str, ...] = ()
    module_owners: Mapping[str, PlatformPackage] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        packages: Iterable[PlatformPackage],
        *,
        python_version: str,
        tags: Iterable[Tag] = (),
        platforms: Iterable[str] = (),
    ) -> PlatformPackages:
        """Returns the platform with these packages."""
        known = {package.name: package for package in packages}
        owners: dict[str, PlatformPackage] = {}
        for package in known.values():
            for module in package.modules:
                owners[module] = package
                parts = module.split(".")
                owners |= {".".join(parts[:count]) + ".": package for count in range(1, len(parts))}
        return cls(known, python_version, frozenset(tags), tuple(platforms), owners)


@functools.cache
def installed_platform() -> PlatformPackages:
    """Returns the platform of this installation.

    A development environment holds further packages, which only tests need; they are no part of it.
    """
    own = PlatformPackage(_OWN_NAME, VERSION, (_OWN_NAME,))
    return PlatformPackages.of(
        [own, *(_package(found) for found in _distributions())],
        python_version=platform.python_version(),
        tags=sys_tags(),
        platforms=platform_tags(),
    )


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    lock = IMPORT_PATH.parent / "requirements.lock"
    names = (
        {canonicalize_name(name) for name in _PINNED.findall(lock.read_text(encoding="utf-8"))}
        if lock.is_file()
        else _required_by(_OWN_NAME)
    )
    for name in sorted(names):
        try:
            yield importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another Python or operating system


def _required_by(name: str) -> set[str]:
    """Returns the names of all direct and indirect requirements of a package."""
    found: set[str] = set()
    left = [(name, frozenset[str]())]
    seen = set()
    while left:
        wanted = left.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            requires = importlib.metadata.requires(wanted[0]) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in applicable(requires, wanted[1]):
            needed = canonicalize_name(requirement.name)
            found.add(needed)
            left.append((needed, frozenset(requirement.extras)))
    return found


def applicable(requires: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """Yields the requirements that apply to this Python and operating system.

    They are requirements without extras and with the given extras.
    """
    for line in requires:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *sorted(extras))):
            yield requirement


def _package(found: importlib.metadata.Distribution) -> PlatformPackage:
    paths = [str(path) for path in found.files or ()]
    modules = tuple(import_names(path for path in paths if not path.startswith("..")))
    name = canonicalize_name(found.metadata["Name"])
    return PlatformPackage(name, found.version, modules, tuple(found.requires or ()))


def is_reserved(module: str) -> bool:
    """Returns whether a module's name belongs to Python itself."""
    return module in sys.stdlib_module_names or module == "__main__"

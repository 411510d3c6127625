"""The rules for the libraries of a job.

Pure: facts in, refusals out.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from keyscale.jobs.protocol.specification import LIBRARIES_MAX
from keyscale.vocabulary import ArtifactKind

from ..errors import (
    ArtifactInvalidError,
    LibraryClashError,
    LibraryInvalidError,
    LibraryRequirementError,
)
from .contents import ArtifactContents
from .platform_packages import applicable, is_reserved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .platform_packages import PlatformPackages

_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Library:
    """A file that a job brings: its name, kind, SHA-256 and content."""

    filename: str
    kind: ArtifactKind
    sha256: str = ""
    contents: ArtifactContents = field(default_factory=ArtifactContents)

    @property
    def modules(self) -> tuple[str, ...]:
        """The names by which its modules are imported."""
        if self.kind is ArtifactKind.PYTHON:
            return (self.filename.removesuffix(".py"),)
        return self.contents.modules

    @property
    def distribution(self) -> str | None:
        """A wheel's normalised name."""
        return None if self.contents.distribution is None else canonicalize_name(self.contents.distribution)


def check_wheel(wheel: Library, platform: PlatformPackages) -> None:
    """Refuses a wheel that this platform cannot use for any job.

    Raises:
        ArtifactInvalidError: The wheel's name and metadata differ, or it is for another Python or operating system.
        LibraryClashError: The platform itself uses another version of it, or has modules of the same name.
    """
    try:
        name, version, _, tags = parse_wheel_filename(wheel.filename)
        inside = (canonicalize_name(wheel.contents.distribution or ""), Version(wheel.contents.version or ""))
        pythons = SpecifierSet(wheel.contents.requires_python)
        list(applicable(wheel.contents.requires, frozenset()))
    except ValueError as error:  # each of packaging's errors is one
        raise ArtifactInvalidError(f"the wheel is not valid: {error}") from None
    if (name, version) != inside:
        raise ArtifactInvalidError("the wheel's file name and its metadata name different packages or versions")
    if tags.isdisjoint(platform.tags):
        shown = ", ".join(sorted(map(str, tags))[:5])
        raise ArtifactInvalidError(
            f"the wheel is for {shown}; this platform runs Python {platform.python_version} on"
            f" {platform.platforms[0] if platform.platforms else 'another system'}"
        )
    if not pythons.contains(platform.python_version, prereleases=True):
        raise ArtifactInvalidError(f"the wheel needs Python {pythons}, and the platform has {platform.python_version}")
    _check_platform(wheel, platform)


def check_libraries(program: Library, libraries: Sequence[Library], platform: PlatformPackages) -> None:
    """Refuses libraries that a job cannot have together with its program.

    Args:
        program: The job's own artifact.
        libraries: The libraries that the job brings.
        platform: The packages of drivers and workers.

    Raises:
        LibraryInvalidError: The job has too many libraries, or a Python file cannot be imported by its name.
        LibraryClashError: A library has the name of a package or module of the platform, of Python or of another
            library, or two jars have the same file name.
        LibraryRequirementError: A wheel needs a package that the job and the platform lack.
    """
    if len(libraries) > LIBRARIES_MAX:
        raise LibraryInvalidError(f"a job has at most {LIBRARIES_MAX} libraries")
    for library in libraries:
        if library.kind is ArtifactKind.PYTHON:
            _check_module_name(library)
        _check_platform(library, platform)
    # The program's own modules count, but its file is the module __main__, whatever its name.
    own = [program] if program.kind is ArtifactKind.ZIP else []
    _check_each_other([*own, *libraries])
    if missing := sorted(set(_missing(libraries, platform))):
        more = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
        raise LibraryRequirementError("; ".join(missing[:_SHOWN_MAX]) + more)


def _check_module_name(library: Library) -> None:
    [module] = library.modules
    if not module.isidentifier() or keyword.iskeyword(module):
        raise LibraryInvalidError(f"{library.filename}: no module can be imported by this name")


def _check_platform(library: Library, platform: PlatformPackages) -> None:
    if library.distribution is not None and (package := platform.packages.get(library.distribution)) is not None:
        raise LibraryClashError(f"{library.filename}: the platform itself runs on {package.name} {package.version}")
    for module in library.modules:
        if is_reserved(module.partition(".")[0]):
            raise LibraryClashError(f"{library.filename}: Python itself has a module {module.partition('.')[0]}")
        for name in (*_self_and_parents(module), f"{module}."):
            if (package := platform.module_owners.get(name)) is not None:
                raise LibraryClashError(
                    f"{library.filename}: the module {module} is a part of {package.name} {package.version},"
                    " on which the platform itself runs"
                )


def _check_each_other(libraries: Sequence[Library]) -> None:
    jars: set[str] = set()
    distributions: dict[str, Library] = {}
    owners: dict[str, Library] = {}
    for library in libraries:
        if library.kind is ArtifactKind.JAR and library.filename in jars:
            raise LibraryClashError(f"two jars are called {library.filename}; Spark would omit one of them")
        if library.kind is ArtifactKind.JAR:
            jars.add(library.filename)
        name = library.distribution
        if name is not None and (other := distributions.setdefault(name, library)) is not library:
            raise LibraryClashError(f"{other.filename} and {library.filename} are both {name}")
        for module in library.modules:
            if (other := owners.setdefault(module, library)) is not library:
                raise LibraryClashError(f"{other.filename} and {library.filename} both have the module {module}")
    for module, library in owners.items():
        for parent in _self_and_parents(module)[:-1]:
            if (other := owners.get(parent, library)) is not library:
                raise LibraryClashError(
                    f"{library.filename} has the module {module}, and {other.filename} has {parent}"
                )


def _missing(libraries: Sequence[Library], platform: PlatformPackages) -> Iterator[str]:
    """Yields the unmet requirements of wheels and their extras."""
    brought = {library.distribution: library.contents for library in libraries if library.distribution is not None}
    left: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in brought]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        wanted = left.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        name, extras = wanted
        requires = brought[name].requires if name in brought else platform.packages[name].requires
        for requirement in applicable(requires, extras):
            needed = canonicalize_name(requirement.name)
            if needed in brought:
                version = brought[needed].version or ""
            elif needed in platform.packages:
                version = platform.packages[needed].version
            else:
                yield f"{name} needs {_without_marker(requirement)}"
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                whose = "the job brings" if needed in brought else "the platform has"
                yield f"{name} needs {_without_marker(requirement)}, and {whose} {version}"
                continue
            if needed in brought or requirement.extras:  # the platform's own packages are complete without extras
                left.append((needed, frozenset(requirement.extras)))


def _without_marker(requirement: object) -> str:
    return str(requirement).partition(";")[0].strip()


def _self_and_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]

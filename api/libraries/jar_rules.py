"""The jars that jobs may have.

They are jars that jobs bring, if the administrator allows them, and the platform's packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.vocabulary import ArtifactKind

from ..errors import JarNotAllowedError, LibraryInvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from .library_set import Library

PACKAGE_PREFIX = "package:"
"""A library of this form is a package of jars by its name; any other library is an artifact's id."""
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class JarRules:
    """The jars that the administrator allows.

    Attributes:
        allowed: SHA-256s and file names of jars that jobs may bring; `*` is any jar.
        packages_directory: A directory with one directory of jars per package; None: no packages.
    """

    allowed: frozenset[str] = frozenset({"*"})
    packages_directory: Path | None = None

    def require_allowed(self, jars: Iterable[Library]) -> None:
        """Refuses jars that jobs may not bring.

        Raises:
            JarNotAllowedError: The administrator does not allow the jar.
        """
        for jar in jars:
            if jar.kind is ArtifactKind.JAR and self.allowed.isdisjoint({"*", jar.filename, jar.sha256}):
                raise JarNotAllowedError(f"{jar.filename} with the SHA-256 {jar.sha256}")

    def packages(self) -> Mapping[str, tuple[Path, ...]]:
        """Returns the jars of all packages, by the packages' names."""
        if self.packages_directory is None:
            return {}
        return {
            folder.name: jars
            for folder in sorted(self.packages_directory.iterdir())
            if _PACKAGE_NAME.fullmatch(folder.name) and (jars := tuple(sorted(folder.glob("*.jar"))))
        }

    def jars_of(self, names: Iterable[str]) -> tuple[Path, ...]:
        """Returns the jars of packages.

        Raises:
            LibraryInvalidError: The package does not exist.
        """
        known = self.packages()
        jars: list[Path] = []
        for name in names:
            if name not in known:
                shown = ", ".join(known) or "none"
                raise LibraryInvalidError(f"the platform has no package {name!r}; it has: {shown}")
            jars += known[name]
        return tuple(dict.fromkeys(jars))

"""The copies of jobs' libraries on this host, by content.

The next start of a job finds them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LibraryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from keyscale.jobs.protocol.messages import LibraryFile

logger = logging.getLogger(__name__)

UNUSED_S = 24 * 3600.0
_SITE = "site"
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>purelib|platlib)/(?P<path>.+)")
_COMPILE_S_MAX = 120
_COMPILE = f"""
import compileall, py_compile, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({_COMPILE_S_MAX}, {_COMPILE_S_MAX}))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
compileall.compile_dir(".", quiet=2, stripdir=".", invalidation_mode=mode)
"""


@dataclass(frozen=True, slots=True)
class PlacedLibraries:
    """Libraries on this host.

    Attributes:
        python_path: Directories from which Python imports them, in order.
        archives: The same directories as zip files, for executors on other hosts.
        jars: Jars.
        sha256s: The content of all of them.
    """

    python_path: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    sha256s: tuple[str, ...] = ()


class LibraryCache:
    """Copies libraries out of the database, once per host, verified.

    A library is in `<directory>/<SHA-256>/<file name>/`: a jar unchanged; modules in `site`, and in a zip file with a
    unique name: Spark treats two files with one name as one file. The directory appears under its name when it is
    complete. Jobs' users may read libraries with a known hash.

    Args:
        directory: Where the copies are.
        read: Yields the bytes of the artifact with a SHA-256.
    """

    def __init__(self, directory: Path, read: Callable[[str], Iterable[bytes]]) -> None:
        self._directory = directory
        self._read = read
        self._lock = threading.Lock()

    def place(self, libraries: Sequence[LibraryFile]) -> PlacedLibraries:
        """Returns the copies of libraries; makes missing copies.

        Raises:
            LibraryUnavailableError: A library cannot be read, or cannot be written here.
        """
        places = [(library, self._placed(library)) for library in libraries]
        modules = [(library, place) for library, place in places if library.kind != "JAR"]
        return PlacedLibraries(
            python_path=tuple(place / _SITE for _, place in modules),
            archives=tuple(place / _archive_name(library) for library, place in modules),
            jars=tuple(place / library.filename for library, place in places if library.kind == "JAR"),
            sha256s=tuple(library.sha256 for library in libraries),
        )

    def sweep(self, in_use: Collection[str]) -> None:
        """Deletes unused libraries, a day after their last use.

        Args:
            in_use: The SHA-256s of the libraries of runs on this host.
        """
        for place in self._directory.glob("*"):
            if place.name in in_use:
                continue
            with contextlib.suppress(FileNotFoundError):  # another thread deletes it
                if time.time() - place.stat().st_mtime > UNUSED_S:
                    shutil.rmtree(place, ignore_errors=True)

    def _placed(self, library: LibraryFile) -> Path:
        content = self._directory / library.sha256
        place = content / library.filename
        try:
            with self._lock:  # one copy at a time: two jobs that bring the same library need it once
                self._directory.mkdir(mode=0o711, exist_ok=True)
                content.mkdir(mode=0o711, exist_ok=True)
                for directory in (self._directory, content):
                    directory.chmod(0o711)  # whatever the umask is
                os.utime(content)
                if not place.is_dir():
                    self._make(library, place)
        except OSError as error:
            raise LibraryUnavailableError(f"{library.filename}: {error.strerror}") from error
        return place

    def _make(self, library: LibraryFile, place: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".", dir=place.parent) as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            file = new / library.filename
            self._download(library, file)
            if library.kind != "JAR":
                site = new / _SITE
                site.mkdir()
                if library.kind == "PYTHON":
                    file.rename(site / library.filename)
                else:
                    unpack(file, site)
                    file.unlink()
                compile_modules(site)
                pack(site, new / _archive_name(library))
            _let_read(new)
            new.rename(place)

    def _download(self, library: LibraryFile, file: Path) -> None:
        digest = hashlib.sha256()
        with file.open("wb") as writing:
            for chunk in self._read(library.sha256):
                digest.update(chunk)
                writing.write(chunk)
        if digest.hexdigest() != library.sha256:
            raise LibraryUnavailableError(f"{library.filename}: its bytes are gone or damaged")


def _archive_name(library: LibraryFile) -> str:
    return f"{hashlib.sha256(f'{library.sha256}/{library.filename}'.encode()).hexdigest()[:32]}.zip"


def unpack(archive: Path, site: Path) -> None:
    """Unpacks an inspected zip or wheel into a directory on Python's path.

    Of a wheel's `.data` directory only the modules are taken: a job does not use its scripts, headers and data.
    """
    with zipfile.ZipFile(archive) as reading:
        for entry in reading.infolist():
            top = entry.filename.partition("/")[0]
            if archive.suffix == ".whl" and top.endswith(".data"):
                found = _DATA.fullmatch(entry.filename)
                if found is None:
                    continue
                entry.filename = found["path"]
            reading.extract(entry, site)


def compile_modules(site: Path) -> None:
    """Compiles modules in a process with limits.

    A module that cannot be compiled now is compiled at its import.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603 - the platform's own program; it compiles, and runs nothing
            [sys.executable, "-I", "-c", _COMPILE],
            cwd=site,
            env={},
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=3 * _COMPILE_S_MAX,
        )


def pack(site: Path, archive: Path) -> None:
    """Writes a directory as a zip file for executors.

    Not compressed: it is read once, from memory.
    """
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, strict_timestamps=False) as writing:
        for path in sorted(site.rglob("*")):
            writing.write(path, path.relative_to(site))


def _let_read(directory: Path) -> None:
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)

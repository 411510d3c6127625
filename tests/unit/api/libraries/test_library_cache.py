"""Copies of libraries on a host: made once, verified, importable, and deleted when nobody uses them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Literal

import pytest

from keyscale.api.errors import LibraryUnavailableError
from keyscale.api.libraries.library_cache import UNUSED_S, LibraryCache
from keyscale.jobs.protocol.messages import LibraryFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Artifacts:
    """Artifacts by their SHA-256, and how often they were read."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.reads = 0

    def add(self, filename: str, kind: Literal["PYTHON", "ZIP", "WHEEL", "JAR"], content: bytes) -> LibraryFile:
        sha256 = hashlib.sha256(content).hexdigest()
        self.content[sha256] = content
        return LibraryFile(filename=filename, sha256=sha256, kind=kind)

    def read(self, sha256: str) -> Iterator[bytes]:
        self.reads += 1
        yield self.content[sha256]


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture
def artifacts() -> Artifacts:
    return Artifacts()


@pytest.fixture
def cache(tmp_path: Path, artifacts: Artifacts) -> LibraryCache:
    return LibraryCache(tmp_path / "libraries", artifacts.read)


def imported(path: tuple[Path, ...], expression: str, *modules: str) -> str:
    program = f"import {', '.join(modules)}; print({expression})"
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_modules_of_every_kind_can_be_imported_and_jars_stay_as_they_are(
    cache: LibraryCache, artifacts: Artifacts
) -> None:
    wheel = zipped(
        **{
            "pkg/__init__.py": "VALUE = 1",
            "pkg-1.data/purelib/beside.py": "VALUE = 2",
            "pkg-1.data/scripts/tool.py": "VALUE = 0",
            "pkg-1.dist-info/METADATA": "Name: pkg",
        }
    )
    placed = cache.place(
        [
            artifacts.add("pkg-1-py3-none-any.whl", "WHEEL", wheel),
            artifacts.add("helper.py", "PYTHON", b"VALUE = 4"),
            artifacts.add("codec.jar", "JAR", b"a jar"),
            artifacts.add("more.zip", "ZIP", zipped(**{"more/__init__.py": "VALUE = 8"})),
        ]
    )
    values = "pkg.VALUE + beside.VALUE + helper.VALUE + more.VALUE"
    assert imported(placed.python_path, values, "pkg", "beside", "helper", "more") == "15"
    assert imported(placed.python_path, "u.find_spec('tool')", "importlib.util as u") == "None"
    assert imported(placed.python_path, "pkg.__cached__", "pkg").startswith(str(placed.python_path[0]))
    assert [jar.read_bytes() for jar in placed.jars] == [b"a jar"]
    assert len(placed.sha256s) == 4
    assert len({archive.name for archive in placed.archives}) == 3, "Spark takes two files with one name for one"
    for archive, site in zip(placed.archives, placed.python_path, strict=True):
        with zipfile.ZipFile(archive) as reading:
            found = {name for name in reading.namelist() if not name.endswith("/")}
        assert found == {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
        assert any(name.endswith(".pyc") for name in found)


def test_a_second_start_reads_nothing_and_the_same_bytes_may_have_two_names(
    cache: LibraryCache, artifacts: Artifacts
) -> None:
    first = artifacts.add("one.py", "PYTHON", b"VALUE = 1")
    second = artifacts.add("two.py", "PYTHON", b"VALUE = 1")
    placed = cache.place([first, second])
    assert artifacts.reads == 2
    assert imported(placed.python_path, "one.VALUE + two.VALUE", "one", "two") == "2"
    assert len({archive.name for archive in placed.archives}) == 2
    assert cache.place([first, second]) == placed
    assert artifacts.reads == 2


def test_damaged_or_missing_bytes_are_refused_and_leave_nothing(
    cache: LibraryCache, artifacts: Artifacts, tmp_path: Path
) -> None:
    library = artifacts.add("helper.py", "PYTHON", b"VALUE = 1")
    good = artifacts.content[library.sha256]
    for bad in (b"VALUE = 2", b""):
        artifacts.content[library.sha256] = bad
        with pytest.raises(LibraryUnavailableError, match=r"helper\.py"):
            cache.place([library])
        assert list((tmp_path / "libraries" / library.sha256).iterdir()) == []
    artifacts.content[library.sha256] = good
    assert cache.place([library]).python_path


def test_a_reader_who_knows_the_hash_can_read_a_copy_but_cannot_list_the_copies(
    cache: LibraryCache, artifacts: Artifacts, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        [site] = cache.place([artifacts.add("helper.py", "PYTHON", b"VALUE = 1")]).python_path
    finally:
        os.umask(before)
    assert site.stat().st_mode & 0o005 == 0o005
    assert (site / "helper.py").stat().st_mode & 0o006 == 0o004
    assert (tmp_path / "libraries").stat().st_mode & 0o007 == 0o001


def test_what_no_run_uses_is_deleted_a_day_later(cache: LibraryCache, artifacts: Artifacts, tmp_path: Path) -> None:
    libraries = [artifacts.add(f"m{n}.py", "PYTHON", f"VALUE = {n}".encode()) for n in range(3)]
    cache.place(libraries)
    old = 0
    for library in libraries[:2]:
        os.utime(tmp_path / "libraries" / library.sha256, (old, old))
    cache.sweep({libraries[0].sha256})
    left = {path.name for path in (tmp_path / "libraries").iterdir()}
    assert left == {libraries[0].sha256, libraries[2].sha256}, "the one in use, and the one that is new"
    os.utime(tmp_path / "libraries" / libraries[2].sha256, (old, old))
    cache.place(libraries[2:])
    cache.sweep(())
    assert {path.name for path in (tmp_path / "libraries").iterdir()} == {libraries[2].sha256}, "used again just now"
    assert UNUSED_S > 3600

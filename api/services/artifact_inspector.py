"""Inspects an uploaded file, as a process of its own with limits on time and memory.

Usage: artifact_inspector.py ENDING < FILE

It parses what users send, so a hostile file can hurt this process alone. It writes a line of JSON: `{"kind": ...}`, the
file's kind by its bytes, or `{"refused": ...}`, the reason for which it is refused. It imports nothing of Keyscale, so
that it starts fast.
"""

from __future__ import annotations

import ast
import json
import resource
import sys
import zipfile
from pathlib import PurePosixPath
from typing import IO

CPU_S_MAX = 20
MEMORY_BYTES_MAX = 1 << 30
SCRIPT_BYTES_MAX = 4 << 20
ZIP_ENTRIES_MAX = 20_000
ZIP_UNPACKED_BYTES_MAX = 1 << 30
ZIP_RATIO_MAX = 100
ZIP_RATIO_FREE_BYTES = 16 << 20
"""An archive that unpacks to no more than this may have any ratio: short files of repeated text have high ones."""

ENDINGS = {"PYTHON": ".py", "ZIP": ".zip", "JAR": ".jar"}
ENTRY_POINTS = ("main.py", "__main__.py")  # the driver runs the first one that is in the zip
RESERVED_NAMES = frozenset({"keyscale", "pyspark", "py4j"}) | sys.stdlib_module_names
"""A zip comes first on the path of drivers and workers: a module of such a name would replace the real one."""

TOO_EXPENSIVE = f"it takes more than {CPU_S_MAX} s or {MEMORY_BYTES_MAX >> 20} MiB of memory to parse"
_ZIP_MAGIC = b"PK"
_MODULE_SUFFIXES = frozenset({".py", ".pyc"})


class RefusedError(Exception):
    """The file is not accepted; the message says why."""


def main(arguments: list[str]) -> int:
    """Inspects the file on standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = {"kind": kind_of(sys.stdin.buffer, arguments[0])}
    except RefusedError as refusal:
        found = {"refused": str(refusal)}
    except MemoryError:
        found = {"refused": TOO_EXPENSIVE}
    sys.stdout.write(json.dumps(found))
    return 0


def kind_of(content: IO[bytes], ending: str) -> str:
    """Returns the kind of a file.

    Args:
        content: The file, seekable.
        ending: The ending of the client's name for it, which must match its bytes.

    Raises:
        RefusedError: It is not a valid Python file, zip or jar.
    """
    if ending not in ENDINGS.values():
        raise RefusedError("the file's name does not end in .py, .zip or .jar")
    content.seek(0)
    kind = _zip_kind(content) if content.read(2) == _ZIP_MAGIC else _python_kind(content)
    if ending != ENDINGS[kind]:
        raise RefusedError(f"the file is named {ending} but is a {ENDINGS[kind]}")
    if kind == "ZIP":
        _check_entry_point(content)
    return kind


def _python_kind(content: IO[bytes]) -> str:
    content.seek(0)
    source = content.read(SCRIPT_BYTES_MAX + 1)
    if len(source) > SCRIPT_BYTES_MAX:
        raise RefusedError("the file is not a zip or jar, and too large for a Python file")
    if not source.strip():
        raise RefusedError("the file is empty")
    try:
        # Parsed, never run; syntax warnings in user code are not our concern.
        compile(source, "<artifact>", "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise RefusedError(f"Python cannot parse line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, UnicodeError):
        raise RefusedError("the file is not a zip or jar, and Python cannot parse it") from None
    return "PYTHON"


def _zip_kind(content: IO[bytes]) -> str:
    packed_bytes = content.seek(0, 2)
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
            _check_entries(entries, packed_bytes)
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        raise RefusedError("the zip cannot be read") from None
    if damaged is not None:
        raise RefusedError("an entry of the zip is damaged")
    is_jar = any(entry.filename.upper() == "META-INF/MANIFEST.MF" for entry in entries)
    return "JAR" if is_jar else "ZIP"


def _check_entries(entries: list[zipfile.ZipInfo], packed_bytes: int) -> None:
    if len(entries) > ZIP_ENTRIES_MAX:
        raise RefusedError(f"the zip has more than {ZIP_ENTRIES_MAX} entries")
    unpacked_bytes = sum(entry.file_size for entry in entries)
    if unpacked_bytes > ZIP_UNPACKED_BYTES_MAX:
        raise RefusedError(f"the zip unpacks to more than {ZIP_UNPACKED_BYTES_MAX} bytes")
    if unpacked_bytes > max(ZIP_RATIO_FREE_BYTES, ZIP_RATIO_MAX * packed_bytes):
        raise RefusedError(f"the zip unpacks to more than {ZIP_RATIO_MAX} times its size")
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        is_link = (entry.external_attr >> 28) == 0xA  # the high bits are the Unix mode; 0xA is a symbolic link
        if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0] or is_link:
            raise RefusedError("an entry of the zip points outside of it")


def _check_entry_point(content: IO[bytes]) -> None:
    content.seek(0)
    with zipfile.ZipFile(content) as archive:
        names = archive.namelist()
        if clash := next(filter(None, map(_reserved_name, names)), None):
            raise RefusedError(f"the zip has a module `{clash}`, which would replace the one of that name")
        entry = next((name for name in ENTRY_POINTS if name in names), None)
        if entry is None:
            raise RefusedError(f"the zip has none of {' and '.join(ENTRY_POINTS)} at its root")
        with archive.open(entry) as script:
            try:
                compile(script.read(SCRIPT_BYTES_MAX), entry, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                raise RefusedError(f"Python cannot parse the zip's {entry}") from None


def _reserved_name(entry: str) -> str | None:
    """Returns the reserved name of a module or package that an entry defines at the zip's root; None if it has none."""
    path = PurePosixPath(entry)
    if path.suffix not in _MODULE_SUFFIXES:
        return None
    is_module, is_package = len(path.parts) == 1, len(path.parts) == 2 and path.stem == "__init__"
    name = path.stem if is_module else path.parts[0]
    return name if (is_module or is_package) and name in RESERVED_NAMES else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

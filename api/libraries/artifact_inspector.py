"""Inspects an uploaded file, as a separate process with limits.

Usage: artifact_inspector.py ENDING < FILE

It parses what users send, so a hostile file can hurt this process alone. It writes a line of JSON: `{"kind": ...,
"contents": ...}`, the file's kind by its bytes and its content (see `keyscale.api.libraries.contents`), or `{"refused":
...}`, the reason for the refusal. It imports nothing of Keyscale, so that it starts fast.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import sys
import zipfile
from email.parser import BytesHeaderParser
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CPU_S_MAX = 20
MEMORY_BYTES_MAX = 1 << 30
SCRIPT_BYTES_MAX = 4 << 20
ZIP_ENTRIES_MAX = 20_000
ZIP_DEPTH_MAX = 64
ZIP_NAME_MAX = 1000
ZIP_UNPACKED_BYTES_MAX = 1 << 30
ZIP_RATIO_MAX = 100
ZIP_RATIO_FREE_BYTES = 16 << 20
"""An archive that unpacks to at most this size may have any ratio: short files of repeated text have high ratios."""

METADATA_BYTES_MAX = 1 << 20
MODULES_MAX = 2000
REQUIREMENTS_MAX = 1000

ENDINGS = {"PYTHON": ".py", "ZIP": ".zip", "JAR": ".jar", "WHEEL": ".whl"}
ENTRY_POINTS = ("main.py", "__main__.py")  # the driver runs the first of these in the zip
RESERVED_NAMES = frozenset({"keyscale", "pyspark", "py4j"}) | sys.stdlib_module_names
"""A zip comes before these on the path of drivers and workers: such a module would replace the real module."""

TOO_EXPENSIVE = f"it takes more than {CPU_S_MAX} s or {MEMORY_BYTES_MAX >> 20} MiB of memory to parse"
_ZIP_MAGIC = b"PK"
_MODULE = re.compile(r"(?P<name>[^\W\d]\w*)\.(?:py|pyc|so|(?:cpython|abi3|pypy)[\w.-]*\.so)")
_INSTALLED_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(?P<path>.+)")


class ArtifactRefusedError(Exception):
    """The file is not accepted; the message says why."""


def main(arguments: list[str]) -> int:
    """Inspects the file on standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = inspected(sys.stdin.buffer, arguments[0])
    except ArtifactRefusedError as refusal:
        found = {"refused": str(refusal)}
    except MemoryError:
        found = {"refused": TOO_EXPENSIVE}
    sys.stdout.write(json.dumps(found))
    return 0


def inspected(content: IO[bytes], ending: str) -> dict[str, Any]:
    """Returns the kind of a file, and its content.

    Args:
        content: The file, seekable.
        ending: The ending of the client's name for it, which must match its bytes.

    Raises:
        ArtifactRefusedError: The file is not a valid Python file, zip, wheel or jar.
    """
    if ending not in ENDINGS.values():
        raise ArtifactRefusedError("the file's name does not end in .py, .zip, .whl or .jar")
    content.seek(0)
    kind = _zip_kind(content, ending) if content.read(2) == _ZIP_MAGIC else _python_kind(content)
    if ending != ENDINGS[kind]:
        raise ArtifactRefusedError(f"the file is named {ending} but is a {ENDINGS[kind]}")
    match kind:
        case "ZIP":
            contents = _zip_contents(content)
        case "WHEEL":
            contents = _wheel_contents(content)
        case _:
            contents = {}
    return {"kind": kind, "contents": contents}


def import_names(paths: Iterable[str]) -> list[str]:
    """Returns the names by which files in a directory are imported.

    They are the names of modules, and of packages with an `__init__`.

    A folder without an `__init__` is a namespace, which other libraries may share: its content has dotted names.

    Args:
        paths: The files, relative to the directory, with `/` between parts.
    """
    names, packages = set(), set()
    for path in paths:
        *folders, file = path.split("/")
        found = _MODULE.fullmatch(file)
        if found is None or "__pycache__" in folders or not all(folder.isidentifier() for folder in folders):
            continue
        if found["name"] == "__init__" and folders:
            packages.add(".".join(folders))
        else:
            names.add(".".join((*folders, found["name"])))
    return sorted(name for name in names | packages if not any(parent in packages for parent in _parents(name)))


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _python_kind(content: IO[bytes]) -> str:
    content.seek(0)
    source = content.read(SCRIPT_BYTES_MAX + 1)
    if len(source) > SCRIPT_BYTES_MAX:
        raise ArtifactRefusedError("the file is not a zip or jar, and too large for a Python file")
    if not source.strip():
        raise ArtifactRefusedError("the file is empty")
    try:
        # Parsed, never run; syntax warnings in user code do not matter.
        compile(source, "<artifact>", "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise ArtifactRefusedError(f"Python cannot parse line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, UnicodeError):
        raise ArtifactRefusedError("the file is not a zip or jar, and Python cannot parse it") from None
    return "PYTHON"


def _zip_kind(content: IO[bytes], ending: str) -> str:
    packed_bytes = content.seek(0, 2)
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
            _check_entries(entries, packed_bytes)
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        raise ArtifactRefusedError("the zip cannot be read") from None
    if damaged is not None:
        raise ArtifactRefusedError("an entry of the zip is damaged")
    names = [entry.filename for entry in entries]
    if any(name.upper() == "META-INF/MANIFEST.MF" for name in names):
        return "JAR"
    return "WHEEL" if ending == ENDINGS["WHEEL"] and _metadata_directory(names) is not None else "ZIP"


def _check_entries(entries: list[zipfile.ZipInfo], packed_bytes: int) -> None:
    if len(entries) > ZIP_ENTRIES_MAX:
        raise ArtifactRefusedError(f"the zip has more than {ZIP_ENTRIES_MAX} entries")
    unpacked_bytes = sum(entry.file_size for entry in entries)
    if unpacked_bytes > ZIP_UNPACKED_BYTES_MAX:
        raise ArtifactRefusedError(f"the zip unpacks to more than {ZIP_UNPACKED_BYTES_MAX} bytes")
    if unpacked_bytes > max(ZIP_RATIO_FREE_BYTES, ZIP_RATIO_MAX * packed_bytes):
        raise ArtifactRefusedError(f"the zip unpacks to more than {ZIP_RATIO_MAX} times its size")
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        is_link = (entry.external_attr >> 28) == 0xA  # the high bits are the Unix mode; 0xA is a symbolic link
        if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0] or is_link:
            raise ArtifactRefusedError("an entry of the zip points outside of it")
        if name.count("/") > ZIP_DEPTH_MAX or len(name) > ZIP_NAME_MAX:
            raise ArtifactRefusedError("an entry of the zip is in too many directories, or has too long a name")


def _zip_contents(content: IO[bytes]) -> dict[str, Any]:
    content.seek(0)
    with zipfile.ZipFile(content) as archive:
        names = archive.namelist()
        entry = next((name for name in ENTRY_POINTS if name in names), None)
        modules = _checked_modules("zip", names)
        if entry is not None:
            with archive.open(entry) as script:
                try:
                    compile(script.read(SCRIPT_BYTES_MAX), entry, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
                except (SyntaxError, ValueError, RecursionError):
                    raise ArtifactRefusedError(f"Python cannot parse the zip's {entry}") from None
        elif not modules:
            raise ArtifactRefusedError(f"the zip has neither {' nor '.join(ENTRY_POINTS)} at its root, nor a module")
    programs = {PurePosixPath(name).stem for name in ENTRY_POINTS}
    return {"runnable": entry is not None, "modules": [name for name in modules if name not in programs]}


def _wheel_contents(content: IO[bytes]) -> dict[str, Any]:
    content.seek(0)
    with zipfile.ZipFile(content) as archive:
        names = archive.namelist()
        directory = _metadata_directory(names)
        file = f"{directory}/METADATA"
        if file not in names or archive.getinfo(file).file_size > METADATA_BYTES_MAX:
            raise ArtifactRefusedError("the wheel has no METADATA of usual size")
        metadata = BytesHeaderParser().parsebytes(archive.read(file))
    requirements = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    if not metadata["Name"] or not metadata["Version"] or len(requirements) > REQUIREMENTS_MAX:
        raise ArtifactRefusedError("the wheel's METADATA lacks its name or version, or has too many requirements")
    installed = [name for name in names if ".data/" not in name.partition("/")[0] + "/"]
    installed += [found["path"] for name in names if (found := _INSTALLED_DATA.fullmatch(name)) is not None]
    return {
        "modules": _checked_modules("wheel", installed),
        "distribution": str(metadata["Name"]),
        "version": str(metadata["Version"]),
        "requires": requirements,
        "requires_python": str(metadata["Requires-Python"] or ""),
    }


def _metadata_directory(names: Iterable[str]) -> str | None:
    """Returns the `.dist-info` folder of a wheel.

    Returns None without exactly one such folder.
    """
    found = [name.partition("/")[0] for name in names if name.endswith(".dist-info/WHEEL") and name.count("/") == 1]
    return found[0] if len(found) == 1 else None


def _checked_modules(kind: str, paths: Iterable[str]) -> list[str]:
    modules = import_names(paths)
    if clash := next((name for name in modules if name.partition(".")[0] in RESERVED_NAMES), None):
        reserved = clash.partition(".")[0]
        raise ArtifactRefusedError(f"the {kind} has a module `{reserved}`, which would replace the original module")
    if len(modules) > MODULES_MAX:
        raise ArtifactRefusedError(f"the {kind} has more than {MODULES_MAX} modules outside of packages")
    return modules


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

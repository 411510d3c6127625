"""What an uploaded file is, judged by its bytes; a name that says otherwise is refused."""

from __future__ import annotations

import ast
import zipfile
from pathlib import PurePosixPath
from typing import IO

from api.errors import ArtifactInvalidError
from db.statuses import ArtifactKind

FILENAME_ENDINGS = {ArtifactKind.PYTHON: ".py", ArtifactKind.ZIP: ".zip", ArtifactKind.JAR: ".jar"}
ENTRY_POINTS = ("main.py", "__main__.py")  # the first one that a zip holds is what the driver runs

_SCRIPT_BYTES_MAX = 4 << 20
_ZIP_ENTRIES_MAX = 20_000
_ZIP_UNPACKED_BYTES_MAX = 2 << 30
_ZIP_MAGIC = b"PK"


def inspect_artifact(content: IO[bytes], filename: str) -> ArtifactKind:
    """Returns what the file is.

    Args:
        content: The file, seekable.
        filename: What the client calls it; its ending must be that of its bytes.

    Raises:
        ArtifactInvalidError: It is not a sound Python file, zip or jar.
    """
    ending = PurePosixPath(filename).suffix.lower()
    if ending not in FILENAME_ENDINGS.values():
        raise ArtifactInvalidError("the file's name does not end in .py, .zip or .jar")
    content.seek(0)
    kind = _zip_kind(content) if content.read(2) == _ZIP_MAGIC else _python_kind(content)
    if ending != FILENAME_ENDINGS[kind]:
        raise ArtifactInvalidError(f"the file is called {ending} but is a {FILENAME_ENDINGS[kind]}")
    if kind is ArtifactKind.ZIP:
        _check_entry_point(content)
    return kind


def _python_kind(content: IO[bytes]) -> ArtifactKind:
    content.seek(0)
    source = content.read(_SCRIPT_BYTES_MAX + 1)
    if len(source) > _SCRIPT_BYTES_MAX:
        raise ArtifactInvalidError("the file is no zip or jar, and too large for a Python file")
    if not source.strip():
        raise ArtifactInvalidError("the file is empty")
    try:
        # Parsed, never run: syntax warnings of user code are not ours to raise.
        compile(source, "<artifact>", "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise ArtifactInvalidError(f"Python cannot parse line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, UnicodeError):
        raise ArtifactInvalidError("the file is no zip or jar, and Python cannot parse it") from None
    return ArtifactKind.PYTHON


def _zip_kind(content: IO[bytes]) -> ArtifactKind:
    content.seek(0)
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        raise ArtifactInvalidError("the zip cannot be read") from None
    if damaged is not None:
        raise ArtifactInvalidError("an entry of the zip is damaged")
    is_jar = any(entry.filename.upper() == "META-INF/MANIFEST.MF" for entry in entries)
    return ArtifactKind.JAR if is_jar else ArtifactKind.ZIP


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > _ZIP_ENTRIES_MAX:
        raise ArtifactInvalidError(f"the zip has more than {_ZIP_ENTRIES_MAX} entries")
    if sum(entry.file_size for entry in entries) > _ZIP_UNPACKED_BYTES_MAX:
        raise ArtifactInvalidError(f"the zip unpacks to more than {_ZIP_UNPACKED_BYTES_MAX} bytes")
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        is_link = (entry.external_attr >> 28) == 0xA  # the high bits are the Unix mode; 0xA is a symbolic link
        if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0] or is_link:
            raise ArtifactInvalidError("an entry of the zip points outside of it")


def _check_entry_point(content: IO[bytes]) -> None:
    content.seek(0)
    with zipfile.ZipFile(content) as archive:
        entry = next((name for name in ENTRY_POINTS if name in archive.namelist()), None)
        if entry is None:
            raise ArtifactInvalidError(f"the zip has none of {' and '.join(ENTRY_POINTS)} at its root")
        with archive.open(entry) as script:
            try:
                compile(script.read(_SCRIPT_BYTES_MAX), entry, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise ArtifactInvalidError(f"Python cannot parse the zip's {entry}") from None

"""Inspects an uploaded file in a process with limits.

The limits are on time and memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from keyscale.vocabulary import ArtifactKind

from ..errors import ArtifactInvalidError
from . import artifact_inspector
from .contents import ArtifactContents

_WALL_S_MAX = 3 * artifact_inspector.CPU_S_MAX  # on a busy host a second of processor time takes longer


def inspect_artifact(content: IO[bytes], filename: str) -> tuple[ArtifactKind, ArtifactContents]:
    """Returns the kind of an uploaded file, and its content.

    Args:
        content: The file, seekable.
        filename: The client's name for it; its ending must match its bytes.

    Raises:
        ArtifactInvalidError: The file is not a valid Python file, zip, wheel or jar, or its inspection exceeds the
            limits.
    """
    # A copy: the process would move the position of a shared file.
    with tempfile.TemporaryFile() as copy:
        content.seek(0)
        shutil.copyfileobj(content, copy)
        copy.seek(0)
        try:
            finished = subprocess.run(  # noqa: S603 - our own program; the argument is data to it
                [sys.executable, "-I", artifact_inspector.__file__, PurePosixPath(filename).suffix.lower()],
                stdin=copy,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_WALL_S_MAX,
                check=False,
                cwd=Path("/"),
                env={},
            )
        except subprocess.TimeoutExpired:
            raise ArtifactInvalidError(artifact_inspector.TOO_EXPENSIVE) from None
    if finished.returncode != 0:  # ended by a limit, or by a file that crashes Python's own parser
        raise ArtifactInvalidError(artifact_inspector.TOO_EXPENSIVE)
    found = json.loads(finished.stdout)
    if "refused" in found:
        raise ArtifactInvalidError(found["refused"])
    return ArtifactKind(found["kind"]), ArtifactContents.model_validate(found["contents"])

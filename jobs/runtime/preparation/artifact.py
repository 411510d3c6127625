"""Fetches, verifies and runs the user's artifact.

Running it declares the job's topology.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import types
import zipfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError

from ...operators.failures import TaskOrigin, exception_line, user_traceback, with_origin
from ..errors import (
    ArtifactCorruptError,
    ArtifactUnsupportedError,
    ControlUnreachableError,
    JobScriptError,
    LibrariesMissingError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ...protocol.messages import LibraryFile
    from ..control.channel import ControlChannel

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
PROGRAM = "program"
"""The directory of the program, below the directory of the driver."""
_ENTRY_POINTS = ("main.py", "__main__.py")


@dataclass(frozen=True, slots=True)
class LocalArtifact:
    """A verified local copy of the file that the user uploaded."""

    path: Path

    @classmethod
    def fetch(cls, channel: ControlChannel, filename: str, sha256: str, directory: Path) -> LocalArtifact:
        """Fetches the artifact into a directory.

        The wait for a control plane has no time limit.

        Args:
            channel: The connection to the control plane.
            filename: The name of the uploaded file, which tracebacks show.
            sha256: The expected SHA-256, as lower-case hex.
            directory: An existing local directory.

        Raises:
            ArtifactCorruptError: The artifact has another SHA-256.
            ArtifactUnsupportedError: The artifact is neither a .py nor a .zip file.
            ControlRefusedError, AttemptOverError: As a message to the control plane.
        """
        name = PurePosixPath(filename).name
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in {".py", ".zip"}:
            raise ArtifactUnsupportedError(f"an artifact cannot end in {suffix!r}")
        path = directory / PROGRAM / name
        path.parent.mkdir(exist_ok=True)
        while True:
            try:
                channel.fetch_artifact(path)
                break
            except ControlUnreachableError as error:
                logger.warning("no answer to the request for the artifact: %s", error)
                time.sleep(_RETRY_SECONDS)
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != sha256:
            raise ArtifactCorruptError(f"the artifact's SHA-256 is {actual}, not {sha256}")
        return cls(path)

    def run(self, spark: SparkSession) -> None:
        """Runs the user's script as Python would, as the module `__main__`.

        The script, and its functions on the executors, can import the modules inside a zip. Definitions of the script
        itself travel to the executors by value, because it is `__main__`.

        Raises:
            ArtifactUnsupportedError: A zip has no main.py.
            JobScriptError: The script raised, or called sys.exit with a failure; its origin holds the traceback.
            KeyscaleError: The declared job cannot run, or has failed.
        """
        source, origin = self._entry_point()
        if self.path.suffix == ".zip":
            sys.path.insert(0, str(self.path))
            spark.sparkContext.addPyFile(str(self.path))
        # The module stays registered: pickling and type hints look up the script's classes in it.
        module = types.ModuleType("__main__")
        module.__file__ = origin
        sys.modules["__main__"] = module
        try:
            exec(compile(source, origin, "exec"), module.__dict__)  # noqa: S102 - it runs the user's code
        except SystemExit as leaving:
            if leaving.code not in {None, 0}:
                failure = JobScriptError(f"the job's script ended with {exception_line(leaving)}")
                raise with_origin(failure, TaskOrigin(user_traceback=user_traceback(leaving))) from None
        except KeyscaleError:
            raise
        except Exception as error:  # noqa: BLE001 - a script may raise anything
            failure = JobScriptError(f"the job's script raised {exception_line(error)}{_hint(error)}")
            raise with_origin(failure, TaskOrigin(user_traceback=user_traceback(error))) from None

    def _entry_point(self) -> tuple[bytes, str]:
        if self.path.suffix == ".py":
            return self.path.read_bytes(), str(self.path)
        try:
            with zipfile.ZipFile(self.path) as archive:
                for name in _ENTRY_POINTS:
                    if name in archive.namelist():
                        return archive.read(name), f"{self.path}/{name}"
        except zipfile.BadZipFile as error:
            raise ArtifactUnsupportedError("the artifact is not a zip file") from error
        raise ArtifactUnsupportedError("the artifact has no main.py at its top level")


def require_libraries(wanted: Iterable[LibraryFile], present: Collection[str]) -> None:
    """Refuses to run a job without its libraries.

    Raises:
        LibrariesMissingError: The driver was started without a library, perhaps for another revision of the job.
    """
    missing = [library.filename for library in wanted if library.sha256 not in present]
    if missing:
        raise LibrariesMissingError(f"the driver was started without {', '.join(missing)}")


def _hint(error: Exception) -> str:
    is_old_name = isinstance(error, ModuleNotFoundError) and error.name in {"jobs", "state"}
    return "; since version 0.2 Keyscale's names are imported from `keyscale`" if is_old_name else ""

"""The user's artifact: fetched, verified, and run for the topology that it declares."""

from __future__ import annotations

import hashlib
import sys
import traceback
import types
import zipfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from jobs.runtime.errors import ArtifactCorruptError, ArtifactUnsupportedError, JobScriptError
from jobs.runtime.failures import TaskOrigin, with_origin
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jobs.runtime.control import ControlChannel

_ENTRY_POINTS = ("main.py", "__main__.py")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified local copy of what the user uploaded."""

    path: Path

    @classmethod
    def fetch(cls, channel: ControlChannel, filename: str, sha256: str, directory: Path) -> Artifact:
        """Fetch the artifact into a directory.

        Args:
            channel: Where it comes from.
            filename: The name it was uploaded by; only its ending is used.
            sha256: What it must hash to, as lower-case hex.
            directory: An existing local directory.

        Raises:
            ArtifactCorruptError: Its bytes hash to something else.
            ArtifactUnsupportedError: It is no .py and no .zip.
            ControlError: It could not be had.
        """
        ending = PurePosixPath(filename).suffix.lower()
        if ending not in {".py", ".zip"}:
            message = f"an artifact cannot end in {ending!r}"
            raise ArtifactUnsupportedError(message)
        path = directory / f"artifact{ending}"
        channel.fetch_artifact(path)
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != sha256:
            message = f"the artifact's SHA-256 is {actual}, not {sha256}"
            raise ArtifactCorruptError(message)
        return cls(path)

    def run(self, spark: SparkSession) -> None:
        """Run the user's script as Python would, as the module `__main__`.

        Modules inside a zip can be imported by the script and, on the executors, by its functions. What the script itself
        defines travels to the executors by value, because it is `__main__`.

        Raises:
            ArtifactUnsupportedError: A zip holds no main.py.
            JobScriptError: The script raised, or called sys.exit with a failure; its origin holds the traceback.
            KeyscaleError: What the script declared cannot run, or its job has failed.
        """
        source, origin = self._entry_point()
        if self.path.suffix == ".zip":
            sys.path.insert(0, str(self.path))
            spark.sparkContext.addPyFile(str(self.path))
        # Registered for good: classes of the script are looked up there when they are pickled or their hints are read.
        module = types.ModuleType("__main__")
        module.__file__ = origin
        sys.modules["__main__"] = module
        try:
            exec(compile(source, origin, "exec"), module.__dict__)  # noqa: S102 - running the user's code is the purpose
        except SystemExit as leaving:
            if leaving.code not in {None, 0}:
                message = "the job's script ended with sys.exit"
                shown = TaskOrigin(user_traceback=user_traceback(leaving, self.path))
                raise with_origin(JobScriptError(message), shown) from leaving
        except KeyscaleError:
            raise
        except Exception as error:
            message = f"the job's script raised {type(error).__name__}"
            shown = TaskOrigin(user_traceback=user_traceback(error, self.path))
            raise with_origin(JobScriptError(message), shown) from error

    def _entry_point(self) -> tuple[bytes, str]:
        if self.path.suffix == ".py":
            return self.path.read_bytes(), str(self.path)
        try:
            with zipfile.ZipFile(self.path) as archive:
                for name in _ENTRY_POINTS:
                    if name in archive.namelist():
                        return archive.read(name), f"{self.path}/{name}"
        except zipfile.BadZipFile as error:
            message = "the artifact is no zip file"
            raise ArtifactUnsupportedError(message) from error
        message = "the artifact holds no main.py at its top"
        raise ArtifactUnsupportedError(message)


def user_traceback(error: BaseException, artifact_path: Path) -> str:
    """The part of a script's traceback that its author knows: from the first of the script's own lines on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((at for at, frame in enumerate(frames) if frame.filename.startswith(str(artifact_path))), 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[own:])]
    return "".join(lines + traceback.format_exception_only(error))

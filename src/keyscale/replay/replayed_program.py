"""The program of a replay as files that a debugger can show."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from keyscale.jobs.runtime.errors import ArtifactUnsupportedError
from keyscale.state.doors.catalogue import read_job_record
from keyscale.state.doors.paths import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import Attempt, JobId
    from keyscale.state.doors.catalogue import RecordedArtifact
    from keyscale.state.doors.objects import ObjectStore

_ENTRY_POINTS = ("main.py", "__main__.py")


@dataclass(frozen=True, slots=True)
class Program:
    """A program on this machine.

    Attributes:
        script: The script.
        python_path: The directories of the modules that it imports.
        jars: The jars that it needs.
    """

    script: Path
    python_path: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()

    @classmethod
    def placed(cls, file: Path, libraries: Sequence[Path], directory: Path) -> Program:
        """Unpacks a program and its libraries.

        Args:
            file: A .py file, which stays where it is, or a .zip with a main.py at its top.
            libraries: Python files, zips, wheels and jars.
            directory: Where they are unpacked.

        Raises:
            ArtifactUnsupportedError: The file is no program.
        """
        # Two libraries may have one name.
        python_path = [
            _unpacked(each, directory / "libraries" / str(number) / each.name)
            for number, each in enumerate(libraries)
            if not _is_jar(each)
        ]
        jars = tuple(each for each in libraries if _is_jar(each))
        if file.suffix == ".py":
            return cls(file, tuple(python_path), jars)
        if file.suffix != ".zip" or not zipfile.is_zipfile(file):
            raise ArtifactUnsupportedError(f"{file.name} is neither a .py nor a .zip file")
        unpacked = _unpacked(file, directory / "program")
        script = next((unpacked / name for name in _ENTRY_POINTS if (unpacked / name).is_file()), None)
        if script is None:
            raise ArtifactUnsupportedError("the program has no main.py at its top level")
        return cls(script, (unpacked, *python_path), jars)


class Definition(msgspec.Struct, frozen=True):
    """What a job runs: its program, parameters and settings of Spark.

    Attributes:
        file: The program.
        libraries: The libraries that are artifacts.
        parameters: The parameters; a secret is {"secret": name}.
        spark_conf: The job's settings of Spark.
        revision: The number of the revision.
    """

    file: str
    libraries: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    spark_conf: dict[str, str] = {}
    revision: int | None = None

    @classmethod
    def of_record(cls, store: ObjectStore, job_id: JobId, attempt: Attempt, directory: Path) -> Definition:
        """Fetches the definition of an attempt from beside the state.

        Raises:
            ObjectNotFoundError: The record of the attempt was deleted: a newer attempt has restored state.
            KeyscaleError: The store does not answer, or the record cannot be read.
        """
        record = read_job_record(store, job_id, attempt)
        spec = record.specification
        files = {
            each.id: _fetched(
                store, Layout(job_id).recorded_artifact(each.sha256), each, directory / "artifacts" / str(number)
            )
            for number, each in enumerate(record.artifacts)
        }
        program = files.pop(spec["artifact_id"])
        return cls(
            program, tuple(files.values()), spec.get("parameters", {}), spec.get("spark_conf", {}), record.revision
        )


def _fetched(store: ObjectStore, path: str, artifact: RecordedArtifact, directory: Path) -> str:
    target = directory / Path(artifact.filename).name
    target.parent.mkdir(parents=True, exist_ok=True)
    store.download(path, target, size_bytes=artifact.size_bytes, sha256=artifact.sha256)
    return str(target)


def _is_jar(file: Path) -> bool:
    return file.suffix == ".jar"


def _unpacked(file: Path, directory: Path) -> Path:
    """Returns the directory from which a file's modules can be imported."""
    directory.mkdir(parents=True)
    if file.suffix == ".py":
        shutil.copy(file, directory)
    else:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(directory)
    return directory

"""The text of a file that declares a present job."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from keyscale.jobs.protocol.redaction import redact_named
from keyscale.jobs.protocol.specification import ChangeClass, JobSpec, change_class_of

from ..errors import JobFileError
from .job_file import OF_ARTIFACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyscale.api.jobs.schemas.job import JobSummaryAnswer

MASK = redact_named("password", "x")


def distinct_files(used: Iterable[str], filenames: Mapping[str, str]) -> dict[str, str]:
    """Returns a file for each artifact in use, by id.

    The second artifact of a name has its file in a directory of its own.

    Args:
        used: The ids, and packages of jars, which have no file.
        filenames: The name of each artifact's file, by id.
    """
    files: dict[str, str] = {}
    for each in dict.fromkeys(used):
        if each in filenames:
            name = PurePath(filenames[each]).name
            files[each] = f"{each[:8]}/{name}" if name in files.values() else name
    return files


def job_text(job: JobSummaryAnswer, filenames: Mapping[str, str]) -> str:
    """Returns a document that declares a job as it is.

    Args:
        job: The job.
        filenames: The name of each artifact's file, by id.

    Raises:
        JobFileError: A parameter is masked, so that a file cannot have its value.
    """
    for name, value in job.spec.parameters.items():
        if isinstance(value, str) and MASK in value:
            raise JobFileError(
                f"{job.name}: the parameter {name} looks like a secret, and its value is masked; make it a secret first"
            )
    document: dict[str, Any] = {"name": job.name}
    if job.labels:
        document["labels"] = dict(job.labels)
    document["state"] = "RUNNING" if job.status.desired == "RUNNING" else "STOPPED"
    document["program"] = filenames[job.spec.artifact_id]
    if job.spec.libraries:
        document["libraries"] = [filenames.get(each, each) for each in job.spec.libraries]
    if spec := _settings(job.spec):
        document["spec"] = spec
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _settings(spec: JobSpec) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, and the fixed settings."""
    default, given = JobSpec(artifact_id=spec.artifact_id).given(), spec.given()
    return {
        name: value
        for name, value in given.items()
        if name not in OF_ARTIFACTS and (value != default[name] or change_class_of(name) is ChangeClass.FIXED)
    }

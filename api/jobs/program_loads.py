"""Loads of programs with the settings of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import artifacts
from keyscale.jobs.protocol.program import ProgramQuestion
from keyscale.jobs.protocol.redaction import Mask

from ..libraries.job_libraries import libraries_of
from ..shapes import FailureAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.db.models import Artifact
    from keyscale.jobs.protocol.program import ProgramAnswer
    from keyscale.jobs.protocol.specification import JobSpec

    from ..control_plane.context import Context
    from ..launching.isolation import UserHolder


def load_program(
    context: Context, program: Artifact, spec: JobSpec, *, max_parallelism: int, holder: UserHolder | None
) -> ProgramAnswer:
    """Loads a program with the settings of a specification.

    Args:
        context: The control plane.
        program: The program.
        spec: The specification, which the requester may use.
        max_parallelism: The number of key groups.
        holder: The job whose user runs the program; None: a user of the load's own.

    Raises:
        KeyscaleError: As `ProgramLoading.load`.
    """
    with context.reads() as session:
        brought = libraries_of(session, spec.libraries)
    return context.programs.load(
        ProgramQuestion(
            artifact_file=program.filename,
            parameters=spec.given()["parameters"],
            max_parallelism=max_parallelism,
            parallelism=spec.parallelism,
        ),
        stored_bytes(context, program.sha256),
        spark_conf=spec.spark_conf,
        secrets=spec.secrets,
        brought=brought,
        holder=holder,
    )


def failure_of(context: Context, spec: JobSpec, loaded: ProgramAnswer) -> FailureAnswer | None:
    """Returns why a program could not be loaded, with its secrets masked."""
    if loaded.failure is None:
        return None
    mask = Mask(context.settings.job_secrets.variables_of(spec.secrets))
    shown = {name: mask(value) if isinstance(value, str) else value for name, value in loaded.failure.items()}
    return FailureAnswer.model_validate(shown)


def stored_bytes(context: Context, sha256: str) -> Iterator[bytes]:
    """Yields the bytes of an artifact, chunk by chunk.

    The transaction ends with the last bytes, before a program runs for long.
    """
    with context.reads() as session:
        yield from artifacts.read_bytes(session, sha256)

"""Checks of programs without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import events
from keyscale.jobs.protocol.specification import JobSpec

from ..database_clock import shared_now_ms
from ..jobs.jobs import check_specification, require_program
from ..jobs.program_loads import failure_of, load_program
from ..secret_labels.secret_labels import require_covered
from .artifacts import require_artifact
from .declared_program import check_answer

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas import ProgramCheckAnswer, ProgramCheckRequest


def check(context: Context, user: Principal, artifact_id: str, request: ProgramCheckRequest) -> ProgramCheckAnswer:
    """Loads a program as for a new job of the user.

    Its secrets, libraries and settings have the same rules as those of a new job. The program runs as a user of the
    operating system that no job has.

    Raises:
        ArtifactNotFoundError, ArtifactNotRunnableError: The program or a library is not available.
        JarNotAllowedError, LibraryInvalidError, LibraryClashError, LibraryRequirementError: The libraries do not fit.
        ParallelismInvalidError, SparkConfNotAllowedError, JobLimitError: A setting is not allowed.
        SecretUnknownError, OutOfScopeError: The user may not use a secret.
        TooManyInFlightError, PlanTimeoutError, ProgramUnloadableError: The program cannot be loaded now.
        JobUserError: The program cannot have a user.
    """
    with context.checks.place(user.id):
        with context.sessions.begin() as session:
            program = require_artifact(session, artifact_id)
            spec = JobSpec.model_validate({"artifact_id": artifact_id, **request.model_dump(mode="json")})
            check_specification(context, spec)
            require_program(context, session, user, spec)
            require_covered(session, user, None, spec)
            events.record(
                session,
                job_id=None,
                at_ms=shared_now_ms(),
                kind="ARTIFACT_CHECKED",
                actor=user.name,
                message=f"checked {program.name} version {program.version}",
                artifact_id=program.id,
                secrets=spec.secrets,
            )
            session.flush()
            session.expunge(program)
        loaded = load_program(context, program, spec, max_parallelism=spec.max_parallelism, holder=None)
    return check_answer(loaded.declaration, failure_of(context, spec, loaded))

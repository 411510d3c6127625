"""Labels of secrets, which say whose jobs may name a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import events, secret_labels
from keyscale.jobs.protocol.specification import defines_program, differences

from ..database_clock import shared_now_ms
from ..errors import OutOfScopeError, SecretUnknownError
from .schemas import SecretAnswer, SecretList

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.jobs.protocol.specification import JobSpec

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas import SecretLabelsRequest


def list_all(context: Context, user: Principal) -> SecretList:
    """Lists the secrets that a user may name, by their names."""
    with context.reads() as session:
        labels = secret_labels.list_all(session)
    names = context.settings.job_secrets.names()
    return SecretList(
        secrets=[
            SecretAnswer(name=name, labels=labels.get(name, {}), is_set=name in names)
            for name in sorted(names | labels.keys())
            if user.scope.covers(job_id="", name="", labels=labels.get(name, {}))
        ]
    )


def replace(context: Context, user: Principal, name: str, request: SecretLabelsRequest) -> SecretAnswer:
    """Replaces the labels of a secret, perhaps before it has a value."""
    with context.sessions.begin() as session:
        secret_labels.replace(session, name, request.labels)
        shown = ", ".join(f"{key}={value}" for key, value in sorted(request.labels.items())) or "no labels"
        events.record(
            session,
            job_id=None,
            at_ms=shared_now_ms(),
            kind="SECRET_LABELLED",
            actor=user.name,
            message=f"gave the secret {name} {shown}",
            secret=name,
            labels=request.labels,
        )
    is_set = name in context.settings.job_secrets.names()
    return SecretAnswer(name=name, labels=request.labels, is_set=is_set)


def require_covered(session: Session, user: Principal, before: JobSpec | None, after: JobSpec) -> None:
    """Refuses the secrets that a user newly gives to a job.

    A secret outside of the scope is answered like a missing secret. A job keeps the secrets that it has.

    Args:
        session: The transaction.
        user: The user.
        before: The specification that the user changes or clones; None for a new one.
        after: The wanted specification.

    Raises:
        SecretUnknownError: The user's scope does not cover a secret.
        OutOfScopeError: The job would get all secrets, and the user chooses what its program does.
    """
    if user.scope.is_everything:
        return
    if after.secrets is None:
        if before is None or any(defines_program(each.path) for each in differences(before, after)):
            raise OutOfScopeError("the job gets all secrets, which your scope does not cover: name its secrets")
        return
    kept = set() if before is None or before.secrets is None else set(before.secrets)
    new = set(after.secrets) - kept
    labels = secret_labels.find(session, new)
    outside = [name for name in sorted(new) if not user.scope.covers(job_id="", name="", labels=labels.get(name, {}))]
    if outside:
        raise SecretUnknownError(f"the secrets do not exist: {', '.join(outside)}")

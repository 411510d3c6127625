"""Plans of what to do about declared jobs; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.specification import ChangeClass, Difference, JobSpec, change_class_of, differences
from keyscale.vocabulary import AutoscalerMode

from .job_file import Content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyscale.api.jobs.schemas.job import JobSummaryAnswer

    from .job_file import Declaration

NEW_FILE = "file:"
"""Begins the id of an artifact that has not been uploaded."""
ENDED = frozenset({"FINISHED"})
ENTRIES = frozenset({"parameters", "spark_conf"})
"""Settings with entries of the user's."""
RUNNING, STOPPED = "RUNNING", "STOPPED"


class Step(StrEnum):
    """What to do about a job, in this order."""

    CREATE = "CREATE"
    STOP = "STOP"
    UPDATE = "UPDATE"
    START = "START"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to do about a job.

    Attributes:
        name: Name of the job.
        steps: What to do, in order; empty: the job is as declared.
        differences: What an update changes.
        refusal: Why the declaration cannot be applied; None: it can.
        declaration: The declaration; None: of a job to delete.
        present: The present job; None: of a job to create.
        spec: The specification that the job gets; None: of a job to delete.
    """

    name: str
    steps: tuple[Step, ...] = ()
    differences: tuple[Difference, ...] = ()
    refusal: str | None = None
    declaration: Declaration | None = None
    present: JobSummaryAnswer | None = None
    spec: JobSpec | None = None

    @property
    def needs_attempt(self) -> bool:
        """Whether an update gives a running job another attempt."""
        return any(each.needs_attempt for each in self.differences)

    def new_spec(self) -> JobSpec:
        """Returns the specification of a new job.

        Only the settings of the file are set, so that the control plane decides the rest.
        """
        if self.declaration is None or self.spec is None:
            raise LookupError(self.name)
        ids = {"artifact_id": self.spec.artifact_id, "libraries": self.spec.libraries}
        return JobSpec.model_validate({**self.declaration.given, **ids})

    def patch(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the merge patch of an update to a specification."""
        return patch_of(self.differences, spec)


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is.

    Attributes:
        jobs: The present jobs.
        hashes: The SHA-256 of each artifact, by id.
    """

    jobs: Iterable[JobSummaryAnswer]
    hashes: Mapping[str, str] = field(default_factory=dict)


def plan_jobs(
    declarations: Iterable[Declaration], facts: Facts, *, prune: Mapping[str, str] | None = None
) -> list[JobPlan]:
    """Decides what to do.

    Args:
        declarations: The declared jobs.
        facts: The present jobs and artifacts.
        prune: Labels; jobs that have all of them and are not declared are deleted. None: jobs are never deleted.
    """
    present = {job.name: job for job in facts.jobs}
    plans = [_plan(each, present.get(each.name), facts.hashes) for each in declarations]
    if prune:
        declared = {each.name for each in plans}
        plans += [
            _deletion(job)
            for name, job in sorted(present.items())
            if name not in declared and prune.items() <= job.labels.items()
        ]
    return plans


def patch_of(changes: Iterable[Difference], spec: JobSpec) -> dict[str, Any]:
    """Returns the merge patch of changed settings.

    Parameters and Spark settings are patched entry by entry; another setting is given as a whole, as a restart strategy
    of another type replaces the present strategy.
    """
    given, patch = spec.given(), dict[str, Any]()
    for each in changes:
        name, _, entry = each.path.partition(".")
        if entry and name in ENTRIES:
            patch.setdefault(name, {})[entry] = each.after
        else:
            patch[name] = given[name]
    return patch


def _plan(declaration: Declaration, job: JobSummaryAnswer | None, hashes: Mapping[str, str]) -> JobPlan:
    if job is None:
        spec = _desired(declaration, None, hashes)
        creation = (Step.CREATE, Step.START) if declaration.state == RUNNING else (Step.CREATE,)
        return JobPlan(declaration.name, creation, declaration=declaration, spec=spec)
    spec = _desired(declaration, job.spec, hashes)
    changes = tuple(differences(job.spec, spec))
    refusal = _refusal(declaration, job, changes)
    if refusal is not None:
        return JobPlan(declaration.name, (), changes, refusal, declaration, job, spec)
    steps: list[Step] = []
    if declaration.state == STOPPED and _is_on(job):
        steps.append(Step.STOP)
    if changes:
        steps.append(Step.UPDATE)
    if declaration.state == RUNNING and not _is_on(job) and job.status.state not in ENDED:
        steps.append(Step.START)
    return JobPlan(declaration.name, tuple(steps), changes, None, declaration, job, spec)


def _deletion(job: JobSummaryAnswer) -> JobPlan:
    steps = (Step.STOP, Step.DELETE) if _is_on(job) else (Step.DELETE,)
    return JobPlan(job.name, steps, present=job)


def _is_on(job: JobSummaryAnswer) -> bool:
    """Returns whether a job runs, or will run without anything more."""
    return job.status.desired == RUNNING and job.status.state not in {"FAILED", "FINISHED"}


def _desired(declaration: Declaration, present: JobSpec | None, hashes: Mapping[str, str]) -> JobSpec:
    """Returns the specification that a job gets.

    A fixed setting that the file leaves out stays as it is, and so does a setting that the platform owns. The platform
    owns the parallelism of a job with an active autoscaler.
    """
    given = dict(declaration.given)
    if present is not None:
        kept = {name for name in JobSpec.model_fields if change_class_of(name) is ChangeClass.FIXED} - given.keys()
        given |= {name: getattr(present, name) for name in kept | declaration.owned}
    spec = JobSpec.model_validate({**given, "artifact_id": "program"})
    known = [] if present is None else [present.artifact_id, *present.libraries]
    if present is not None and spec.autoscaler.mode is AutoscalerMode.ACTIVE:
        spec = spec.model_copy(update={"parallelism": present.parallelism})
    libraries = [
        _artifact_id(each, hashes, known) if isinstance(each, Content) else each for each in declaration.libraries
    ]
    artifact_id = _artifact_id(declaration.program, hashes, known)
    return spec.model_copy(update={"artifact_id": artifact_id, "libraries": libraries})


def _artifact_id(content: Content, hashes: Mapping[str, str], known: Iterable[str]) -> str:
    """Returns the artifact with a file's bytes.

    An artifact that the job has is preferred.
    """
    sha256 = content.sha256
    ids = [artifact_id for artifact_id in (*known, *hashes) if hashes.get(artifact_id) == sha256]
    return ids[0] if ids else f"{NEW_FILE}{content.path.name}"


def _refusal(declaration: Declaration, job: JobSummaryAnswer, changes: Iterable[Difference]) -> str | None:
    if dict(declaration.labels) != job.labels:
        return f"labels are fixed: the job has {_text(job.labels)}, not {_text(declaration.labels)}"
    for each in changes:
        if each.change_class is ChangeClass.FIXED:
            return f"{each.path} is fixed: the job has {each.before}, not {each.after}"
    return None


def _text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "none"

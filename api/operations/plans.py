"""Plans: the effects of a change of a job, before anything stops."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keyscale.db.repositories import artifacts, attempts, checkpoints, operations, revisions
from keyscale.identifiers import JobId
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.redaction import redact_named
from keyscale.jobs.protocol.specification import defines_program, differences
from keyscale.state.doors.paths import location_of, split_location
from keyscale.state.doors.planning import (
    UNNAMED_SOURCE,
    chosen_ranges,
    movements,
    operator_changes,
    read_stored_state,
    size_bytes_of,
    skew,
)
from keyscale.vocabulary import DesiredState, Fate, JobStatus, KeyGroupDivision, OperationKind, RescaleMode

from ..errors import ChangeIncompatibleError, RevisionNotFoundError
from ..job_spec import changed, spec_of
from ..jobs.jobs import check_specification, require_job, require_program
from ..jobs.program_loads import failure_of, load_program
from ..lifecycle.requests import rescale_way
from ..secret_labels.secret_labels import require_covered
from ..shapes import FailureAnswer
from ..store_check import open_to_read, read_within
from .schemas.change_plan import (
    DowntimePlan,
    EndpointPlan,
    MovementPlan,
    OperatorMovement,
    OperatorPlan,
    PlanAnswer,
    SettingPlan,
    StatePlan,
    SubtaskMovementAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Artifact, Attempt, Job, Revision
    from keyscale.jobs.protocol.program import ProgramAnswer, ProgramDeclaration
    from keyscale.jobs.protocol.specification import JobSpec
    from keyscale.state.doors.planning import OperatorChange, StoredState

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..jobs.schemas.job_spec import SpecificationChange

UNPUBLISHED = "the batch committed last may not be published yet, and only this sink can publish it"
_SAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that the database has for a plan.

    Attributes:
        job: The job.
        before: Its specification.
        program: The program that it would have.
        after: Its specification after the change.
        location: Its latest completed checkpoint or savepoint.
        key_group_bytes: Each operator's bytes per key group, where they are known.
        rescale_mode: The way of a rescale of a running job.
        not_live: Why that way needs a new driver.
        downtimes_ms: The downtimes of its last changes of this kind and way, the newest first.
        artifact_names: The name and version of each artifact in the specifications, by its id.
        sinks: The sinks in the graph that its driver has reported last.
    """

    job: Job
    before: JobSpec
    program: Artifact
    after: JobSpec
    location: str | None
    key_group_bytes: dict[str, list[int]]
    rescale_mode: RescaleMode | None
    not_live: Mapping[str, Any] | None
    downtimes_ms: list[int]
    artifact_names: dict[str, str]
    sinks: frozenset[str]


def plan(context: Context, user: Principal, reference: str, change: SpecificationChange) -> PlanAnswer:
    """Returns the effects of a change.

    The job may run, have ended, or have failed.

    Raises:
        JobNotFoundError: The job does not exist.
        ArtifactNotFoundError, ArtifactNotRunnableError: The program is not available.
        ParallelismInvalidError, SparkConfNotAllowedError, SecretUnknownError: A setting is not allowed.
        StoreUnavailableError: The job's stored state cannot be read.
        TooManyInFlightError, PlanTimeoutError, ProgramUnloadableError: The program cannot be loaded now.
    """
    return _plan(context, user, reference, lambda _, __, before: changed(before, change.spec), change.spec)


def plan_return(context: Context, user: Principal, reference: str, number: int) -> PlanAnswer:
    """Returns the effects of a return to an earlier revision.

    Raises:
        RevisionNotFoundError: The job has no such revision.
        KeyscaleError: As `plan`.
    """

    def earlier(session: Session, job: Job, _: JobSpec) -> JobSpec:
        return spec_of(require_revision(session, job, number))

    return _plan(context, user, reference, earlier)


def require_revision(session: Session, job: Job, number: int) -> Revision:
    """Returns a job's revision with this number.

    Raises:
        RevisionNotFoundError: The job has no such revision.
    """
    found = revisions.find(session, job.id, number)
    if found is None:
        raise RevisionNotFoundError(f"the job has no revision {number}")
    return found


def _plan(
    context: Context,
    user: Principal,
    reference: str,
    change: Callable[[Session, Job, JobSpec], JobSpec],
    given: Iterable[str] = (),
) -> PlanAnswer:
    """Plans a change.

    The program is loaded if a setting that defines it changes, or is given as it was.
    """
    with context.plans.place(user.id):
        with context.reads() as session:
            job = require_job(session, reference)
            before = spec_of(revisions.current(session, job))
            facts = _facts(session, context, user, job, before, change(session, job, before))
        stored = _read_stored(context, facts)
        touched = {*given, *(each.path for each in differences(before, facts.after))}
        answer = _load(context, facts) if any(map(defines_program, touched)) else None
        return _answer(facts, stored, answer, context)


def require_takeover(
    context: Context, user: Principal, reference: str, wanted: JobSpec, *, allow_non_restored_state: bool
) -> None:
    """Refuses a specification that could not take over the job's state.

    A change that cannot be planned now is refused. A program that raises is accepted, as its declarations are unknown.
    Only the program, its libraries and its parameters determine the state. A program that was just planned is not
    loaded again.

    Raises:
        ChangeIncompatibleError: The changed job could not take over its state, or would lose state without permission.
        KeyscaleError: As `plan`.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        before = spec_of(revisions.current(session, job))
        fields = {each.path.partition(".")[0] for each in differences(before, wanted)}
        if not fields & {"artifact_id", "libraries", "parameters"}:
            return
        facts = _facts(session, context, user, job, before, wanted)
    with context.plans.place(user.id):
        loaded = context.programs.recall(_key(facts)) or _load(context, facts)
        found = _answer(facts, _read_stored(context, facts), loaded, context)
    if found.failure is not None:
        return
    problems = found.problems()
    if found.requires_allow_non_restored_state and not allow_non_restored_state:
        lost = ", ".join(map(repr, found.dropped()))
        problems.append(f"the state or output of {lost} would be lost, which allow_non_restored_state has to allow")
    if problems:
        raise ChangeIncompatibleError("; ".join(problems))


def _facts(  # noqa: PLR0917 - a job before and after
    session: Session, context: Context, user: Principal, job: Job, before: JobSpec, after: JobSpec
) -> _Facts:
    check_specification(context, after)
    if (after.artifact_id, after.libraries) != (before.artifact_id, before.libraries):
        require_program(context, session, user, after)
    require_covered(session, user, before, after)
    program = artifacts.find(session, after.artifact_id)
    assert program is not None  # noqa: S101 - a job keeps its artifact from being deleted
    latest = checkpoints.latest_completed(session, job.id)
    sizes: dict[str, list[tuple[int, list[int]]]] = {}
    for each in [] if latest is None else checkpoints.subtasks(session, job.id, latest.checkpoint_id):
        sizes.setdefault(each.operator_uid, []).append((each.key_group_start, each.key_group_bytes))
    used = {each for one in (before, after) for each in (one.artifact_id, *one.libraries)}
    only_parallelism = {each.path for each in differences(before, after)} == {"parallelism"}
    kind = OperationKind.RESCALE if only_parallelism else OperationKind.UPGRADE
    is_rescale = only_parallelism and job.desired is DesiredState.RUNNING
    mode, not_live = rescale_way(session, job, after) if is_rescale else (None, None)
    return _Facts(
        job=job,
        before=before,
        program=program,
        after=after,
        location=None if latest is None else latest.external_path,
        key_group_bytes={uid: [size for _, part in sorted(parts) for size in part] for uid, parts in sizes.items()},
        rescale_mode=mode,
        not_live=not_live,
        downtimes_ms=operations.last_downtimes(session, job.id, kind, mode, _SAMPLES_MAX),
        artifact_names={
            each.id: f"{each.name} version {each.version}" for each in artifacts.find_all(session, used).values()
        },
        sinks=_sinks_of(attempts.latest(session, job.id)),
    )


def _sinks_of(attempt: Attempt | None) -> frozenset[str]:
    metrics = DriverMetrics.model_validate((None if attempt is None else attempt.metrics) or {})
    return frozenset(node.uid for node in metrics.graph if node.kind == "SINK")


def _read_stored(context: Context, facts: _Facts) -> StoredState:
    """Reads the stored state, within the time limit of a plan."""
    store_url = facts.job.store_url

    def read() -> StoredState:
        hint = None if facts.location is None else split_location(facts.location)[1]
        return read_stored_state(open_to_read(store_url), JobId(facts.job.id), hint)

    return read_within(context.settings.plan_timeout_ms, read, what="the job's stored state")


def _load(context: Context, facts: _Facts) -> ProgramAnswer:
    after, job = facts.after, facts.job
    holder = context.launcher.isolation.holder(job)
    answer = load_program(context, facts.program, after, max_parallelism=job.max_parallelism, holder=holder)
    if answer.failure is None:
        context.programs.remember(_key(facts), answer)
    return answer


def _key(facts: _Facts) -> str:
    """Returns all that a program's declaration depends on, as text."""
    return json.dumps([facts.job.id, facts.job.max_parallelism, facts.after.given()], sort_keys=True)


def _answer(facts: _Facts, stored: StoredState, loaded: ProgramAnswer | None, context: Context) -> PlanAnswer:
    job, declaration = facts.job, None if loaded is None else loaded.declaration
    operators = [] if declaration is None else _operators(stored, declaration)
    sources = [] if declaration is None else _sources(stored, declaration)
    failure = None if loaded is None else failure_of(context, facts.after, loaded)
    runs = job.desired is DesiredState.RUNNING
    # A running driver publishes, and takes a savepoint before it ends.
    unpublished = frozenset() if job.status is JobStatus.RUNNING else frozenset(stored.resume.sinks)
    needs_attempt = any(each.needs_attempt for each in differences(facts.before, facts.after))
    answer = PlanAnswer(
        job_id=job.id,
        compatible=True,
        requires_allow_non_restored_state=False,
        program_loaded=declaration is not None,
        failure=failure,
        from_parallelism=facts.before.parallelism,
        to_parallelism=facts.after.parallelism,
        max_parallelism=job.max_parallelism,
        hash_id=job.hash_id,
        operators=operators,
        sources=sources,
        sinks=[] if declaration is None else _sinks({*facts.sinks, *stored.sinks}, declaration, unpublished),
        settings=settings_changed(facts.before, facts.after, runs=runs, names=facts.artifact_names),
        movement=_movement(facts, stored, single_host=context.settings.spark_master.startswith("local")),
        rescale_mode=facts.rescale_mode,
        not_live=None if facts.not_live is None else FailureAnswer.model_validate(facts.not_live),
        downtime=downtime(facts.downtimes_ms, runs=runs, needs_attempt=needs_attempt),
    )
    decided = {"compatible": not answer.problems(), "requires_allow_non_restored_state": bool(answer.dropped())}
    return answer.model_copy(update=decided)


def _operators(stored: StoredState, declaration: ProgramDeclaration) -> list[OperatorPlan]:
    ttls = {operator.uid: operator.ttls_ms for operator in declaration.operators}
    changes = operator_changes(stored.resume.operators, stored.operator_state, declaration.operators)
    return [_operator(change, ttls.get(change.uid, {})) for change in changes]


def _operator(change: OperatorChange, ttls_ms: Mapping[str, int]) -> OperatorPlan:
    states = [
        StatePlan(
            name=each.name,
            kind=each.kind,
            fate=each.fate,
            rules=list(each.rules),
            stored=each.stored,
            declared=each.declared,
            ttl_ms=ttls_ms.get(each.name),
            reason=each.reason,
        )
        for each in change.states
    ]
    return OperatorPlan(uid=change.uid, fate=change.fate, states=states, reason=change.reason)


def _sources(stored: StoredState, declaration: ProgramDeclaration) -> list[EndpointPlan]:
    declared = {source.uid: source.kinds for source in declaration.sources}
    known = dict(stored.sources)
    if len(declared) == 1 and known.keys() == {UNNAMED_SOURCE}:  # the only source may get a name
        known = dict(zip(declared, known.values(), strict=True))
    found = []
    for uid in sorted({*known, *declared}):
        before, now = known.get(uid), declared.get(uid)
        fate = Fate.NEW if before is None else Fate.DROPPED if now is None else Fate.KEPT
        reason = None
        if before and now and before != now:
            fate, reason = (
                Fate.INCOMPATIBLE,
                f"source {uid!r} was of kind {', '.join(before)} and is now {', '.join(now)}",
            )
        found.append(EndpointPlan(uid=uid, fate=fate, kind=", ".join(now or before or ()) or None, reason=reason))
    return found


def _sinks(before: set[str], declaration: ProgramDeclaration, unpublished: frozenset[str]) -> list[EndpointPlan]:
    kinds = {sink.uid: sink.kind for sink in declaration.sinks}
    return [
        EndpointPlan(
            uid=uid,
            fate=Fate.DROPPED if uid not in kinds else Fate.KEPT if uid in before else Fate.NEW,
            kind=kinds.get(uid),
            reason=UNPUBLISHED if uid in unpublished - kinds.keys() else None,
        )
        for uid in sorted({*before, *kinds})
    ]


def settings_changed(
    before: JobSpec, after: JobSpec, *, runs: bool, names: Mapping[str, str] = MappingProxyType({})
) -> list[SettingPlan]:
    """Returns the settings that a change touches. Pure.

    Args:
        before: The specification now.
        after: The specification after the change.
        runs: Whether the job runs, or shall run.
        names: The names of artifacts, by their ids.
    """
    return [
        SettingPlan(
            name=each.path,
            before=_shown(each.path, each.before, names),
            after=_shown(each.path, each.after, names),
            needs_restart=runs and each.needs_restart,
        )
        for each in differences(before, after)
    ]


def _shown(name: str, value: Any, names: Mapping[str, str]) -> str | None:
    if value is None:
        return None
    if name == "artifact_id":
        return names.get(str(value), str(value))
    if name == "libraries":
        return ", ".join(names.get(each, each) for each in value)
    if isinstance(value, dict) and value.keys() == {"secret"}:
        return f"secret {value['secret']}"
    plain = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return redact_named(name.partition(".")[2], plain) if name.startswith(("parameters.", "spark_conf.")) else plain


def _movement(facts: _Facts, stored: StoredState, *, single_host: bool) -> MovementPlan:
    job, manifest = facts.job, stored.manifest
    ranges = chosen_ranges(
        job.max_parallelism,
        facts.after.parallelism,
        kept=None if manifest is None else manifest.key_group_ranges,
        sized=manifest if facts.after.key_group_division is KeyGroupDivision.BY_SIZE else None,
    )
    operators = []
    for operator in () if stored.manifest is None else stored.manifest.operators:
        parts = movements(operator.subtasks, ranges)
        sizes = facts.key_group_bytes.get(operator.uid, [])
        is_known = len(sizes) == job.max_parallelism
        uneven = skew(sizes, ranges) if is_known else None
        subtasks = [
            SubtaskMovementAnswer(
                index=each.index,
                key_group_start=each.key_groups.start,
                key_group_end=each.key_groups.end,
                state_bytes=each.state_bytes,
                files=each.files,
                from_subtasks=list(each.from_subtasks),
                moved_bytes=0 if single_host else each.other_bytes,
                clipped_shards=each.clipped_shards,
                expected_bytes=sum(sizes[each.key_groups.start : each.key_groups.end + 1]) if is_known else None,
            )
            for each in parts
        ]
        operators.append(
            OperatorMovement(
                uid=operator.uid,
                state_bytes=size_bytes_of([operator]),
                moved_bytes=sum(each.moved_bytes for each in subtasks),
                subtasks=subtasks,
                skew_ratio=None if uneven is None else round(uneven.ratio, 3),
                largest_key_group=None if uneven is None else uneven.largest_key_group,
                largest_key_group_bytes=None if uneven is None else uneven.largest_key_group_bytes,
            )
        )
    return MovementPlan(
        checkpoint_location=None if stored.manifest is None else location_of(job.store_url, stored.manifest.path),
        same_host=single_host,
        state_bytes=sum(each.state_bytes for each in operators),
        moved_bytes=sum(each.moved_bytes for each in operators),
        operators=operators,
    )


def downtime(samples_ms: Sequence[int], *, runs: bool, needs_attempt: bool) -> DowntimePlan:
    """Returns the expected downtime, the median of the job's last changes.

    Pure.

    Args:
        samples_ms: The downtimes of these changes.
        runs: Whether the job runs.
        needs_attempt: Whether the job gets another attempt for the change.
    """
    if not runs:
        return DowntimePlan(expected_ms=None, reason="the job does not run", samples_ms=list(samples_ms))
    if not needs_attempt:
        return DowntimePlan(
            expected_ms=0, reason="the running driver takes over all that changes", samples_ms=list(samples_ms)
        )
    if not samples_ms:
        return DowntimePlan(expected_ms=None, reason="no change of this kind was made while the job ran", samples_ms=[])
    return DowntimePlan(expected_ms=round(statistics.median(samples_ms)), reason=None, samples_ms=list(samples_ms))

"""A job is shown from the facts that belong to it, and a wrong specification is refused."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import IntegrityError

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.errors import (
    ArtifactNotFoundError,
    JobLimitError,
    JobNameTakenError,
    JobNotFoundError,
    OutOfScopeError,
    ParallelismInvalidError,
    RequestInvalidError,
    SecretUnknownError,
    SparkConfNotAllowedError,
)
from keyscale.api.health.facts import HealthFacts, StartWait
from keyscale.api.job_limits import JobLimits
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.jobs import jobs, start_waits
from keyscale.api.jobs.conditions import ConditionFacts
from keyscale.api.jobs.jobs import check_parallelism, check_specification, job_answer, require_name
from keyscale.api.jobs.restore_sources import FoundSource, Restorer
from keyscale.api.jobs.schemas.job import AttemptSummaryAnswer, JobRequest
from keyscale.api.jobs.schemas.restore import RestoreRequest
from keyscale.api.lifecycle.restoring import Restore
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Event, Job
from keyscale.db.repositories import attempts
from keyscale.db.repositories.overviews import JobOverview, LatestSnapshot
from keyscale.db.repositories.pages import Page, PageRequest
from keyscale.jobs.protocol.messages import Counters, DriverMetrics, Failure, FailureHistory
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import AttemptStage, ClaimMode, DesiredState, JobStatus, OperationKind, RestoreMode, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_MS = 1_000_000
FAILURE = {"code": "JOB_FUNCTION_FAILED", "message": "no"}
PENDING = {
    "id": "w",
    "mode": "REWIND",
    "location": "file:///s",
    "claim_mode": "NO_CLAIM",
    "allow_non_restored_state": True,
}


def attempt(metrics: DriverMetrics | None = None, **columns: Any) -> dict[str, Any]:
    given = {
        **dict.fromkeys(AttemptSummaryAnswer.model_fields),
        "number": 3,
        "revision": 2,
        "stage": AttemptStage.ACTIVE,
        "cause": "start",
        "parallelism": 4,
        "driver_state": "RUNNING",
        "created_at_ms": 1,
        "running_at_ms": 500,
        "heartbeat_at_ms": NOW_MS - 10,
        "totals_before": {"input_records": 7, "lag_records": 3, "lag_records_at_ms": 4},
        "restore_id": None,
    }
    reported = None if metrics is None else metrics.model_dump()
    return {**given, "metrics": reported, **columns}


def overview(run: dict[str, Any] | None, job: dict[str, Any] | None = None, **facts: Any) -> JobOverview:
    row = {
        **dict.fromkeys(jobs._STATUS_FIELDS),
        "id": "job",
        "name": "flights",
        "status": JobStatus.RUNNING,
        "desired": "RUNNING",
        "max_parallelism": 8,
        "hash_id": "spark",
        "labels": {},
        "store_url": "file:///store",
        "created_at_ms": 1,
        "restarts": 0,
        "restore": None,
        "failure": None,
        **(job or {}),
    }
    revision = {"spec": JobSpec(artifact_id="program", parallelism=4).given(), "number": 2}
    given = {
        "artifact_name": "program",
        "artifact_version": 6,
        "operation_id": None,
        "operation_kind": None,
        "operation_phases": None,
        "checkpoint": None,
        "savepoint": None,
    }
    return JobOverview(job=row, revision=revision, attempt=run, **{**given, **facts})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(jobs, "shared_now_ms", lambda: NOW_MS)

    def show(found: JobOverview | None, unlaunched: Sequence[Any] = (), told: Sequence[Event] = ()) -> Any:
        monkeypatch.setattr(start_waits.events, "between", lambda *_, **__: told)
        monkeypatch.setattr(jobs.overviews, "find", lambda _, reference: found if reference == "job" else None)
        monkeypatch.setattr(attempts, "list_unlaunched", lambda _: unlaunched)
        answer = job_answer(cast("Any", None), Job(id="job"))
        wait = jobs.waits_of(cast("Any", None), [cast("Any", found)]).get("job")
        whole = answer.model_dump()
        if answer.status.attempt is not None:
            whole["status"]["attempt"].pop("metrics")
        failing = jobs.failing_start_of(cast("Any", None), cast("Any", found), NOW_MS)
        assert jobs._summary(cast("Any", found), NOW_MS, wait, failing).model_dump() == whole
        return answer

    return show


def test_a_job_of_which_nothing_is_found_does_not_exist(shown: Any) -> None:
    with pytest.raises(JobNotFoundError):
        shown(None)


def test_each_fact_of_a_jobs_health_and_conditions_has_its_own_source(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[Any] = []
    for name in ("health_of", "conditions_of"):
        decide = getattr(jobs, name)
        monkeypatch.setattr(jobs, name, lambda facts, decide=decide: decided.append(facts) or decide(facts))
    report = DriverMetrics(
        batches=2, pending_records=6, lag_age_ms=4, source_retention_ms=1000, timers_due_at_ms=NOW_MS + 5,
        last_failure=Failure(**FAILURE), failures=FailureHistory(count=1, times_ms=[100]),
    )  # fmt: skip
    run = attempt(
        report, driver_state="SLEEPING", caught_up_at_ms=70, lag_before=80, restored_at_ms=60, fell_asleep_at_ms=90
    )
    found = overview(
        run,
        {"ended_at_ms": 50, "status": JobStatus.RUNNING, "restarts": 3, "started_at_ms": 40, "labels": {"team": "a"}},
        checkpoint=LatestSnapshot(7, 700, 71, 72, 73),
        savepoint=LatestSnapshot(8, 800, 81, 82, 83),
        operation_id="c",
        operation_kind=OperationKind.RESCALE,
        operation_phases=[{"phase": "RESTORE", "waits_for": {"message": "the bucket is away"}}],
    )
    answer = shown(found)
    health, conditions = decided[:2]
    failure = report.model_dump()["last_failure"]
    assert health == HealthFacts(
        report=report.model_dump(),
        is_active=True,
        is_current=True,
        is_settled=False,
        failure=failure,
        ended_at_ms=50,
        start_wait=None,
        checkpoint_ms=71,
        checkpoint_timeout_ms=found.revision["spec"]["checkpoints"]["timeout_ms"],
        snapshot_at_ms=800,
        idle_at_ms=NOW_MS - 14,
        at_ms=NOW_MS,
    )
    status = answer.status
    assert conditions == ConditionFacts(
        status=JobStatus.RUNNING,
        ended_at_ms=50,
        attempt=status.attempt,
        health=status.health,
        snapshot=found.savepoint,
        restorable_until_at_ms=NOW_MS - 14 + 1000,
        operation=OperationKind.RESCALE,
        lag_records=6,
        lag_before=80,
        caught_up_at_ms=70,
        timers_due_at_ms=NOW_MS + 5,
        waits_for="the bucket is away",
        failing_start=None,
        at_ms=NOW_MS,
    )
    assert (answer.id, answer.name, answer.labels, answer.revision) == ("job", "flights", {"team": "a"}, 2)
    assert (status.state, status.desired, status.store_url) == (JobStatus.RUNNING, "RUNNING", "file:///store")
    assert (status.started_at_ms, status.ended_at_ms, status.restarts) == (40, 50, 3)
    assert (status.running_since_ms, status.restorable_until_at_ms) == (500, NOW_MS - 14 + 1000)
    assert status.latest_checkpoint.model_dump() == {
        "id": 7, "completed_at_ms": 700, "end_to_end_duration": 71, "checkpointed_size": 72, "state_size": 73
    }  # fmt: skip


def test_a_job_without_an_attempt_has_nothing_of_a_driver(shown: Any) -> None:
    answer = shown(overview(None, {"status": JobStatus.CREATED, "restore": PENDING}, artifact_version=9))
    status = answer.status
    assert (status.attempt, status.failure, status.health.reasons, status.running_since_ms) == (None, None, [], None)
    assert (status.health.level, status.health.score) == ("UNKNOWN", None)
    assert (answer.status.artifact_name, answer.status.artifact_version, answer.revision) == ("program", 9, 2)
    assert (answer.status.restore.mode, answer.status.restore.claim_mode) == (RestoreMode.REWIND, ClaimMode.NO_CLAIM)
    assert (answer.metrics.input_records, answer.metrics.state_size) == (0, None)


@pytest.mark.parametrize(
    ("columns", "changed", "places"),
    [
        ({"driver_state": None}, {}, ["in place 2 of 3"]),
        ({"driver_state": None, "launched_at_ms": 5}, {}, []),
        ({}, {}, []),
        ({}, {"operation_id": "c", "operation_kind": OperationKind.RESCALE}, ["in place 2 of 3"]),
    ],
)
def test_a_start_that_waits_for_its_turn_has_a_place_among_those_of_all_jobs(
    shown: Any, columns: dict[str, Any], changed: dict[str, Any], places: list[str]
) -> None:
    stage = AttemptStage.STANDBY if changed else AttemptStage.ACTIVE
    unlaunched = [("younger", 1, stage, 100, 9), ("job", 4, stage, 100, 8), ("older", 1, stage, 100, 7)]
    health = shown(overview(attempt(**columns), **changed), unlaunched).status.health.reasons
    assert [(item.code, item.since_ms) for item in health] == [("START_WAITS", 100)] * len(places)
    assert all(place in item.message for place, item in zip(places, health, strict=True))


def test_a_start_of_a_job_that_is_down_comes_before_the_change_of_a_job_that_runs(shown: Any) -> None:
    unlaunched = [("running", 2, AttemptStage.STANDBY, 50, 8), ("job", 4, AttemptStage.ACTIVE, 100, 9)]
    [reason] = shown(overview(attempt(driver_state=None)), unlaunched).status.health.reasons
    assert "in place 1 of 2" in reason.message


@pytest.mark.parametrize(
    ("columns", "kind", "is_told"),
    [
        ({}, "JOB_SET_ASIDE", True),
        ({}, "JOB_TAKEN_UP", False),
        ({"attached_at_ms": 5}, "JOB_SET_ASIDE", False),
        ({"created_at_ms": NOW_MS - 9_999}, "JOB_SET_ASIDE", False),
        ({"stage": AttemptStage.ENDED}, "JOB_SET_ASIDE", False),
    ],
)
def test_a_start_that_fails_again_and_again_says_why(
    shown: Any, columns: dict[str, Any], kind: str, is_told: bool
) -> None:
    told = [Event(kind=kind, message="the store is away")]
    answer = shown(overview(attempt(**{"driver_state": None, **columns})), told=told)
    [running] = [each for each in answer.status.conditions if each.type == "RUNNING"]
    assert ("the store is away" in running.message) == is_told


@pytest.mark.parametrize(
    ("columns", "is_pending"),
    [
        ({"restore_id": "w", "restored_at_ms": 5}, False),
        ({"restore_id": "w", "restored_at_ms": None}, True),
        ({"restore_id": "earlier", "restored_at_ms": 5}, True),
    ],
)
def test_a_restore_is_pending_until_an_attempt_has_carried_it_out(
    shown: Any, columns: dict[str, Any], is_pending: bool
) -> None:
    answer = shown(overview(attempt(**columns), {"restore": PENDING}))
    assert (answer.status.restore is not None) is is_pending


@pytest.mark.parametrize(
    ("stage", "status", "expected"),
    [
        (AttemptStage.ACTIVE, JobStatus.RUNNING, 500),
        (AttemptStage.ACTIVE, JobStatus.STOPPED, None),
        (AttemptStage.ENDED, JobStatus.RESTARTING, None),
    ],
)
def test_a_job_runs_since_its_active_attempt_does(
    shown: Any, stage: AttemptStage, status: JobStatus, expected: int | None
) -> None:
    assert shown(overview(attempt(stage=stage), {"status": status})).status.running_since_ms == expected


def test_the_fault_of_a_driver_is_shown_while_the_attempt_is_active_and_the_jobs_own_failure_comes_first(
    shown: Any,
) -> None:
    failing = DriverMetrics(
        last_failure=Failure(**FAILURE), failures=FailureHistory(count=1, times_ms=[100]), store_away_since_ms=9
    )
    answer = shown(overview(attempt(failing)))
    assert answer.status.failure.code == "JOB_FUNCTION_FAILED"
    assert [(each.code, each.since_ms) for each in answer.status.health.reasons] == [
        ("JOB_FUNCTION_FAILED", None),
        ("STATE_STORE_UNAVAILABLE", 9),
    ]
    assert shown(overview(attempt(failing, last_commit_at_ms=100))).status.failure is None
    ended = shown(overview(attempt(failing, stage=AttemptStage.ENDED)))
    assert (ended.status.failure, ended.status.health.reasons) == (None, [])
    own = {"failure": {"code": "OWN", "message": "own"}}
    assert shown(overview(attempt(failing), own)).status.failure.code == "OWN"


@pytest.mark.parametrize(("checkpoint", "savepoint", "size"), [(8, 7, 80), (7, 8, 80), (7, None, 70), (None, 8, 80)])
def test_the_state_has_the_size_of_the_newest_snapshot_and_the_checkpoint_stays_a_checkpoint(
    shown: Any, checkpoint: int | None, savepoint: int | None, size: int
) -> None:
    def latest(number: int | None) -> LatestSnapshot | None:
        return None if number is None else LatestSnapshot(number, 1, 2, 3, 10 * number)

    answer = shown(overview(attempt(), checkpoint=latest(checkpoint), savepoint=latest(savepoint)))
    assert answer.metrics.state_size == size
    assert (answer.status.latest_checkpoint and answer.status.latest_checkpoint.id) == checkpoint


@pytest.mark.parametrize(("age_ms", "is_current"), [(14_999, True), (15_000, False)])
def test_rates_are_shown_while_the_report_is_current_and_counters_always(
    shown: Any, age_ms: int, is_current: bool
) -> None:
    report = DriverMetrics(batches=1, input_records=5, input_records_per_second=2.0, pending_records=6)
    figures = shown(overview(attempt(report, heartbeat_at_ms=NOW_MS - age_ms))).metrics
    assert figures.input_rate == (2.0 if is_current else None)
    assert (figures.input_records, figures.lag_records, figures.lag_records_at_ms) == (12, 6, NOW_MS - age_ms)


def test_counters_of_the_attempt_and_of_the_job_have_places_of_their_own(shown: Any) -> None:
    report = DriverMetrics(input_records=5, counters=Counters(input_records=12))
    answer = shown(overview(attempt(report))).model_dump(mode="json")
    figures = answer["status"]["attempt"]["metrics"]
    assert (figures["input_records"], figures["job_counters"]["input_records"]) == (5, 12)
    assert (answer["metrics"]["input_records"], "counters" in figures) == (12, False)


@pytest.mark.parametrize("kind", [OperationKind.RESCALE, OperationKind.START])
def test_the_operation_in_progress_is_shown(shown: Any, kind: OperationKind) -> None:
    answer = shown(overview(attempt(), operation_id="c", operation_kind=kind))
    assert (answer.status.operation.id, answer.status.operation.kind) == ("c", kind)


@pytest.mark.parametrize(("waits_for", "is_told"), [(None, False), ({"message": "the bucket is away"}, True)])
def test_a_job_tells_what_its_operation_waits_for(shown: Any, waits_for: dict[str, Any] | None, is_told: bool) -> None:
    phases: list[dict[str, Any]] = [{"phase": "REQUESTED", "waits_for": {"message": "over"}}, {"phase": "RESTORE"}]
    phases[-1] |= {} if waits_for is None else {"waits_for": waits_for}
    change = {"operation_id": "c", "operation_kind": OperationKind.RESCALE, "operation_phases": phases}
    [progressing] = [
        each for each in shown(overview(attempt(), **change)).status.conditions if each.type == "PROGRESSING"
    ]
    assert ("the bucket is away" in progressing.message) == is_told
    assert "over" not in progressing.message


@pytest.mark.parametrize(("parallelism", "is_taken"), [(0, False), (1, True), (8, True), (9, False)])
def test_a_parallelism_is_from_1_to_the_max_parallelism(parallelism: int, is_taken: bool) -> None:
    if is_taken:
        check_parallelism(parallelism, 8)
    else:
        with pytest.raises(ParallelismInvalidError):
            check_parallelism(parallelism, 8)


def test_a_name_is_in_the_users_scope_and_is_not_like_an_id() -> None:
    everybody = Principal("id", "ann", Role.OPERATOR)
    require_name(everybody, "a" * 31, {})
    require_name(everybody, "g" * 32, {})
    with pytest.raises(RequestInvalidError):
        require_name(everybody, "a" * 32, {})
    of_team = Principal("id", "ann", Role.OPERATOR, JobScope(frozenset({"flights"}), {"team": "a"}))
    require_name(of_team, "flights", {})
    require_name(of_team, "other", {"team": "a"})
    with pytest.raises(OutOfScopeError):
        require_name(of_team, "other", {"team": "b"})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, None),
        ({"parallelism": 9}, ParallelismInvalidError),
        ({"parallelism": 5}, JobLimitError),
        ({"spark_conf": {"spark.driver.extraJavaOptions": "-x"}}, SparkConfNotAllowedError),
        ({"spark_conf": {"spark.driver.memory": "3g"}}, JobLimitError),
        ({"secrets": ["ORDERS"]}, None),
        ({"secrets": ["ORDERS", "GONE"]}, SecretUnknownError),
    ],
)
def test_a_specification_that_no_job_may_have_is_refused(change: dict[str, Any], error: type[Exception] | None) -> None:
    settings = SimpleNamespace(
        spark_conf_allowed=frozenset(),
        job_limits=JobLimits(parallelism_max=4, memory_bytes_max=2 << 30),
        job_secrets=JobSecrets({"KEYSCALE_JOB_SECRET_ORDERS": "x"}),
    )
    context = cast("Any", SimpleNamespace(settings=settings))
    given = {"artifact_id": "program", "parallelism": 4, "max_parallelism": 8, **change}
    spec = JobSpec.model_validate(given)
    if error is None:
        check_specification(context, spec)
    else:
        with pytest.raises(error):
            check_specification(context, spec)


@pytest.mark.parametrize(("settings", "chosen"), [({}, None), ({"max_parallelism": 16}, 16)])
@pytest.mark.parametrize("has_source", [False, True])
def test_a_new_job_has_the_key_groups_of_the_snapshot_that_it_starts_from(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], chosen: int | None, *, has_source: bool
) -> None:
    usable: list[str] = []
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(store_url="file:///store"), store=SimpleNamespace(require_usable=usable.append)
    )
    request = JobRequest.model_validate(
        {"name": "flights", "labels": {"team": "a"}, "spec": {"artifact_id": "a", "parallelism": 4, **settings}}
    )
    source = FoundSource(Restore("w"), 64, "spark") if has_source else None
    asked: list[Any] = []
    monkeypatch.setattr(jobs, "find_source", lambda *of: asked.append(of[1:]) or source)
    monkeypatch.setattr(jobs, "store_new", lambda *given: given[1:])
    user = Principal("id", "ann", Role.OPERATOR)
    stored: Any = jobs.create(context, user, request)
    assert asked == [(user, request, Restorer(None, "file:///store", chosen, request.spec.hash_id))]
    assert usable == ["file:///store"]
    by, job, spec, given, found = stored
    most = 64 if has_source else request.spec.max_parallelism
    assert (by, given, found) == (user, request, source)
    assert (job.name, job.labels, job.store_url, job.max_parallelism) == (
        "flights", {"team": "a"}, "file:///store", most
    )  # fmt: skip
    assert spec == request.spec.model_copy(update={"max_parallelism": most})


def test_a_job_that_the_user_may_not_make_is_refused_before_the_store_is_asked() -> None:
    user = Principal("id", "ann", Role.OPERATOR, JobScope(frozenset({"orders"})))
    with pytest.raises(OutOfScopeError):
        jobs.create(
            cast("Any", None), user, JobRequest.model_validate({"name": "flights", "spec": {"artifact_id": "a"}})
        )


ANN = Principal("id", "ann", Role.OPERATOR, JobScope(labels={"team": "a"}))
SPEC = JobSpec(artifact_id="a", libraries=["b" * 32, "c" * 32])


class Stored:
    """The steps that store a new job, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.failure: Exception | None = None
        self.session: Any = SimpleNamespace(add=lambda row: self.steps.append(("added", row.id)), flush=self._flush)
        self.context: Any = SimpleNamespace(sessions=SimpleNamespace(begin=lambda: nullcontext(self.session)))
        self.job = Job(id="job", name="flights", created_at_ms=70)
        for module, name in (
            (jobs, "check_specification"),
            (jobs, "require_program"),
            (jobs, "require_covered"),
            (jobs, "store_restore"),
            (jobs, "job_answer"),
            (jobs.requests, "revise"),
        ):
            monkeypatch.setattr(module, name, lambda *given, name=name: self._note(name, *given))
        monkeypatch.setattr(jobs.requests, "start", lambda _, job, by, id_: self._note("start", job, by, len(id_)))
        monkeypatch.setattr(jobs.events, "record", lambda _, **event: self.steps.append(event))

    def _note(self, name: str, *given: Any) -> str:
        self.steps.append((name, *(each for each in given if each is not self.context and each is not self.session)))
        return "the answer"

    def _flush(self) -> None:
        self.steps.append("flushed")
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("starts", [False, True])
def test_a_new_job_is_stored_with_its_revision_and_its_restore_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    stored, original, request = Stored(monkeypatch), JobSpec(artifact_id="b"), RestoreRequest()
    source = FoundSource(Restore("w"), 64, "spark")
    answer: Any = jobs.store_new(
        stored.context, ANN, stored.job, SPEC, request, source, cloned=original, message="why", starts=starts
    )
    event = {"job_id": "job", "at_ms": 70, "kind": "JOB_CREATED", "actor": "ann", "message": "created flights"}
    assert (answer, stored.steps) == (
        "the answer",
        [
            ("check_specification", SPEC),
            ("require_program", ANN, SPEC),
            ("require_covered", ANN, original, SPEC),
            ("added", "job"),
            "flushed",
            ("revise", stored.job, SPEC, ANN, "why"),
            ("store_restore", stored.job, request, source),
            event,
            *([("start", stored.job, ANN, 32)] if starts else []),
            "flushed",
            ("job_answer", stored.job),
        ],
    )


@pytest.mark.parametrize(
    ("constraint", "error"),
    [("uq_jobs_name", JobNameTakenError), ("fk_revisions_artifact_id_artifacts", ArtifactNotFoundError)],
)
def test_a_new_job_that_another_request_came_before_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, constraint: str, error: type[Exception]
) -> None:
    stored = Stored(monkeypatch)
    stored.failure = IntegrityError("INSERT", {}, Exception(f'violates the constraint "{constraint}"'))
    with pytest.raises(error):
        jobs.store_new(stored.context, ANN, stored.job, SPEC, RestoreRequest(), None)


BACK = Restore("w", RestoreMode.REWIND, "file:///s", ClaimMode.CLAIM)


@pytest.mark.parametrize(
    ("source", "allows", "pending", "expected"),
    [
        (None, False, BACK, []),
        (None, True, BACK, [Restore("w", RestoreMode.REWIND, "file:///s", ClaimMode.CLAIM, True)]),
        (None, True, None, [Restore("new", allow_non_restored_state=True)]),
        (FoundSource(BACK, 64, "spark"), True, Restore("old"), ["kept", BACK]),
    ],
    ids=["nothing", "an allowance for the pending restore", "an allowance", "a source"],
)
def test_a_request_changes_how_the_next_start_restores_in_what_it_names(
    monkeypatch: pytest.MonkeyPatch, *, source: Any, allows: bool, pending: Restore | None, expected: list[Any]
) -> None:
    noted: list[Any] = []
    transaction = SimpleNamespace(pending_restore=lambda: pending, set_pending_restore=noted.append)
    monkeypatch.setattr(jobs, "JobTransaction", lambda *of: {("session", "job"): transaction}[of])
    monkeypatch.setattr(jobs, "require_kept", lambda _, found: noted.append("kept" if found is source else found))
    monkeypatch.setattr(jobs.uuid, "uuid4", lambda: SimpleNamespace(hex="new"))
    request = RestoreRequest(allow_non_restored_state=allows)
    jobs.store_restore(cast("Any", "session"), cast("Any", "job"), request, source)
    assert noted == expected


def test_a_program_and_its_libraries_are_the_users_and_stay_while_the_job_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(jobs, "require_libraries", lambda _, *of, **more: noted.append((*of, more)))
    monkeypatch.setattr(jobs.artifacts, "keep", lambda _, ids: noted.append(ids))
    context: Any = SimpleNamespace(settings=SimpleNamespace(jar_rules="rules"))
    jobs.require_program(context, cast("Any", None), ANN, SPEC)
    brought = ["b" * 32, "c" * 32]
    assert noted == [("a", brought, "rules", {"scope": ANN.scope, "user_id": "id"}), ["a", *brought]]


def test_each_job_of_a_list_has_its_own_wait_and_its_own_failing_start(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = attempt(driver_state=None)
    found = {name: overview(starting, {"id": name, "name": f"{name}-name"}) for name in ("old", "new")}
    asked: list[Any] = []
    page = Page(["new", "deleted meanwhile", "old"], (5, "old"))
    failing = {("old", NOW_MS): "the store is away"}
    monkeypatch.setattr(jobs, "shared_now_ms", lambda: NOW_MS)
    monkeypatch.setattr(jobs.jobs, "list_page", lambda _, *of: asked.append(of) or page)
    monkeypatch.setattr(jobs.overviews, "of_jobs", lambda _, ids: found if ids == page.rows else {})
    monkeypatch.setattr(jobs, "waits_of", lambda _, each: {"new": StartWait(2, 3, 4)} if [*each] else {})
    monkeypatch.setattr(jobs, "failing_start_of", lambda _, each, at_ms: failing.get((each.job["id"], at_ms)))
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    answer = jobs.list_all(context, ANN, Listing(3, write_cursor((9, "newest"))))
    assert asked == [(PageRequest(3, (9, "newest")), ANN.scope)]
    shown = {
        job.name: (
            [each.since_ms for each in job.status.health.reasons],
            ["the store is away" in each.message for each in job.status.conditions if each.type == "RUNNING"],
        )
        for job in answer.jobs
    }
    assert list(shown.items()) == [("new-name", ([4], [False])), ("old-name", ([], [True]))]
    assert answer.next == write_cursor((5, "old"))


def test_the_attempts_of_a_job_are_listed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [attempt(DriverMetrics(batches=number), number=number) for number in (7, 6)]
    asked: list[Any] = []
    monkeypatch.setattr(jobs.jobs, "find_id", lambda _, name: {"flights": "job"}.get(name))
    monkeypatch.setattr(jobs.attempts, "list_page", lambda _, *of: asked.append(of) or Page(rows, (6,)))
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = jobs.list_attempts(context, "flights", Listing(2, write_cursor((8,))))
    assert asked == [("job", PageRequest(2, (8,)))]
    assert [(each.number, each.metrics and each.metrics.batches) for each in found.attempts] == [(7, 7), (6, 6)]
    assert (found.next, jobs.id_of(context, "flights")) == (write_cursor((6,)), "job")
    with pytest.raises(JobNotFoundError):
        jobs.list_attempts(context, "none", Listing(2))
    with pytest.raises(JobNotFoundError):
        jobs.id_of(context, "none")


def test_a_failing_start_is_told_by_the_newest_event_since_its_attempt(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = overview(attempt(driver_state=None, created_at_ms=20, launched_at_ms=30))
    asked: list[Any] = []
    shown(found)
    monkeypatch.setattr(start_waits.events, "between", lambda _, *of, **more: asked.append((*of, more)) or [])
    assert jobs.failing_start_of(cast("Any", None), found, NOW_MS) is None
    [(job_id, from_ms, to_ms, more)] = asked
    assert (job_id, from_ms, to_ms > NOW_MS) == ("job", 20, True)
    assert more == {"kinds": ("JOB_SET_ASIDE", "JOB_TAKEN_UP"), "limit": 1}


def test_a_job_with_two_waiting_starts_shows_the_place_of_the_start_that_comes_first(shown: Any) -> None:
    unlaunched = [
        ("job", 5, AttemptStage.STANDBY, 120_100, 8),
        ("other", 1, AttemptStage.ACTIVE, 60_050, 7),
        ("job", 4, AttemptStage.ACTIVE, 60_000, 8),
    ]
    [reason] = shown(overview(attempt(driver_state=None)), unlaunched).status.health.reasons
    assert ("in place 2 of 3" in reason.message, reason.since_ms) == (True, 60_000)


def test_a_new_job_is_created_stopped_with_the_settings_that_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "now_ms", lambda: 70)
    spec = JobSpec(artifact_id="a", max_parallelism=64, hash_id="java")
    made = jobs.new_job("flights", spec, {"team": "a"}, "file:///store")
    given = {column.name: getattr(made, column.name) for column in Job.__table__.columns}
    assert len(given["id"]) == 32
    assert {name: value for name, value in given.items() if value is not None and name != "id"} == {
        "name": "flights",
        "max_parallelism": 64,
        "hash_id": "java",
        "labels": {"team": "a"},
        "store_url": "file:///store",
        "desired": DesiredState.STOPPED,
        "status": JobStatus.CREATED,
        "consecutive_failures": 0,
        "restarts": 0,
        "next_start_at_ms": 0,
        "created_at_ms": 70,
    }


@pytest.mark.parametrize("status", JobStatus)
def test_the_health_of_a_job_is_judged_by_whether_the_job_has_settled(
    shown: Any, monkeypatch: pytest.MonkeyPatch, status: JobStatus
) -> None:
    decided: list[HealthFacts] = []
    decide = jobs.health_of
    monkeypatch.setattr(jobs, "health_of", lambda facts: decided.append(facts) or decide(facts))
    shown(overview(attempt(), {"status": status}))
    settled = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED}
    assert {each.is_settled for each in decided} == {status in settled}

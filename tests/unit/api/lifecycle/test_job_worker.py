"""Steps with effects outside the database ask the store first, and are written only while they still hold."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from keyscale.api.errors import JobUserError, PlanTimeoutError, StoreUnavailableError
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import job_worker, steps
from keyscale.api.lifecycle.decision import DEFAULT_TIMEOUTS
from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts
from keyscale.api.lifecycle.job_worker import JobWorker, Waiting
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.api.store_check import PublishedSavepoint
from keyscale.db.models import Attempt, Job, Operation, Revision
from keyscale.identifiers import CheckpointId
from keyscale.state.documents.job_counters import JobCounters
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationKind,
    UpgradeMode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SAVEPOINT = "file:///store/savepoint.json"
FAILURE = {"code": "X", "message": "it broke"}
COUNTERS = JobCounters(input_records=9)
CREATE = steps.CreateAttempt(2, Cause.RECOVER)
PIDS = frozenset({6, 7})
DATABASE_AWAY = OperationalError("SELECT", None, Exception("away"))
CHECK = steps.CheckSavepoint("c", steps.FailJob(FAILURE))


class Platform:
    """One job, the steps that are decided for it, and what is asked of its store and its launcher."""

    def __init__(self) -> None:
        self.job: Job | None = Job(id="job", name="flights", status=JobStatus.RUNNING, store_url="file:///store")
        self.decided: list[Any] = []
        self.change: Operation | None = None
        self.command: Operation | None = None
        self.attempt: Attempt | None = None
        self.newest: Attempt | None = None
        self.applied: list[Any] = []
        self.done: list[Any] = []
        self.is_store_away = False
        self.is_leading = True
        self.found: Any = None
        self.commit_ms: int | None = None
        self.is_open = False
        self.store = SimpleNamespace(
            newest_attempt=self._asked(lambda: 6),
            counters=self._asked(lambda: COUNTERS),
            find_savepoint=self._asked(lambda: self.found),
            first_commit_after=self._asked(lambda: self.commit_ms),
        )
        self.launcher = SimpleNamespace(
            prepare=lambda *attempt: self._do("prepare", *attempt) or "hash",
            launch=lambda job, revision, attempt, *more: self._do("launch", job.id, revision, attempt, *more),
            kill=lambda *attempt: self._do("kill", *attempt),
            clean_up=lambda *attempt: self._do("clean up", *attempt),
            place="here",
        )

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self.is_open = True
        yield None
        self.is_open = False

    def require(self) -> None:
        self.done.append(("required",))

    def _do(self, *what: Any) -> None:
        assert not self.is_open, "the job is not locked while something slow is done"
        self.done.append(what)

    def _asked(self, answer: Any) -> Any:
        def ask(*what: Any, **more: Any) -> Any:
            self._do("asked", *what, *more.values())
            if self.is_store_away:
                raise StoreUnavailableError("away")
            return answer()

        return ask

    def worker(self) -> JobWorker:
        return JobWorker(
            leadership=cast("Any", self), launcher=cast("Any", self.launcher), store=cast("Any", self.store)
        )

    def take(self, step: Any) -> bool:
        return self.worker()._take_outside_step("job", step)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    platform = Platform()

    def lock(_: Any, job_id: str) -> Job | None:
        return platform.job if job_id == "job" else None

    def decide(*_: Any) -> Any:
        return platform.decided.pop(0) if platform.decided else None

    def apply(step: Any, transaction: Any) -> None:
        assert platform.is_open
        assert transaction.job is platform.job
        platform.applied.append(step)

    def read(_: Any, job: Job) -> JobFacts:
        active = AttemptFacts(1, ProcessState.ALIVE, pids=PIDS)
        return JobFacts(status=job.status, desired=DesiredState.RUNNING, revision=1, active=active)

    monkeypatch.setattr(job_worker, "FactReader", lambda *_: SimpleNamespace(read=read))
    monkeypatch.setattr(job_worker, "next_step", decide)
    monkeypatch.setattr(job_worker, "apply", apply)
    monkeypatch.setattr(job_worker.jobs, "lock", lock)
    monkeypatch.setattr(
        job_worker.operations, "running", lambda _, job_id: platform.change if job_id == "job" else None
    )
    monkeypatch.setattr(job_worker.operations, "find", lambda _, name, **__: platform.command if name == "c" else None)
    monkeypatch.setattr(job_worker.attempts, "newest_counted", lambda _, job_id: {"job": platform.newest}[job_id])
    monkeypatch.setattr(job_worker.attempts, "find", lambda _, *key: {("job", 4): platform.attempt}.get(key))
    return platform


def test_a_job_is_advanced_step_by_step_until_it_waits(platform: Platform) -> None:
    platform.decided = [steps.EndAttempt(1), steps.ShowStatus(JobStatus.RESTARTING), steps.Kill(1), steps.EndAttempt(2)]
    assert platform.worker().advance("job") is None
    assert platform.applied == [steps.EndAttempt(1), steps.ShowStatus(JobStatus.RESTARTING)]
    assert platform.done == [("required",), ("kill", "job", 1)], "the leadership is asked before each effect outside"
    assert platform.decided == [steps.EndAttempt(2)], "the driver takes its time to die"


@pytest.mark.parametrize(
    ("status", "waiting"),
    [(JobStatus.RUNNING, Waiting(PIDS)), (JobStatus.RESTARTING, None), (JobStatus.STOPPED, None)],
)
def test_a_job_that_runs_waits_for_news_and_for_the_end_of_its_processes(
    platform: Platform, status: JobStatus, waiting: Waiting | None
) -> None:
    assert platform.job is not None
    platform.job.status = status
    assert platform.worker().advance("job") == waiting
    assert platform.worker().advance("deleted") is None


def test_a_new_attempt_is_above_those_of_the_log_and_begins_with_its_counters(platform: Platform) -> None:
    platform.decided = [CREATE]
    assert platform.take(CREATE)
    assert platform.applied == [steps.CreateAttempt(2, Cause.RECOVER, after=6, counters=COUNTERS)]
    assert [asked[1:3] for asked in platform.done] == [("file:///store", "job")] * 2


def test_a_standby_begins_while_another_attempt_still_counts(platform: Platform) -> None:
    standby = steps.CreateAttempt(2, Cause.UPGRADE, standby=True)
    platform.decided = [standby]
    platform.take(standby)
    assert platform.applied == [steps.CreateAttempt(2, Cause.UPGRADE, standby=True, after=6)]


def test_a_job_is_started_again_while_its_store_is_away(platform: Platform) -> None:
    platform.decided, platform.is_store_away = [CREATE], True
    assert platform.take(CREATE)
    assert platform.applied == [CREATE]


def test_an_attempt_is_created_only_if_it_is_still_to_be(platform: Platform) -> None:
    platform.decided = [steps.FailJob(FAILURE)]
    assert platform.take(CREATE)
    assert platform.applied == []
    platform.job = None
    assert not platform.take(CREATE)


@pytest.mark.parametrize(("newest", "counters"), [(4, COUNTERS), (5, None), (None, None)])
def test_the_log_is_counted_when_the_newest_driver_is_gone(
    platform: Platform, newest: int | None, counters: JobCounters | None
) -> None:
    platform.newest = None if newest is None else Attempt(job_id="job", number=newest)
    assert platform.take(steps.MarkReaped(4))
    assert platform.done[0] == ("clean up", "job", 4)
    assert platform.applied == [steps.MarkReaped(4, counters)]


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), PlanTimeoutError("slow")])
def test_no_step_waits_for_what_the_log_has_counted(platform: Platform, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    platform.newest, platform.store.counters = Attempt(job_id="job", number=4), fail
    assert platform.take(steps.MarkReaped(4))
    assert platform.applied == [steps.MarkReaped(4)]


RESERVE, SEND = steps.ReserveAttempts(), steps.SendRescale()
AWAY = {"code": "STORE_UNAVAILABLE", "message": "away"}


def test_the_attempts_of_a_live_rescale_are_above_those_of_the_log(platform: Platform) -> None:
    platform.decided = [RESERVE]
    assert platform.take(RESERVE)
    assert platform.applied == [steps.ReserveAttempts(after=6)]
    assert platform.done == [("asked", "file:///store", "job")]


def test_a_live_rescale_whose_driver_could_have_a_number_twice_takes_a_new_driver(platform: Platform) -> None:
    platform.decided, platform.is_store_away = [RESERVE], True
    assert platform.take(RESERVE)
    [fallen] = platform.applied
    assert isinstance(fallen, steps.FallBack)
    assert {name: fallen.failure[name] for name in AWAY} == AWAY


@pytest.mark.parametrize("failure", [None, StoreUnavailableError("away"), JobUserError("away")])
def test_a_live_rescale_is_commanded_once_both_its_attempts_are_recorded(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    reserved = [Attempt(job_id="job", number=number, stage=AttemptStage.RESERVED) for number in (7, 8)]
    asked = {("job", AttemptStage.RESERVED): reserved}
    monkeypatch.setattr(job_worker.attempts, "all_of_stage", lambda _, *of: asked[of])
    monkeypatch.setattr(job_worker.revisions, "of_attempt", lambda _, attempt: f"revision of {attempt.number}")
    monkeypatch.setattr(job_worker, "record_of", lambda _, job, revision, attempt: (job.id, revision, attempt.number))

    def keep(job: Job, record: Any) -> None:
        platform._do("keep", job.id, record)
        if failure is not None and record[2] == 8:
            raise failure

    platform.launcher.keep_record = keep
    platform.decided = [SEND]
    assert platform.take(SEND)
    assert platform.done == [("keep", "job", ("job", f"revision of {number}", number)) for number in (7, 8)]
    [applied] = platform.applied
    if failure is None:
        assert applied == SEND
    else:
        assert isinstance(applied, steps.FallBack)
        assert (applied.failure["code"], applied.failure["message"]) == (failure.code, "away")


@pytest.mark.parametrize("step", [RESERVE, SEND])
def test_a_live_rescale_goes_on_only_while_its_job_and_its_step_are_there(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, step: steps.Step
) -> None:
    monkeypatch.setattr(job_worker.attempts, "all_of_stage", lambda *_: [])
    platform.decided = [steps.AbandonChange(FAILURE)]
    assert platform.take(step)
    assert platform.applied == []
    platform.job = None
    assert not platform.take(step)


def test_a_closing_control_plane_takes_no_further_step(platform: Platform) -> None:
    closing = iter([False, True])
    worker = JobWorker(
        leadership=cast("Any", platform),
        launcher=cast("Any", platform.launcher),
        store=cast("Any", platform.store),
        is_closing=lambda: next(closing),
    )
    platform.decided = [steps.EndAttempt(1), steps.EndAttempt(2)]
    assert worker.advance("job") is None
    assert platform.applied == [steps.EndAttempt(1)]


def test_a_driver_is_killed_and_cleaned_up_in_the_run_that_has_its_processes(platform: Platform) -> None:
    platform.attempt = Attempt(job_id="job", number=4, run=2)
    assert not platform.take(steps.Kill(4)), "the driver takes its time to die"
    assert platform.take(steps.MarkReaped(4))
    assert not platform.take(steps.Kill(5))
    assert platform.done == [("kill", "job", 2), ("clean up", "job", 2), ("kill", "job", 5)]


def command(**columns: Any) -> Operation:
    given = {"command_status": CommandStatus.IN_PROGRESS, "kind": OperationKind.STOP, **columns}
    return Operation(id="c", job_id="job", old_attempt=4, **given)


def test_a_savepoint_that_its_driver_has_published_before_it_died_counts(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[Any] = []
    monkeypatch.setattr(job_worker, "settle_command", lambda _, of, **result: settled.append((of, result)))
    stored: list[Any] = []
    monkeypatch.setattr(job_worker.checkpoints, "store_published", lambda _, *of, **facts: stored.append((of, facts)))
    facts: dict[str, Any] = {"location": SAVEPOINT, "batch_id": 5, "state_size": 70, "created_at_ms": 9}
    platform.command, platform.found = command(), PublishedSavepoint(checkpoint_id=CheckpointId(8), **facts)
    assert platform.take(CHECK)
    result = {"status": CommandStatus.COMPLETED, "location": SAVEPOINT, "checkpoint_id": 8}
    assert settled == [(platform.command, result)]
    assert stored == [((platform.command,), {"checkpoint_id": 8, **facts})]
    assert platform.applied == []
    assert platform.done == [("asked", "file:///store", "job", "c")]


def test_the_job_goes_on_without_a_savepoint_that_is_not_there(platform: Platform) -> None:
    platform.command = command()
    assert platform.take(CHECK)
    assert platform.applied == [steps.FailJob(FAILURE)]


def test_nothing_is_decided_about_a_savepoint_while_the_store_is_away(platform: Platform) -> None:
    platform.command, platform.is_store_away = command(), True
    assert not platform.take(CHECK)
    assert platform.applied == []


@pytest.mark.parametrize("unanswered", [steps.StopWithoutSavepoint(FAILURE), None])
def test_a_store_that_stays_away_is_given_up(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, unanswered: steps.StopWithoutSavepoint | None
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(job_worker, "Stopwatch", lambda: Stopwatch(lambda: now_s[0]))
    platform.command, platform.is_store_away = command(), True
    waiting, check = platform.worker(), replace(CHECK, unanswered=unanswered)
    assert not waiting._take_outside_step("job", check)
    now_s[0] += DEFAULT_TIMEOUTS.store_ms / 1000
    assert not waiting._take_outside_step("job", check)
    now_s[0] += 0.01
    platform.command.old_attempt = 5
    assert not waiting._take_outside_step("job", check), "the next driver has the whole time"
    now_s[0] += DEFAULT_TIMEOUTS.store_ms / 1000 + 0.01
    assert platform.applied == []
    assert waiting._take_outside_step("job", check)
    assert platform.applied == [unanswered or CHECK.missing]


@pytest.mark.parametrize(
    ("given", "goes_on"),
    [(None, False), (command(command_status=None), True), (command(command_status=CommandStatus.COMPLETED), True)],
)
def test_a_command_without_a_savepoint_or_with_a_result_stays(
    platform: Platform, given: Operation | None, goes_on: bool
) -> None:
    platform.command = given
    assert platform.take(CHECK) is goes_on
    assert platform.applied == []


def change(**columns: Any) -> Operation:
    given = {
        "kind": OperationKind.UPGRADE,
        "phase": ChangePhase.RESTORE,
        "upgrade_mode": UpgradeMode.SAVEPOINT,
        "allow_non_restored_state": False,
        "location": SAVEPOINT,
        "old_attempt": 3,
    }
    return Operation(id="c", job_id="job", **{**given, **columns})


ROLL_BACK = steps.RollBack(4, FAILURE)


@pytest.mark.parametrize(
    ("commit_ms", "applied"), [(None, ROLL_BACK), (55, steps.CompleteChange(rolled_back=False, resumed_at_ms=55))]
)
def test_a_change_goes_back_unless_its_new_driver_has_committed_a_batch(
    platform: Platform, commit_ms: int | None, applied: Any
) -> None:
    platform.change, platform.commit_ms = change(), commit_ms
    assert platform.take(ROLL_BACK)
    assert platform.applied == [applied]
    assert platform.done == [("asked", "file:///store", "job", SAVEPOINT, 3)]


def test_a_change_goes_back_once_the_store_has_said_what_is_committed(platform: Platform) -> None:
    platform.change, platform.is_store_away = change(), True
    assert not platform.take(ROLL_BACK)
    [noted] = platform.applied
    assert isinstance(noted, steps.NoteWait)
    assert (noted.why["code"], noted.why["message"]) == ("STORE_UNAVAILABLE", "away")
    platform.is_store_away = False
    assert platform.take(ROLL_BACK)
    assert platform.applied == [noted, ROLL_BACK]


@pytest.mark.parametrize("columns", [{"kind": OperationKind.RESCALE}, {"location": None}])
def test_a_change_that_keeps_all_state_goes_back_with_all_commits(platform: Platform, columns: dict[str, Any]) -> None:
    platform.change, platform.is_store_away = change(**columns), True
    assert platform.take(ROLL_BACK)
    assert (platform.applied, platform.done) == ([ROLL_BACK], [])


def test_a_change_that_has_ended_does_not_go_back(platform: Platform) -> None:
    assert platform.take(ROLL_BACK)
    platform.job = None
    assert platform.take(ROLL_BACK)
    assert platform.applied == []


def test_a_driver_is_recorded_before_it_is_launched(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = Revision(job_id="job", number=2, libraries=["l"])
    attempt = platform.attempt = Attempt(job_id="job", number=4)
    monkeypatch.setattr(job_worker.revisions, "of_attempt", lambda _, of: {4: revision}[of.number])
    monkeypatch.setattr(job_worker, "libraries_of", lambda _, names: ("libraries", names))
    monkeypatch.setattr(job_worker.attempts, "restored_from", lambda _, job_id: {"job": []}[job_id])
    monkeypatch.setattr(job_worker, "record_of", lambda *_: "record")
    monkeypatch.setattr(job_worker, "grant_of", lambda job, restored: ("granted", job.id, restored))
    monkeypatch.setattr(job_worker, "now_ms", lambda: 70)
    monkeypatch.setattr(job_worker.operations, "running", lambda *_: Operation(id="o1"))
    monkeypatch.setattr(job_worker.events, "request_of", lambda _, *of: {("job", "o1"): "r1"}[of])
    assert platform.take(steps.Launch(4))
    assert (attempt.token_sha256, attempt.launched_on, attempt.launched_at_ms) == ("hash", "here", 70)
    fields = {"job": "job", "attempt": 4, "operation": "o1", "request_id": "r1"}
    assert platform.done == [
        ("prepare", "job", 4),
        ("launch", "job", revision, attempt, ("libraries", ["l"]), ("granted", "job", []), "record", fields),
    ]
    monkeypatch.setattr(job_worker.operations, "running", lambda *_: None)
    platform.take(steps.Launch(4))
    assert platform.done[-1][-1] == {"job": "job", "attempt": 4}, "a restart has no operation"
    assert not platform.take(steps.Launch(5))
    platform.job = None
    assert not platform.take(steps.Launch(4))
    assert [done[0] for done in platform.done[4:]] == ["prepare"] * 2


@pytest.mark.parametrize("step", [CREATE, steps.Launch(4)])
def test_a_start_that_fails_is_a_fact_until_a_start_succeeds(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, step: steps.Step
) -> None:
    facts: list[bool] = []
    results: list[Exception | bool] = [OSError("full"), DATABASE_AWAY, False, True]
    worker = platform.worker()

    def decide(found: JobFacts, _: Any) -> Any:
        facts.append(found.start_fails)
        return None if len(facts) % 2 == 0 else step

    def take(*_: Any) -> bool:
        if isinstance(result := results.pop(0), Exception):
            raise result
        return result

    monkeypatch.setattr(job_worker, "next_step", decide)
    monkeypatch.setattr(worker, "_take_outside_step", take)
    for _ in range(3):
        with suppress(OSError, OperationalError):
            worker.advance("job")
        assert worker.advance("job") == Waiting(PIDS)
    worker.advance("job")
    assert facts == [False, True, True, True, True, True, True, False]


def test_a_database_that_is_away_is_no_failed_start(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: Any) -> bool:
        raise DATABASE_AWAY

    worker = platform.worker()
    monkeypatch.setattr(worker, "_take_outside_step", take)
    platform.decided = [CREATE]
    with pytest.raises(OperationalError):
        worker.advance("job")
    assert not worker._failed_starts


def test_a_step_of_the_database_has_no_effect_outside_of_it(platform: Platform) -> None:
    with pytest.raises(TypeError, match="EndAttempt"):
        platform.take(steps.EndAttempt(1))

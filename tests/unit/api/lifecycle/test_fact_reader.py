"""The facts of an attempt come from its own row, its process and a clock that only moves forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import fact_reader
from keyscale.api.lifecycle.fact_reader import FactReader, failures_of, restart_of, start_in_ms
from keyscale.api.lifecycle.facts import AttemptFacts, CommandFacts, JobFacts, Timeouts, Turn
from keyscale.api.lifecycle.repeated_faults import EarlierRun
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.db.models import Attempt, Job, Operation, Revision
from keyscale.db.repositories.job_signs import JobSign
from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.jobs.protocol.specification import CheckpointSettings, FixedDelayRestart, JobSpec, NoRestart
from keyscale.vocabulary import (
    STOPS,
    AttemptStage,
    ChangePhase,
    CommandStatus,
    DesiredState,
    DriverState,
    JobStatus,
    OperationKind,
    RescaleMode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUTS = Timeouts(healthy_ms=60_000)


class Launcher:
    """In place of the launcher: every process has died with exit code 3."""

    def inspect(self, attempt: Attempt) -> Seen:
        assert attempt.number == 1
        return Seen(ProcessState.DEAD, 3)


class Reader:
    """The reader of facts and its clock, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.facts = FactReader(cast("Any", Launcher()), Stopwatch(lambda: self.seconds), TIMEOUTS)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def attempt(**columns: Any) -> Attempt:
    return Attempt(job_id="job", number=1, stage=AttemptStage.ACTIVE, **columns)


def test_a_new_attempt_has_its_process_and_nothing_else(reader: Reader) -> None:
    facts = reader.facts.of_attempt(attempt())
    assert (facts.number, facts.process, facts.exit_code) == (1, ProcessState.DEAD, 3)
    assert (facts.driver_state, facts.is_attached, facts.has_progressed, facts.has_run_input) == (None,) + (False,) * 3
    assert (facts.restored_at_ms, facts.first_commit_at_ms, facts.run_failure, facts.failure) == (None,) * 4


def test_the_columns_and_the_last_report_of_an_attempt_are_its_facts(reader: Reader) -> None:
    facts = reader.facts.of_attempt(
        attempt(
            driver_state="RUNNING",
            attached_at_ms=1,
            restored_at_ms=2,
            first_commit_at_ms=3,
            failure={"code": "A"},
            metrics={"waits_for_input": True, "last_failure": {"code": "B"}, "input_batches": 1},
        )
    )
    assert (facts.driver_state, facts.is_attached) == (DriverState.RUNNING, True)
    assert (facts.restored_at_ms, facts.first_commit_at_ms) == (2, 3)
    assert (facts.failure, facts.run_failure) == ({"code": "A"}, {"code": "B"})
    assert (facts.waits_for_input, facts.has_run_input, facts.has_progressed) == (True, True, True)


@pytest.mark.parametrize(
    ("changed", "restarted"),
    [
        ({"heartbeat_at_ms": 9}, {"silent_ms"}),
        ({"launched_at_ms": 9}, {"state_age_ms"}),
        ({"stage": AttemptStage.ENDED}, {"state_age_ms"}),
        ({"attached_at_ms": 9}, {"silent_ms", "attached_age_ms"}),
        ({"running_at_ms": 9}, set()),
    ],
)
def test_each_age_begins_again_with_its_own_change(
    reader: Reader, changed: dict[str, Any], restarted: set[str]
) -> None:
    found = attempt()
    reader.facts.of_attempt(found)
    reader.seconds = 7.0
    for name, value in changed.items():
        setattr(found, name, value)
    facts = reader.facts.of_attempt(found)
    ages = {name: getattr(facts, name) for name in ("silent_ms", "state_age_ms", "attached_age_ms")}
    assert ages == {name: 0 if name in restarted else 7000 for name in ages}


@pytest.mark.parametrize(("seconds", "has_progressed"), [(60.0, False), (60.001, True)])
def test_a_driver_has_progressed_once_it_has_run_for_longer_than_the_limit(
    reader: Reader, seconds: float, has_progressed: bool
) -> None:
    found = attempt(running_at_ms=5)
    reader.facts.of_attempt(found)
    reader.seconds = seconds
    assert reader.facts.of_attempt(found).has_progressed is has_progressed
    found.running_at_ms = None
    reader.facts.of_attempt(found)
    reader.seconds *= 2
    assert not reader.facts.of_attempt(found).has_progressed, "it has never run"


@pytest.mark.parametrize(
    ("first_commit_at_ms", "input_batches", "expected"),
    [(None, 2, False), (3, 0, False), (3, 1, True), (3, None, True)],
)
def test_a_commit_of_timers_alone_is_no_run_of_input(
    reader: Reader, first_commit_at_ms: int | None, input_batches: int | None, expected: bool
) -> None:
    found = attempt(first_commit_at_ms=first_commit_at_ms, metrics={"input_batches": input_batches})
    assert reader.facts.of_attempt(found).has_run_input is expected


@pytest.mark.parametrize(
    ("next_start_at_ms", "waits_ms"), [(0, 0), (1000, 0), (1001, 1), (1500, 500), (1501, 0)], ids=str
)
def test_a_job_waits_for_its_next_start_but_no_longer_than_the_longest_pause(
    next_start_at_ms: int, waits_ms: int
) -> None:
    assert start_in_ms(next_start_at_ms, 1000, 500) == waits_ms


def test_the_restart_strategy_of_the_revision_outranks_the_reported_one() -> None:
    fixed = {"type": "fixed-delay", "attempts": 2, "delay_ms": 5}
    reported = attempt(metrics={"restart": {"type": "none"}})
    assert restart_of(Revision(spec={"artifact_id": "program", "restart": None}), None) is None
    assert restart_of(Revision(spec={"artifact_id": "program", "restart": None}), attempt()) is None
    assert restart_of(Revision(spec={"artifact_id": "program", "restart": None}), reported) == NoRestart()
    assert restart_of(Revision(spec={"artifact_id": "program", "restart": fixed}), reported) == FixedDelayRestart(
        attempts=2, delay_ms=5
    )


@pytest.mark.parametrize(("known", "reported", "count"), [(2, 1, 2), (1, 2, 2), (None, 3, 3), (3, None, 3)])
def test_the_longer_history_of_failures_counts(known: int | None, reported: int | None, count: int) -> None:
    def history(failures: int | None) -> dict[str, Any] | None:
        return None if failures is None else {"count": failures, "times_ms": list(range(failures))}

    job, active = Job(failures=history(known)), attempt(metrics={"failures": history(reported)})
    assert failures_of(job, active) == FailureHistory(count=count, times_ms=list(range(count)))
    assert failures_of(Job(failures=None), None) == FailureHistory()


def test_a_start_takes_longer_on_a_host_with_too_many_processes() -> None:
    seconds = [0.0]
    facts = FactReader(cast("Any", Launcher()), Stopwatch(lambda: seconds[0], lambda: 4.0), TIMEOUTS)
    facts.of_attempt(attempt(launched_at_ms=1))
    seconds[0] = 100.0
    seen = facts.of_attempt(attempt(launched_at_ms=1))
    assert (seen.state_age_ms, seen.starting_ms) == (100_000, 25_000)


def test_a_change_waits_for_the_old_driver_by_the_settings_and_batches_of_the_old_driver(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def revision(timeout_ms: int) -> Revision:
        return Revision(spec=JobSpec(artifact_id="a", checkpoints=CheckpointSettings(timeout_ms=timeout_ms)).given())

    known = {("job", 1): attempt(metrics={"batch_duration_ms": 70.0}), ("job", 2): attempt(metrics={})}
    revisions = {("job", 5): revision(5000), ("job", 6): revision(6000)}
    monkeypatch.setattr(fact_reader.attempts, "find", lambda _, *key: known[key])
    monkeypatch.setattr(fact_reader.revisions, "find", lambda _, *key: revisions[key])
    monkeypatch.setattr(fact_reader.attempts, "count_after", lambda _, *key: {("job", 1): 3}[key[:2]])
    monkeypatch.setattr(fact_reader.operations, "last_warm_ups", lambda _, *key: {("job",): [40]}[key[:1]])
    change = Operation(
        id="c",
        job_id="job",
        kind=OperationKind.UPGRADE,
        phase=ChangePhase.REQUESTED,
        from_revision=5,
        to_revision=6,
        old_attempt=1,
        new_attempt=2,
    )
    facts = reader.facts._change(cast("Any", None), change, waits_for_turn=False)
    assert (facts.checkpoint_timeout_ms, facts.batch_duration_ms) == (5000, 70.0)
    assert (facts.to_revision, facts.new_attempt, facts.tries, facts.earlier_warm_ms) == (6, 2, 3, (40,))


class Rows:
    """The rows of a job that runs, in place of the queries of the repositories."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = Job(
            id="job",
            status=JobStatus.RESCALING,
            desired=DesiredState.RUNNING,
            revision=6,
            consecutive_failures=4,
            restarts=5,
            next_start_at_ms=1300,
            started_at_ms=30,
            failures={"count": 2, "times_ms": [1, 2]},
        )
        own = FixedDelayRestart(attempts=9, delay_ms=400)
        self.revision = Revision(spec=JobSpec(artifact_id="a", restart=own).given())
        self.running: Operation | None = None
        self.stages: dict[AttemptStage, Attempt] = {
            AttemptStage.ACTIVE: self.attempt(4, failure=FAILURE),
            AttemptStage.STANDBY: self.attempt(5),
        }
        self.asked: list[Any] = []
        self.places = {4: 1, 5: 2}
        runs = [self.attempt(3, failure={"code": "A"}), self.attempt(2, failure={"code": "B"}, first_commit_at_ms=1)]
        earlier = {("job", 4, 30, 2): runs}
        rows: dict[Any, dict[str, Any]] = {
            fact_reader.attempts: {
                "of_stage": lambda _, job, stage: self.stages.get(stage) if job == "job" else None,
                "all_of_stage": lambda _, job, stage: {("job", AttemptStage.RESERVED): [self.attempt(7)]}[job, stage],
                "unreaped": lambda _, job: {"job": [self.attempt(1)]}[job],
                "ran_before": lambda _, *of, since_ms, limit: earlier[*of, since_ms, limit],
                "count_since": lambda _, *of: {("job", 44): 3}[of],
                "count_after": lambda *_: 2,
                "find": lambda *_: None,
            },
            fact_reader.operations: {"running": lambda _, job: {"job": self.running}[job]},
            fact_reader.revisions: {"current": lambda _, job: {"job": self.revision}[job.id], "find": lambda *_: None},
            fact_reader: {"now_ms": lambda: 1000},
        }
        for module, functions in rows.items():
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)
        self.reader = FactReader(
            cast("Any", self), Stopwatch(lambda: 0.0), Timeouts(backoff_ms_max=100), cast("Any", self)
        )

    def attempt(self, number: int, **columns: Any) -> Attempt:
        return Attempt(job_id="job", number=number, stage=AttemptStage.ACTIVE, **columns)

    def inspect(self, found: Attempt) -> Seen:
        return Seen(ProcessState.UNLAUNCHED if found.number in self.places else ProcessState.DEAD)

    def ask(self, _: Any, found: Attempt) -> Turn:
        return Turn(self.places[found.number])

    def operation(self, kind: OperationKind, **columns: Any) -> None:
        self.running = Operation(id="o", job_id="job", kind=kind, old_attempt=4, requested_at_ms=44, **columns)

    def read(self) -> JobFacts:
        return self.reader.read(cast("Any", None), self.job)


FAILURE = {"code": "X", "message": "it broke"}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows(monkeypatch)


def numbers(found: Iterable[AttemptFacts | None]) -> list[tuple[int, int] | None]:
    return [None if each is None else (each.number, each.turn.place) for each in found]


def test_the_facts_of_a_job_are_its_own_and_those_of_its_attempts(rows: Rows) -> None:
    facts = rows.read()
    assert numbers((facts.active, facts.standby, *facts.ended)) == [(4, 1), (5, 2), (1, 0)]
    assert (facts.status, facts.desired, facts.revision) == (JobStatus.RESCALING, DesiredState.RUNNING, 6)
    assert (facts.consecutive_failures, facts.restarts, facts.now_ms) == (4, 5, 1000)
    assert facts.restart == FixedDelayRestart(attempts=9, delay_ms=400)
    assert facts.start_in_ms == 300, "its own strategy may pause for longer than the control plane would"
    assert facts.failures.count == 2
    assert facts.earlier == (EarlierRun({"code": "A"}, False), EarlierRun({"code": "B"}, True))
    assert (facts.has_failure, facts.change, facts.stop, facts.reserved, facts.is_starting) == (
        False, None, None, (), False
    )  # fmt: skip
    active = rows.stages[AttemptStage.ACTIVE]
    active.failure, active.metrics = None, {"restart": {"type": "none"}, "failures": {"count": 7, "times_ms": []}}
    rows.job.failure = FAILURE
    rows.revision = Revision(spec=JobSpec(artifact_id="a").given())
    facts = rows.read()
    assert (facts.earlier, facts.has_failure, facts.start_in_ms) == ((), True, 0)
    assert (facts.restart, facts.failures.count) == (NoRestart(), 7), "as its active driver has reported"
    rows.stages.clear()
    facts = rows.read()
    assert (facts.active, facts.standby, facts.earlier) == (None, None, ())


@pytest.mark.parametrize("kind", [kind for kind in OperationKind if not kind.is_snapshot])
def test_the_operation_in_progress_is_a_stop_a_start_or_a_change(rows: Rows, kind: OperationKind) -> None:
    phase = ChangePhase.SAVEPOINT if kind.is_change else None
    rows.operation(kind, command_status=CommandStatus.IN_PROGRESS, phase=phase, rescale_mode=RescaleMode.STANDBY)
    facts = rows.read()
    is_stop = kind in STOPS
    assert facts.is_starting is (kind is OperationKind.START)
    assert (facts.stop is not None, facts.change is not None, facts.reserved) == (is_stop, kind.is_change, ())
    if facts.stop is not None:
        command = CommandFacts("o", CommandStatus.IN_PROGRESS, 4, tries=3, drain=kind is OperationKind.DRAIN)
        assert facts.stop == command
        rows.operation(kind, command_status=None)
        assert rows.read().stop is None


def test_only_a_live_rescale_has_attempts_that_its_driver_may_open(rows: Rows) -> None:
    rows.operation(
        OperationKind.RESCALE, phase=ChangePhase.PREPARE, rescale_mode=RescaleMode.LIVE, cancel_requested_at_ms=1
    )
    facts = rows.read()
    assert numbers(facts.reserved) == [(7, 0)]
    assert facts.change is not None
    assert (facts.change.is_cancelled, facts.change.earlier_warm_ms, facts.change.phase_age_ms) == (True, (), 0)


def test_a_job_without_an_attempt_is_never_silent(rows: Rows) -> None:
    assert rows.reader.silent_ms(JobSign("job", "1")) == 0


def test_the_time_of_a_phase_begins_again_when_its_driver_has_its_turn(reader: Reader, rows: Rows) -> None:
    rows.operation(OperationKind.RESCALE, phase=ChangePhase.RESTORE)
    assert rows.running is not None
    found = []
    for seconds, waits in ((1.0, False), (5.0, True), (9.0, True), (11.0, False), (14.0, False)):
        reader.seconds = seconds
        found.append(reader.facts._change(cast("Any", None), rows.running, waits_for_turn=waits).phase_age_ms)
    assert found == [0, 0, 0, 0, 3000]

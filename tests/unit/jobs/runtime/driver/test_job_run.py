"""A run ends by its first outcome, starts again only where it can, and answers a cancel at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.messages import (
    Assignment,
    Command,
    CommandKind,
    DriverState,
    FailureHistory,
    FixedDelayRestart,
    NoRestart,
)
from keyscale.jobs.runtime.driver import job_run
from keyscale.jobs.runtime.driver.job_run import JobRun
from keyscale.jobs.runtime.driver.run_outcome import RunOutcome
from keyscale.jobs.runtime.errors import AttemptOverError, RunEndedError
from keyscale.state.objects.errors import StoreUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.protocol.messages import RestartStrategy

AWAY = StoreUnavailableError("away")


class Spark:
    """In place of the session: counts how often all jobs were cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.sparkContext = SimpleNamespace(cancelAllJobs=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1


class Executions:
    """In place of the executions of a run: each ends by the next of some outcomes or exceptions."""

    def __init__(self, run: JobRun, *ends: RunOutcome | Exception, opens: bool = True) -> None:
        self.after: list[Any] = []
        self._run, self._ends, self._opens = run, list(ends), opens

    def __call__(self, context: Any, topology: Any, after: Any) -> Any:
        assert context.assignment.job_id == "job"
        assert topology == "topology"
        self.after.append(after)
        return SimpleNamespace(run=self._end, has_opened=self._opens)

    def _end(self) -> None:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        self._run._outcome_box.give(end)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRun:
    monkeypatch.setattr(job_run, "open_store", lambda url: url)
    monkeypatch.setattr(job_run, "describe", lambda _: [])
    monkeypatch.setattr(job_run, "is_session_good", lambda _: True)
    assignment = Assignment(
        job_id="job",
        job_name="flights",
        attempt=3,
        parallelism=2,
        max_parallelism=8,
        artifact_filename="job.py",
        artifact_sha256="0",
        store_url=tmp_path.as_uri(),
        next_checkpoint_id=1,
        failures=FailureHistory(count=1, times_ms=[1]),
    )
    return JobRun(cast("Any", Spark()), cast("Any", None), assignment, tmp_path, tmp_path)


def play(
    run: JobRun,
    monkeypatch: pytest.MonkeyPatch,
    *ends: RunOutcome | Exception,
    restart: RestartStrategy | None = None,
    opens: bool = True,
) -> Executions:
    """Runs the topology; each execution ends as said."""
    executions = Executions(run, *ends, opens=opens)
    monkeypatch.setattr(job_run, "Execution", executions)
    run._run_topology(cast("Any", "topology"), restart)
    return executions


def test_a_cancel_is_answered_and_ends_the_run_without_waiting(run: JobRun) -> None:
    run._on_command(Command(id="c", kind=CommandKind.CANCEL))
    assert run._outcome_box.outcome == RunOutcome(DriverState.STOPPED)
    [answer] = run._status.heartbeat().results
    assert (answer.command_id, answer.status) == ("c", "COMPLETED")
    assert cast("Any", run._spark).cancelled == 1
    assert run._commands.empty()


def test_any_other_command_waits_for_its_turn(run: JobRun) -> None:
    command = Command(id="s", kind=CommandKind.SAVEPOINT)
    run._on_command(command)
    assert run._commands.get_nowait() == command
    assert run._outcome_box.outcome is None


def test_an_attempt_that_is_over_is_fenced(run: JobRun) -> None:
    over = AttemptOverError("another attempt runs the job")
    run._on_attempt_over(over)
    assert run._outcome_box.outcome == RunOutcome(DriverState.FENCED, over)


def test_a_failed_run_starts_again_after_its_predecessor_by_the_strategy_of_the_script(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = FixedDelayRestart(attempts=2, delay_ms=0)
    run._commands.put(None)
    executions = play(run, monkeypatch, AWAY, RunOutcome(DriverState.STOPPED), restart=strategy)
    first, second = executions.after
    assert first is None
    assert second is not None
    assert run._commands.empty(), "the marker of the first end is gone"
    beat = run._status.heartbeat()
    assert (beat.state, beat.failure) == (DriverState.STOPPED, None)
    assert (beat.metrics.restart, beat.metrics.failures.count) == (strategy, 2), "with the failures of its assignment"
    assert beat.metrics.last_failure is not None
    assert beat.metrics.last_failure.code == AWAY.code


def test_a_strategy_of_the_specification_outranks_that_of_the_script(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run._settings.follow(run._settings.newest.model_copy(update={"restart": NoRestart()}))
    with pytest.raises(StoreUnavailableError):
        play(run, monkeypatch, AWAY, restart=FixedDelayRestart(attempts=2, delay_ms=0))
    beat = run._status.heartbeat()
    assert beat.state is DriverState.FAILED
    assert beat.failure is not None
    assert beat.failure.final


def test_a_strategy_that_changes_is_shown_at_once(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    play(run, monkeypatch, RunOutcome(DriverState.FINISHED))
    run._settings.follow(run._settings.newest.model_copy(update={"restart": NoRestart()}))
    assert run._status.heartbeat().metrics.restart == NoRestart()


@pytest.mark.parametrize(("opens", "is_good"), [(False, True), (True, False)])
def test_a_run_that_never_opened_or_has_lost_spark_does_not_start_again(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, opens: bool, is_good: bool
) -> None:
    monkeypatch.setattr(job_run, "is_session_good", lambda _: is_good)
    with pytest.raises(StoreUnavailableError):
        play(run, monkeypatch, AWAY, restart=FixedDelayRestart(attempts=2, delay_ms=0), opens=opens)
    beat = run._status.heartbeat()
    assert (beat.state, beat.metrics.failures.count) == (DriverState.FAILED, 1)
    assert beat.failure is not None
    assert (beat.failure.code, beat.failure.final) == (AWAY.code, False)


def test_a_script_executes_one_job(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    play(run, monkeypatch, RunOutcome(DriverState.FINISHED))
    with pytest.raises(RunEndedError):
        play(run, monkeypatch, RunOutcome(DriverState.FINISHED))

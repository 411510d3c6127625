"""A run ends by its first outcome, starts again only where it can, and answers a cancel at once."""

from __future__ import annotations

import contextlib
import queue
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from keyscale import ValueStateDescriptor
from keyscale.jobs.errors import SinkForbiddenError, SinkUnavailableError
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.protocol.messages import (
    Assignment,
    Command,
    FailureHistory,
    GraphNode,
    LibraryFile,
    LiveSettings,
    ReservedAttempt,
)
from keyscale.jobs.protocol.specification import FixedDelayRestart, JobSpec, NoRestart, SecretReference
from keyscale.jobs.runtime.driver import job_run
from keyscale.jobs.runtime.driver.job_run import JobRun
from keyscale.jobs.runtime.driver.live_rescale import carry_out
from keyscale.jobs.runtime.driver.run_outcome import ASLEEP, HANDED_OVER, RunOutcome
from keyscale.jobs.runtime.errors import AttemptOverError, JobNotDeclaredError, LibrariesMissingError, RunEndedError
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.vocabulary import CommandKind, DriverState
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyscale.jobs.protocol.specification import RestartStrategy

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
        self.contexts: list[Any] = []
        self.is_unverified = False
        self._run, self._ends, self._opens = run, list(ends), opens

    def __call__(self, context: Any, topology: Any, after: Any = None) -> Any:
        assert context.assignment.job_id == "job"
        assert (context.work_dir.name, context.local_root.name) == ("work", "state")
        assert topology == "topology"
        self.after.append(after)
        self.contexts.append(context)
        made: Any = SimpleNamespace(
            has_opened=self._opens,
            context=context,
            successor=None,
            is_unverified=self.is_unverified and context.rescaled_by is not None,
            next_checkpoint_id=40,
        )
        made.run = lambda: self._end(made)
        return made

    def _end(self, execution: Any) -> None:
        end = self._ends.pop(0)
        if end is HANDED_OVER:
            execution.successor = self(rescaled(execution.context), "topology", execution)
        if isinstance(end, Exception):
            raise end
        self._run._outcome_box.give(end)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRun:
    monkeypatch.setattr(job_run, "open_store", lambda url: url)
    monkeypatch.setattr(job_run, "describe", lambda _: [])
    monkeypatch.setattr(job_run, "is_session_good", lambda _: True)
    assignment = new_assignment(
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
        parameters={"colour": "blue", "password": SecretReference.model_validate({"secret": "PASSWORD"})},
        libraries=[LibraryFile(filename="lib.whl", sha256="1", kind="WHEEL")],
        skip_lost_records=True,
    )
    monkeypatch.setattr(job_run, "TargetCheck", Checks)
    Checks.errors = []
    work_dir, local_root = tmp_path / "work", tmp_path / "state"
    return JobRun(
        cast("Any", Spark()), cast("Any", "channel"), assignment, work_dir, local_root, libraries=frozenset({"1", "2"})
    )


def rescaled(context: Any) -> Any:
    """Returns the context of the attempt after, by a command that has a way back."""
    numbers = {"next_attempt": 4, "return_attempt": 5}
    attempts = {
        name: ReservedAttempt(
            token=f"token of {number}", assignment=context.assignment.model_copy(update={"attempt": number})
        )
        for name, number in numbers.items()
    }
    command = Command(id="rescale", kind=CommandKind.RESCALE, **attempts)
    return replace(context, assignment=attempts["next_attempt"].assignment, rescaled_by=command)


class Checks:
    """In place of the check of targets: each ends by the next of some errors."""

    errors: ClassVar[list[Exception]] = []

    def __init__(self, topology: str, *_: Any) -> None:
        assert topology == "topology"

    def run(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


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


def test_an_execution_and_the_reporter_get_the_runs_own_parts(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    (context,) = play(run, monkeypatch, RunOutcome(DriverState.STOPPED)).contexts
    own = {
        "spark": run._spark,
        "assignment": run._assignment,
        "store": run._assignment.store_url,
        "status": run._status,
        "settings": run._settings,
        "outcome_box": run._outcome_box,
        "commands": run._commands,
        "reporter": run._reporter,
        "work_dir": run._work_dir,
        "local_root": run._local_root,
        "rescale": carry_out,
        "withdrawn": run._withdrawn,
        "sampling": run._sampling,
        "sleep": run._sleep,
    }
    given = {name: getattr(context, name) for name in own}
    assert [name for name, part in own.items() if given[name] is not part] == []
    assert (context.token, context.rescaled_by, context.failure) == (None, None, None)
    run._reporter._on_withdrawal("c")
    run._reporter._on_sleep(True)
    assert (run._withdrawn, run._sleep.is_wanted) == ({"c"}, True)
    assert (run._reporter._on_command, run._reporter._on_attempt_over) == (run._on_command, run._on_attempt_over)
    assert (run._reporter._on_settings, run._reporter._on_diagnostics) == (
        run._settings.follow,
        run._diagnostics.request,
    )


def test_the_graph_of_the_job_is_shown_and_its_targets_are_checked_with_the_runs_own_parts(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []

    def check(*given: Any) -> Any:
        checked.extend(given)
        return SimpleNamespace(run=lambda: None)

    nodes = [GraphNode(uid="orders", kind="SOURCE")]
    monkeypatch.setattr(job_run, "describe", lambda topology: nodes if topology == "topology" else [])
    monkeypatch.setattr(job_run, "TargetCheck", check)
    settings = run._assignment.spec.checkpoints.model_copy(update={"store_outage_max_ms": 700})
    spec = run._assignment.spec.model_copy(update={"checkpoints": settings})
    run._assignment = run._assignment.model_copy(update={"spec": spec})
    play(run, monkeypatch, RunOutcome(DriverState.FINISHED))
    assert run._status.heartbeat().metrics.graph == nodes
    topology, assignment, store, local_root, retries, sink_retries = checked
    assert (topology, assignment, store, local_root) == (
        "topology",
        run._assignment,
        run._assignment.store_url,
        run._local_root,
    )
    assert (retries.limit_ms, sink_retries.limit_ms) == (700, 700)
    assert (retries.awaited, sink_retries.awaited) == (StoreUnavailableError, SinkUnavailableError)
    assert retries.has_ended(), "the run has its outcome by now"


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


def test_a_run_that_has_slept_ends_its_script_and_says_that_it_has_woken(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[DriverState] = []
    run._sleep.leave_spark = lambda: states.append(run._status.state)
    run._sleep.end_watch = lambda: states.append(run._status.state)
    with pytest.raises(RunEndedError):
        play(run, monkeypatch, ASLEEP)
    assert states == [DriverState.STANDBY, DriverState.SLEEPING], "the sleep is reported once the JVM has ended"
    beat = run._status.heartbeat()
    assert beat.state is DriverState.WOKEN
    assert (beat.metrics.jvm_heap_bytes, (beat.metrics.process_memory_bytes or 0) > 0) == (0, True), "without the JVM"


def test_the_execution_of_the_next_attempt_runs_after_a_live_rescale(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run._commands.put(None)
    executions = play(run, monkeypatch, HANDED_OVER, RunOutcome(DriverState.FINISHED))
    assert [context.assignment.attempt for context in executions.contexts] == [3, 4]
    assert run._commands.empty(), "the marker of the first end is gone"
    assert run._status.heartbeat().state is DriverState.FINISHED


def test_a_job_that_is_cancelled_during_the_switch_ends(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run._outcome_box, "reopen", lambda: RunOutcome(DriverState.STOPPED))
    executions = play(run, monkeypatch, HANDED_OVER)
    assert len(executions.contexts) == 2, "the next attempt was prepared"


@pytest.mark.parametrize("is_unverified", [True, False])
def test_a_job_goes_back_if_the_first_batch_after_a_live_rescale_fails(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, *, is_unverified: bool
) -> None:
    executions = Executions(run, HANDED_OVER, AWAY, RunOutcome(DriverState.STOPPED))
    executions.is_unverified = is_unverified
    monkeypatch.setattr(job_run, "Execution", executions)
    with contextlib.nullcontext() if is_unverified else pytest.raises(StoreUnavailableError):
        run._run_topology(cast("Any", "topology"), None)
    numbers = [context.assignment.attempt for context in executions.contexts]
    if is_unverified:
        assert numbers == [3, 4, 5]
        back = executions.contexts[-1]
        assert (back.token, back.failure.code, executions.after[-1]) == ("token of 5", AWAY.code, None)
        assert back.assignment.next_checkpoint_id == 40, "failed checkpoints have used up their numbers"
    else:
        assert numbers == [3, 4], "the failure is one of the new parallelism's own"


def test_a_run_that_fails_after_a_live_rescale_starts_again_with_the_attempt_of_the_rescale(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = FixedDelayRestart(attempts=2, delay_ms=0)
    ends = HANDED_OVER, AWAY, RunOutcome(DriverState.STOPPED)
    _, rescaled_to, again = play(run, monkeypatch, *ends, restart=strategy).contexts
    assert again is rescaled_to
    assert again.assignment.attempt == 4


def test_a_strategy_of_the_specification_outranks_that_of_the_script(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run._settings.follow(LiveSettings(revision=2, spec=JobSpec(artifact_id="a", restart=NoRestart())))
    with pytest.raises(StoreUnavailableError):
        play(run, monkeypatch, AWAY, restart=FixedDelayRestart(attempts=2, delay_ms=0))
    beat = run._status.heartbeat()
    assert beat.state is DriverState.FAILED
    assert beat.failure is not None
    assert beat.failure.final


def test_a_strategy_that_changes_is_shown_at_once(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    play(run, monkeypatch, RunOutcome(DriverState.FINISHED))
    run._settings.follow(LiveSettings(revision=2, spec=JobSpec(artifact_id="a", restart=NoRestart())))
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


class Reports:
    """In place of the reporter: notes what the control plane gets to see at which moment."""

    def __init__(self, run: JobRun) -> None:
        self.seen: list[str] = []
        self._run = run

    def start(self) -> None:
        self.seen.append(f"start {self._run._status.state}")

    def nudge(self) -> None:
        self.seen.append(f"nudge {self._run._status.state}")

    def close(self, seconds: float) -> bool:
        assert seconds > 0
        self.seen.append(f"close {self._run._status.state}")
        return True


class Environment:
    """In place of the environment of the script; while it is provided, the script can execute a job."""

    def __init__(
        self, spark: Any, parameters: dict[str, str], execute: Callable[[Any], None], *, skip_lost_records: bool
    ) -> None:
        assert isinstance(spark, Spark)
        self.parameters, self.execute, self.skip_lost_records = parameters, execute, skip_lost_records
        self.restart = NoRestart()
        self.is_provided = False

    @contextmanager
    def provided(self) -> Iterator[None]:
        self.is_provided = True
        yield
        self.is_provided = False


def run_script(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, script: Callable[[Environment], None]
) -> tuple[DriverState, list[str]]:
    """Runs a whole assignment with a script; returns the state, and what the control plane has seen."""
    environments: list[Environment] = []

    def environment(*arguments: Any, **named: Any) -> Environment:
        environments.append(Environment(*arguments, **named))
        return environments[-1]

    def fetch(channel: str, filename: str, sha256: str, directory: Path) -> Any:
        assert (channel, filename, sha256) == ("channel", "job.py", "0")
        assert (directory.name, directory.parent.name, directory.is_dir()) == ("artifact", "work", True)

        def execute(spark: Any) -> None:
            assert spark is run._spark
            assert environments[0].is_provided
            script(environments[0])

        return SimpleNamespace(run=execute)

    started: list[int] = []
    reports = Reports(run)
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_PASSWORD", "hidden")
    monkeypatch.setattr(run, "_reporter", reports)
    monkeypatch.setattr(job_run, "start_workers", lambda _, parallelism: started.append(parallelism))
    monkeypatch.setattr(job_run, "LocalArtifact", SimpleNamespace(fetch=fetch))
    monkeypatch.setattr(job_run, "StreamEnvironment", environment)
    state = run.run()
    assert started == [2]
    return state, reports.seen


def test_a_script_gets_its_parameters_with_secrets_and_its_outcome_is_reported_before_its_last_lines(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions = Executions(run, RunOutcome(DriverState.FINISHED))
    monkeypatch.setattr(job_run, "Execution", executions)

    def script(environment: Environment) -> None:
        assert environment.parameters == {"colour": "blue", "password": "hidden"}
        assert environment.skip_lost_records
        environment.execute("topology")
        assert run._status.state is DriverState.FINISHED

    state, seen = run_script(run, monkeypatch, script)
    assert (state, seen) == (DriverState.FINISHED, ["start RESTORING", "nudge FINISHED", "close FINISHED"])
    assert len(executions.after) == 1
    assert run._status.heartbeat().metrics.restart == NoRestart(), "the strategy of the script"


def test_a_script_that_raises_fails_the_run(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(_: Environment) -> None:
        raise ZeroDivisionError

    state, seen = run_script(run, monkeypatch, mistaken)
    assert (state, seen) == (DriverState.FAILED, ["start RESTORING", "close FAILED"])


def test_a_wrong_declaration_fails_the_run_with_the_lines_of_the_script(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_script(run, monkeypatch, lambda _: cast("None", ValueStateDescriptor("n", cast("Any", int))))
    failure = run._status.heartbeat().failure
    assert failure is not None
    assert 'ValueStateDescriptor("n"' in str(failure.traceback)


def test_a_failure_of_a_running_job_has_no_lines_of_the_script(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SinkForbiddenError("no right")
    monkeypatch.setattr(job_run, "Execution", Executions(run, RunOutcome(DriverState.FAILED, lost)))
    run_script(run, monkeypatch, lambda environment: environment.execute("topology"))
    failure = run._status.heartbeat().failure
    assert failure is not None
    assert (failure.message, failure.traceback) == ("no right", None)
    assert origin_of(lost).user_traceback is None


def test_a_script_that_declares_no_job_fails_the_run(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = run_script(run, monkeypatch, lambda _: None)
    failure = run._status.heartbeat().failure
    assert failure is not None
    assert (state, failure.code) == (DriverState.FAILED, JobNotDeclaredError.code)


def test_a_script_does_not_run_without_its_libraries(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run._libraries = frozenset({"2"})
    state, _ = run_script(run, monkeypatch, lambda _: pytest.fail("the script runs"))
    failure = run._status.heartbeat().failure
    assert failure is not None
    assert (state, failure.code) == (DriverState.FAILED, LibrariesMissingError.code)


FORBIDDEN = SinkForbiddenError("user a may not write to /out")


class Reporter:
    """In place of the reporter: notes what a heartbeat of each moment would say."""

    def __init__(self, run: JobRun) -> None:
        self.beats: list[str] = []
        self._run = run

    def start(self) -> None:
        self.nudge()

    def nudge(self) -> None:
        beat = self._run._status.heartbeat()
        self.beats.append(f"{beat.state}{' (warms up)' if beat.warms_up else ''}")

    def close(self, _timeout: float) -> bool:
        self.nudge()
        return True


class Standby:
    """In place of the attachment of a standby: becomes warm, and is then assigned or not."""

    def __init__(self, run: JobRun, assigned: Assignment | Exception | None) -> None:
        self.asked = 0
        self.rehearsals = 0
        self._run, self._assigned = run, assigned

    def assignment(self, on_warm: Callable[[], None]) -> Assignment | None:
        self.asked += 1
        self._run._reporter.nudge()
        on_warm()
        self._run._reporter.nudge()
        if isinstance(self._assigned, Exception):
            raise self._assigned
        return self._assigned


def play_standby(
    run: JobRun,
    monkeypatch: pytest.MonkeyPatch,
    assigned: Assignment | Exception | None,
    rehearsed: Exception | None = None,
) -> tuple[Standby, list[str], list[Any]]:
    """Runs a standby; returns its attachment, its heartbeats and the assignment of each execution."""
    standby = Standby(run, assigned)
    run._attachment = cast("Any", standby)
    reporter = Reporter(run)
    run._reporter = cast("Any", reporter)
    executed: list[Any] = []

    def execution(context: Any, _topology: Any) -> Any:
        def run_once() -> None:
            executed.append(context.assignment)
            run._outcome_box.give(RunOutcome(DriverState.FINISHED))

        def rehearse_ahead() -> None:
            assert not standby.asked
            standby.rehearsals += 1
            if rehearsed is not None:
                raise rehearsed

        return SimpleNamespace(run=run_once, rehearse_ahead=rehearse_ahead, has_opened=True, successor=None)

    monkeypatch.setattr(job_run, "Execution", execution)
    monkeypatch.setattr(run, "_run_script", lambda: run._run_topology(cast("Any", "topology"), None))
    run.run()
    return standby, reporter.beats, executed


def test_a_standby_is_ready_when_its_script_has_run_and_its_targets_are_checked_and_spark_is_warm(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = run._assignment.model_copy(update={"revision": 5, "restore_from": "savepoint"})
    standby, beats, executed = play_standby(run, monkeypatch, given)
    warming = "STANDBY (warms up)"
    assert beats == [warming, warming, "STANDBY", "RESTORING", "FINISHED", "FINISHED"], "it beats from the beginning"
    assert executed == [given]
    assert run._settings.newest.revision == 5
    assert standby.rehearsals == 1


def test_a_standby_whose_rehearsal_fails_takes_its_assignment(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, executed = play_standby(run, monkeypatch, run._assignment, RuntimeError("no slots"))
    assert executed == [run._assignment]


def test_a_standby_without_a_right_fails_before_it_asks_for_its_assignment(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checks.errors = [FORBIDDEN]
    standby, beats, executed = play_standby(run, monkeypatch, run._assignment)
    assert (standby.asked, executed) == (0, [])
    assert beats == ["STANDBY (warms up)", "FAILED", "FAILED"]
    failure = run._status.heartbeat().failure
    assert failure is not None
    assert (failure.code, failure.message) == ("SINK_FORBIDDEN", str(FORBIDDEN))


@pytest.mark.parametrize("assigned", [None, AttemptOverError("over")])
def test_a_standby_whose_change_is_given_up_runs_nothing(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, assigned: Exception | None
) -> None:
    _, beats, executed = play_standby(run, monkeypatch, assigned)
    assert executed == []
    assert beats[-1] == "FENCED"


def test_a_standby_that_is_over_while_its_script_runs_asks_for_nothing(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run._on_attempt_over(AttemptOverError("over"))
    _, beats, executed = play_standby(run, monkeypatch, run._assignment)
    assert executed == []
    assert beats[-1] == "FENCED"


def test_an_attempt_without_a_right_begins_nothing(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    Checks.errors = [FORBIDDEN]
    with pytest.raises(SinkForbiddenError):
        play(run, monkeypatch, RunOutcome(DriverState.FINISHED))
    assert run._status.heartbeat().state is DriverState.FAILED


def test_a_last_report_that_does_not_arrive_is_logged_and_changes_nothing(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_run, "Execution", Executions(run, RunOutcome(DriverState.FINISHED)))
    closed: list[str] = []
    monkeypatch.setattr(Reports, "close", lambda _, seconds: closed.append(f"after {seconds:g} s"))
    monkeypatch.setattr(run._diagnostics, "close", lambda: closed.append("diagnostics"))
    state, _ = run_script(run, monkeypatch, lambda environment: environment.execute("topology"))
    assert (state, closed) == (DriverState.FINISHED, ["after 60 s", "diagnostics"])
    assert caplog.messages == ["the control plane did not receive the last report"]


def test_commands_outlast_a_run_and_the_ends_of_its_thread_do_not() -> None:
    commands: Any = queue.SimpleQueue()
    first, second = (Command(id=name, kind=CommandKind.CHECKPOINT) for name in ("first", "second"))
    for command in (None, first, None, second, None):
        commands.put(command)
    job_run.forget_ends(commands)
    assert [commands.get_nowait() for _ in range(commands.qsize())] == [first, second]


def test_a_standby_that_is_stopped_while_its_targets_are_checked_asks_for_nothing(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checks, "run", lambda _: run._outcome_box.give(RunOutcome(DriverState.STOPPED)))
    standby, beats, executed = play_standby(run, monkeypatch, run._assignment)
    assert (standby.asked, standby.rehearsals, executed) == (0, 0, [])
    assert beats[-1] == "STOPPED"

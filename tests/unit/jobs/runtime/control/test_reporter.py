from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.messages import (
    AttachRequest,
    AttachResponse,
    CheckpointReport,
    Command,
    CommandResult,
    Commit,
    Counters,
    DiagnosticCommand,
    Failure,
    Heartbeat,
    HeartbeatResponse,
    LiveSettings,
)
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.jobs.runtime.control import reporter
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.reporter import Following, Reporter
from keyscale.jobs.runtime.errors import (
    AttemptOverError,
    AttemptUnknownError,
    ControlRefusedError,
    ControlUnreachableError,
)
from keyscale.state.documents.job_counters import JobCounters
from keyscale.vocabulary import CheckpointStatus, CommandKind, DiagnosticKind, DriverState
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class ScriptedControl:
    """A control plane in memory that can fail to answer, refuse, or end the attempt."""

    def __init__(self) -> None:
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[CheckpointReport] = []
        self.commands: list[Command] = []
        self.settings: LiveSettings | None = None
        self.diagnostics: list[DiagnosticCommand] = []
        self.failure: Exception | None = None
        self.report_failure: Exception | None = None
        self.refusals = 0
        self.spoken_as: list[tuple[str, int, str]] = []
        self.can_call = False
        self.call_failure: Exception | None = None
        self.waits: list[tuple[int, float]] = []
        self.is_wanted = threading.Event()

    def attach(self, request: AttachRequest) -> AttachResponse:
        raise NotImplementedError

    def fetch_artifact(self, target: Path) -> None:
        raise NotImplementedError

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        if self.failure:
            raise self.failure
        self.heartbeats.append(heartbeat)
        answered = {result.command_id for result in heartbeat.results}
        commands = [command for command in self.commands if command.id not in answered]
        return HeartbeatResponse(commands=commands, settings=self.settings, diagnostics=self.diagnostics)

    def wait_for_call(self, revision: int, seconds: float) -> bool:
        self.waits.append((revision, seconds))
        if self.call_failure:
            raise self.call_failure
        if not self.is_wanted.wait(seconds):
            return False
        self.is_wanted.clear()
        return True

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:
        self.spoken_as.append((job_id, attempt, token))

    def report_checkpoint(self, report: CheckpointReport) -> None:
        if self.failure or self.report_failure:
            self.refusals += 1
            raise self.failure or self.report_failure  # type: ignore[misc]  # one of them is set
        self.reports.append(report)

    def close(self) -> None:
        raise NotImplementedError


class Running:
    def __init__(self) -> None:
        self.control = ScriptedControl()
        self.status = DriverStatus()
        self.commands: list[Command] = []
        self.over: list[AttemptOverError] = []
        self.settings: list[LiveSettings] = []
        self.looks: list[DiagnosticCommand] = []
        self.reporter = Reporter(
            self.control,
            self.status,
            self.commands.append,
            self.over.append,
            self.settings.append,
            on_diagnostics=self.looks.extend,
        )


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    running.reporter.start()
    yield running
    running.control.failure = running.control.report_failure = None
    running.reporter.close(5)


@pytest.fixture
def quiet() -> Iterator[Running]:
    """A running driver that the control plane can call, and that has nothing to report."""
    running = Running()
    running.control.can_call = True
    running.status.follows(3)
    running.status.enter(DriverState.RUNNING)
    running.reporter.start()
    wait_until(lambda: (3, reporter.WAIT_SECONDS) in running.control.waits, what="the wait for a call")
    yield running
    running.control.is_wanted.set()
    running.reporter.close(5)


@pytest.fixture
def intervals(quiet: Running, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets some intervals of the reporter pass, which are very short."""
    looks: list[None] = []
    is_due = quiet.reporter._is_due

    def look() -> bool:
        looks.append(None)
        return is_due()

    monkeypatch.setattr(reporter, "HEARTBEAT_INTERVAL_SECONDS", 0.005)
    monkeypatch.setattr(quiet.reporter, "_is_due", look)

    def pass_by(count: int) -> None:
        until = len(looks) + count
        wait_until(lambda: len(looks) >= until, what="the intervals")

    return pass_by


def report(
    checkpoint_id: int, status: CheckpointStatus = CheckpointStatus.COMPLETED, *, is_savepoint: bool = False
) -> CheckpointReport:
    return CheckpointReport(checkpoint_id=checkpoint_id, status=status, trigger_timestamp=0, is_savepoint=is_savepoint)


@pytest.mark.usefixtures("intervals")
def test_a_diagnostic_is_passed_on_and_heartbeats_follow_until_it_has_arrived(quiet: Running) -> None:
    look = DiagnosticCommand(id="d1", kind=DiagnosticKind.THREAD_DUMP)
    quiet.control.diagnostics = [look]
    quiet.control.is_wanted.set()
    wait_until(lambda: len(quiet.looks) > 2, what="the repeated request")
    assert set(quiet.looks) == {look}
    quiet.control.diagnostics = []
    before = len(quiet.looks)
    wait_until(quiet.reporter._is_unwanted.is_set, what="the end of the requests")
    assert len(quiet.looks) <= before + 1


def test_a_driver_that_nothing_happens_to_sends_no_heartbeats(quiet: Running, intervals: Callable[[int], None]) -> None:
    intervals(2)
    before = len(quiet.control.heartbeats)
    intervals(20)
    assert len(quiet.control.heartbeats) == before


def test_a_quiet_driver_reports_each_nine_seconds(
    quiet: Running, intervals: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals(2)
    before = len(quiet.control.heartbeats)
    monkeypatch.setattr(quiet.reporter, "_delivered_at", time.monotonic() - reporter.QUIET_SECONDS)
    intervals(20)
    assert len(quiet.control.heartbeats) == before + 1


def test_whatever_changes_is_reported_in_the_next_interval(quiet: Running, intervals: Callable[[int], None]) -> None:
    quiet.status.records_wait(7)
    intervals(2)
    assert quiet.control.heartbeats[-1].metrics.pending_records == 7
    before = len(quiet.control.heartbeats)
    quiet.status.records_wait(7)
    intervals(20)
    assert len(quiet.control.heartbeats) == before, "it is no change"


def test_a_call_has_a_heartbeat_sent_and_its_command_is_executed(quiet: Running) -> None:
    quiet.control.commands = [Command(id="c1", kind=CommandKind.CHECKPOINT)]
    before = len(quiet.control.heartbeats)
    quiet.control.is_wanted.set()
    wait_until(lambda: quiet.commands, what="the command")
    wait_until(lambda: len(quiet.control.heartbeats) >= before + 3, what="heartbeats until there is a result")


def test_a_driver_that_cannot_be_called_sends_a_heartbeat_each_interval(quiet: Running) -> None:
    quiet.control.call_failure = ControlUnreachableError("away")
    quiet.control.is_wanted.set()
    wait_until(lambda: not quiet.reporter._listens, what="the end of the calls")
    before = len(quiet.control.heartbeats)
    wait_until(lambda: len(quiet.control.heartbeats) >= before + 3, what="three heartbeats")
    quiet.control.call_failure = None
    wait_until(lambda: quiet.control.waits[-1] == (3, reporter.WAIT_SECONDS), what="another wait")
    assert (3, 0.0) in quiet.control.waits[1:], "the first answer must come at once"


def test_a_control_plane_that_calls_no_drivers_is_asked_once_a_minute(quiet: Running) -> None:
    quiet.control.call_failure = ControlRefusedError("no such route")
    quiet.control.is_wanted.set()
    wait_until(lambda: not quiet.reporter._listens, what="the end of the calls")
    before, waits = len(quiet.control.heartbeats), len(quiet.control.waits)
    wait_until(lambda: len(quiet.control.heartbeats) >= before + 4, what="four heartbeats")
    assert len(quiet.control.waits) == waits


def test_a_driver_that_does_not_run_yet_sends_a_heartbeat_each_interval(running: Running) -> None:
    running.control.can_call = True
    running.status.follows(3)
    running.status.enter(DriverState.RESTORING)
    wait_until(lambda: len(running.control.heartbeats) >= 3, what="three heartbeats")
    assert running.control.waits == []


def test_a_command_is_executed_once_however_often_it_is_delivered(running: Running) -> None:
    running.control.commands = [Command(id="c1", kind=CommandKind.CHECKPOINT)]
    wait_until(lambda: len(running.control.heartbeats) >= 4, what="four heartbeats")
    assert [command.id for command in running.commands] == ["c1"]


def test_settings_that_the_control_plane_sends_are_handed_on(running: Running) -> None:
    sent = running.control.settings = LiveSettings(revision=2, spec=JobSpec(artifact_id="a"))
    wait_until(lambda: running.settings, what="the settings")
    assert running.settings[0] == sent


def test_a_result_is_repeated_until_the_control_plane_no_longer_asks_for_it(running: Running) -> None:
    running.status.answer(CommandResult(command_id="c1", status="COMPLETED"))
    wait_until(lambda: any(beat.results for beat in running.control.heartbeats), what="the result")
    wait_until(lambda: not running.control.heartbeats[-1].results, what="a heartbeat without the result")


def test_reports_wait_while_the_control_plane_does_not_answer_and_arrive_in_order(running: Running) -> None:
    running.control.failure = ControlUnreachableError("away")
    for number in range(3):
        running.reporter.report_checkpoint(report(number))
    assert running.reporter.has_unsent_reports
    running.control.failure = None
    wait_until(lambda: len(running.control.reports) == 3, what="the reports")
    wait_until(lambda: not running.reporter.has_unsent_reports, what="the end of the waiting")
    assert [sent.checkpoint_id for sent in running.control.reports] == [0, 1, 2]


def test_a_sleep_is_told_after_the_report_of_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Running()
    made.status.enter(DriverState.SLEEPING)
    made.reporter.report_checkpoint(report(1))
    with monkeypatch.context() as slow:
        slow.setattr(reporter, "REPORTS_SECONDS", -1.0)
        made.reporter._exchange()
    made.reporter._exchange()
    assert [beat.state for beat in made.control.heartbeats] == [DriverState.RUNNING, DriverState.SLEEPING]


def test_the_driver_speaks_for_its_next_attempt_after_all_reports_of_the_one_before() -> None:
    made = Running()
    control, sender = made.control, made.reporter
    made.status.begins(1)
    assert sender._exchange()
    sender.report_checkpoint(report(1))
    made.status.begins(2)
    control.report_failure = ControlUnreachableError("away")
    sender.follow(Following("job", 2, "token"))
    sender.report_checkpoint(report(2))
    assert not sender._exchange()
    assert ([beat.attempt for beat in control.heartbeats], control.spoken_as) == ([1], [])
    control.report_failure = None
    assert sender._exchange()
    assert [sent.checkpoint_id for sent in control.reports] == [1, 2]
    assert ([beat.attempt for beat in control.heartbeats], control.spoken_as) == ([1, 2], [("job", 2, "token")])


def test_a_heartbeat_of_the_next_attempt_waits_until_the_driver_may_speak_for_it() -> None:
    made = Running()
    made.status.begins(1)
    assert made.reporter._exchange()
    made.status.begins(2)
    assert not made.reporter._exchange()
    made.reporter.follow(Following("job", 2, "token"))
    assert made.reporter._exchange()
    assert [beat.attempt for beat in made.control.heartbeats] == [1, 2]


def test_a_command_that_is_withdrawn_is_told_each_time_and_executed_once() -> None:
    made, withdrawn = Running(), list[str]()
    made.reporter = Reporter(
        made.control, made.status, made.commands.append, made.over.append, on_withdrawal=withdrawn.append
    )
    command = Command(id="c1", kind=CommandKind.RESCALE)
    made.control.commands = [command]
    made.reporter._exchange()
    assert withdrawn == []
    made.control.commands = [command.model_copy(update={"is_withdrawn": True})]
    made.reporter._exchange()
    assert (withdrawn, made.commands) == (["c1"], [command])


@pytest.mark.parametrize("wanted", ["nothing", "command", "diagnostic", "settings"])
def test_a_running_driver_waits_for_a_call_once_the_control_plane_wants_nothing(wanted: str) -> None:
    made = Running()
    made.status.enter(DriverState.RUNNING)
    if wanted == "command":
        made.control.commands = [Command(id="c1", kind=CommandKind.SAVEPOINT)]
    elif wanted == "diagnostic":
        made.control.diagnostics = [DiagnosticCommand(id="d1", kind=DiagnosticKind.THREAD_DUMP)]
    elif wanted == "settings":
        made.control.settings = LiveSettings(revision=7, spec=JobSpec(artifact_id="a"))
    made.reporter._exchange()
    assert made.reporter._is_unwanted.is_set() is (wanted == "nothing")


def test_a_refused_report_does_not_delay_those_after_it(running: Running) -> None:
    running.control.report_failure = ControlRefusedError("no")
    running.reporter.report_checkpoint(report(1))
    before = len(running.control.heartbeats)
    wait_until(lambda: len(running.control.heartbeats) > before + 1, what="heartbeats after the refusal")
    running.control.report_failure = None
    running.reporter.report_checkpoint(report(2))
    wait_until(lambda: running.control.reports, what="the report")
    assert [sent.checkpoint_id for sent in running.control.reports] == [2]


def test_reports_wait_while_a_control_plane_of_another_database_answers(running: Running) -> None:
    running.control.report_failure = AttemptUnknownError("no")
    running.reporter.report_checkpoint(report(1))
    wait_until(lambda: running.control.refusals > 1, what="a second try")
    running.control.report_failure = None
    wait_until(lambda: running.control.reports, what="the report")
    assert [sent.checkpoint_id for sent in running.control.reports] == [1]


def test_the_driver_learns_that_its_attempt_is_over(running: Running) -> None:
    running.control.failure = AttemptOverError("gone")
    wait_until(lambda: running.over, what="the attempt's end")


def test_closing_sends_the_last_state(running: Running) -> None:
    running.status.enter(DriverState.STOPPED)
    assert running.reporter.close(5)
    assert running.control.heartbeats[-1].state is DriverState.STOPPED


def test_closing_tries_again_until_the_last_state_arrives(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_INTERVAL_SECONDS", 0.01)
    failures, send = [ControlUnreachableError("away")] * 3, running.control.heartbeat

    def sometimes(heartbeat: Heartbeat) -> HeartbeatResponse:
        if heartbeat.state is DriverState.STOPPED and failures:
            raise failures.pop()
        return send(heartbeat)

    monkeypatch.setattr(running.control, "heartbeat", sometimes)
    running.reporter._closing.set()
    running.reporter._thread.join(60)
    running.status.enter(DriverState.STOPPED)
    assert running.reporter.close(60)
    assert running.control.heartbeats[-1].state is DriverState.STOPPED


def test_closing_ends_without_an_answer_after_its_timeout(running: Running) -> None:
    running.control.failure = ControlUnreachableError("away")
    assert not running.reporter.close(0.3)
    assert not running.reporter.close(0.0)


def test_a_terminal_state_stays() -> None:
    status = DriverStatus()
    status.enter(DriverState.FENCED)
    status.enter(DriverState.FAILED, Failure(code="X", message="going down"))
    beat = status.heartbeat()
    assert (beat.state, beat.failure) == (DriverState.FENCED, None)


def test_metrics_count_every_batch_and_keep_the_first_commit() -> None:
    status = DriverStatus()
    for batch_id in (4, 5):
        status.committed(
            Commit(batch_id=batch_id, at_ms=batch_id),
            counters=JobCounters(input_records=100 * batch_id, dead_letters=7),
            input_records=10,
            output_records=3,
            duration_ms=100,
        )
    beat = status.heartbeat()
    assert beat.first_commit == Commit(batch_id=4, at_ms=4)
    assert beat.last_commit == Commit(batch_id=5, at_ms=5)
    assert (beat.metrics.batches, beat.metrics.input_records, beat.metrics.output_records) == (2, 20, 6)
    assert beat.metrics.counters == Counters(input_records=500, dead_letters=7), "the job's, not the driver's alone"
    assert beat.metrics.input_records_per_second == pytest.approx(100.0)
    assert beat.metrics.processed_records_per_second == pytest.approx(100.0)


def test_without_an_answer_the_newest_report_of_a_checkpoint_is_kept(running: Running) -> None:
    running.control.failure = ControlUnreachableError("away")
    running.reporter.report_checkpoint(report(1, CheckpointStatus.IN_PROGRESS))
    for number in (2, 3):
        running.reporter.report_checkpoint(report(number, CheckpointStatus.IN_PROGRESS))
        running.reporter.report_checkpoint(report(number, CheckpointStatus.COMPLETED))
    running.control.failure = None
    wait_until(lambda: len(running.control.reports) == 3, what="the reports")
    assert [(each.checkpoint_id, each.status) for each in running.control.reports] == [
        (1, CheckpointStatus.IN_PROGRESS),
        (2, CheckpointStatus.COMPLETED),
        (3, CheckpointStatus.COMPLETED),
    ]


def test_a_report_that_follows_while_the_one_before_is_in_transit_does_not_replace_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = running.control.report_checkpoint

    def completed_meanwhile(message: CheckpointReport) -> None:
        if message.status is CheckpointStatus.IN_PROGRESS:
            running.reporter.report_checkpoint(report(1, CheckpointStatus.COMPLETED))
        send(message)

    monkeypatch.setattr(running.control, "report_checkpoint", completed_meanwhile)
    running.reporter.report_checkpoint(report(1, CheckpointStatus.IN_PROGRESS))
    assert running.reporter.close(5)
    assert [each.status for each in running.control.reports] == [
        CheckpointStatus.IN_PROGRESS,
        CheckpointStatus.COMPLETED,
    ]


def test_of_too_many_reports_those_of_the_oldest_checkpoints_are_dropped_but_of_no_savepoint(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "REPORTS_MAX", 3)
    running.control.failure = ControlUnreachableError("away")
    for number in range(1, 7):
        running.reporter.report_checkpoint(report(number, is_savepoint=number == 2))
    running.control.failure = None
    wait_until(lambda: len(running.control.reports) == 3, what="the reports")
    assert [each.checkpoint_id for each in running.control.reports] == [1, 2, 6]


def test_a_driver_with_very_many_reports_sends_a_heartbeat_before_all_are_sent(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat after the last report would be too late: a silent driver is replaced, and its reports are lost."""
    running.control.failure = ControlUnreachableError("away")
    for number in range(1, 6):
        running.reporter.report_checkpoint(report(number))
    running.status.answer(CommandResult(command_id="savepoint", status="COMPLETED"))
    monkeypatch.setattr(reporter, "REPORTS_SECONDS", 0.0)
    before = len(running.control.heartbeats)
    running.control.failure = None
    wait_until(lambda: len(running.control.heartbeats) > before, what="a heartbeat")
    assert running.control.reports == []
    assert running.control.heartbeats[-1].results == [], "a result comes after the report of its savepoint"
    monkeypatch.undo()
    wait_until(lambda: len(running.control.reports) == 5, what="the reports")
    wait_until(lambda: running.control.heartbeats[-1].results, what="the result")


def test_all_that_an_answer_wants_is_passed_on_and_a_sleep_each_time() -> None:
    told: list[Any] = []
    running = Reporter(
        cast("Any", ScriptedControl()),
        DriverStatus(),
        lambda command: told.append(("command", command.id)),
        lambda _: None,
        lambda settings: told.append(("settings", settings.revision)),
        on_withdrawal=lambda name: told.append(("withdrawn", name)),
        on_diagnostics=lambda looks: told.append(("diagnostics", [look.id for look in looks])),
        on_sleep=lambda sleeps: told.append(("sleep", sleeps)),
    )
    commands = [Command(id=name, kind=CommandKind.RESCALE, is_withdrawn=name == "b") for name in ("a", "b", "a")]
    full = HeartbeatResponse(
        commands=commands,
        diagnostics=[DiagnosticCommand(id="d", kind=DiagnosticKind.THREAD_DUMP)],
        settings=LiveSettings(revision=4, spec=JobSpec(artifact_id="a")),
        sleeps=True,
    )
    running._pass_on(full)
    assert sorted(told) == [
        ("command", "a"),
        ("command", "b"),
        ("diagnostics", ["d"]),
        ("settings", 4),
        ("sleep", True),
        ("withdrawn", "b"),
    ]
    told.clear()
    running._pass_on(HeartbeatResponse())
    assert told == [("sleep", False)], "a driver that sleeps is woken"


def test_an_unreachable_control_plane_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, now_s = Running(), [100.0]
    monkeypatch.setattr(reporter, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    running.control.failure = ControlUnreachableError("no answer")
    logged = []
    for now_s[0] in (100.0, 130.0, 159.0, 160.0, 161.0):
        assert not running.reporter._exchange()
        logged.append(len(caplog.messages))
    assert logged == [1, 1, 1, 2, 2]
    assert caplog.messages[0] == "the control plane cannot be reached (no answer); the job continues, reports wait"


@pytest.mark.parametrize("state", list(DriverState))
def test_before_its_reports_have_arrived_a_driver_tells_neither_its_results_nor_its_sleep(state: DriverState) -> None:
    running = Running()
    running.status.enter(state)
    running.status.answer(CommandResult(command_id="c", status="COMPLETED"))
    running.control.report_failure = ControlUnreachableError("no answer")
    beat = reporter._before_reports(running.status.heartbeat())
    assert beat.results == []
    assert beat.state is (DriverState.RUNNING if state is DriverState.SLEEPING else state)
    assert beat == running.status.heartbeat().model_copy(update={"results": [], "state": beat.state})


@pytest.mark.parametrize("state", list(DriverState))
def test_a_driver_waits_for_calls_only_while_it_runs_and_nothing_is_wanted(state: DriverState) -> None:
    running = Running()
    running.status.enter(state)
    waits = running.reporter._is_unwanted
    assert running.reporter._exchange()
    assert waits.is_set() is (state in {DriverState.RUNNING, DriverState.SLEEPING})
    running.control.failure = ControlUnreachableError("no answer")
    assert not running.reporter._exchange()
    assert not waits.is_set(), "a control plane that does not answer cannot call"
    running.control.failure = AttemptOverError("over")
    assert running.reporter._exchange(), "nothing is left to be sent"
    assert len(running.over) == 1
    running.control.failure = AttemptUnknownError("of another database")
    assert not running.reporter._exchange()


def test_a_result_that_comes_while_a_heartbeat_is_sent_is_still_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    send = running.control.heartbeat

    def answer_meanwhile(beat: Heartbeat) -> HeartbeatResponse:
        if not running.control.heartbeats:
            running.status.answer(CommandResult(command_id="late", status="COMPLETED"))
        return send(beat)

    monkeypatch.setattr(running.control, "heartbeat", answer_meanwhile)
    assert not running.reporter._exchange()
    assert running.reporter._exchange()
    assert [[result.command_id for result in beat.results] for beat in running.control.heartbeats] == [[], ["late"]]

"""Sends the driver's reports, and receives the control plane's commands."""

from __future__ import annotations

import collections
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.vocabulary import DriverState

from ...protocol.messages import CheckpointReport
from ..errors import AttemptOverError, AttemptUnknownError, ControlError, ControlRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...protocol.messages import Command, DiagnosticCommand, Heartbeat, HeartbeatResponse, LiveSettings
    from .channel import ControlChannel
    from .driver_status import DriverStatus

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 0.25
QUIET_SECONDS = 9.0
"""Between two heartbeats of an idle driver: series have a value for each 10 seconds.

The control plane also measures silences of drivers from these heartbeats.
"""
WAIT_SECONDS = 50.0  # proxies end a request without an answer after a minute
_REFUSED_SECONDS = 60.0  # a control plane of an earlier version calls no drivers
_UNLOGGED_SECONDS = 60.0  # during an outage, one line per minute is logged
REPORTS_MAX = 5000
_LISTENING = frozenset({DriverState.RUNNING, DriverState.SLEEPING})
REPORTS_SECONDS = 5.0  # between two heartbeats: a driver that is silent for a minute is replaced


@dataclass(frozen=True, slots=True)
class Following:
    """The next attempt of a driver, and its token."""

    job_id: str
    attempt: int
    token: str = field(repr=False)


class Reporter:
    """A thread that sends heartbeats and checkpoint reports.

    It sends checkpoint reports in order, each until it has arrived. It sends a heartbeat when the status has changed,
    at most one per interval, and otherwise every nine seconds: a second thread waits until the control plane calls.
    While that thread has no connection, or a command has no result yet, a heartbeat is sent every interval.

    If the control plane does not answer, reports wait here and the batches continue.

    Args:
        channel: The connection to the control plane.
        status: The source of heartbeats.
        on_command: Called on this thread, once per command, in the order of arrival; must not block.
        on_attempt_over: Called when the control plane says that this attempt is no longer wanted.
        on_settings: Called when the control plane has new settings for the job; must not block.
        on_withdrawal: Called with the id of a command that the control plane withdraws.
        on_diagnostics: Called with the diagnostics that the control plane requests, again and again; must not block.
        on_sleep: Called with whether the driver shall sleep, again and again; must not block.
    """

    def __init__(
        self,
        channel: ControlChannel,
        status: DriverStatus,
        on_command: Callable[[Command], None],
        on_attempt_over: Callable[[AttemptOverError], None],
        on_settings: Callable[[LiveSettings], None] = lambda _: None,
        *,
        on_withdrawal: Callable[[str], None] = lambda _: None,
        on_diagnostics: Callable[[Sequence[DiagnosticCommand]], None] = lambda _: None,
        on_sleep: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._channel = channel
        self._status = status
        self._on_command = on_command
        self._on_attempt_over = on_attempt_over
        self._on_settings = on_settings
        self._on_withdrawal = on_withdrawal
        self._on_diagnostics = on_diagnostics
        self._on_sleep = on_sleep
        # The first report may be in transit. Reports after the next attempt are of that attempt.
        self._reports: collections.deque[CheckpointReport | Following] = collections.deque()
        self._lock = threading.Lock()
        self._speaks_as: int | None = None
        self._seen: set[str] = set()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._last_logged = float("-inf")
        self._delivered: Heartbeat | None = None
        self._delivered_at = float("-inf")
        self._listens = False
        self._is_unwanted = threading.Event()  # the control plane wanted nothing when it answered last
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._channel.can_call:
            self._listener.start()

    def report_checkpoint(self, report: CheckpointReport) -> None:
        """Sends a report as soon as possible, after earlier reports.

        Until the control plane answers, a checkpoint's newer report replaces its older report. Beyond `REPORTS_MAX`,
        the reports of the oldest checkpoints are dropped, as newer checkpoints have subsumed them; reports of
        savepoints are kept.
        """
        with self._lock:
            last = self._reports[-1] if len(self._reports) > 1 else None
            if isinstance(last, CheckpointReport) and last.checkpoint_id == report.checkpoint_id:
                self._reports[-1] = report
            else:
                self._reports.append(report)
            if len(self._reports) > REPORTS_MAX:
                self._forget_oldest()
        self._wake.set()

    def follow(self, following: Following) -> None:
        """Sends later messages for the next attempt.

        Reports that wait are sent before, for the attempt before. The status already has the next attempt's number.
        """
        with self._lock:
            self._reports.append(following)
        self._wake.set()

    @property
    def has_unsent_reports(self) -> bool:
        """Whether the control plane lacks reports of some checkpoints."""
        return bool(self._reports)

    def nudge(self) -> None:
        """Sends the next heartbeat now."""
        self._wake.set()

    def close(self, timeout_seconds: float) -> bool:
        """Sends the waiting reports and a last heartbeat, and ends the thread.

        Returns:
            Whether everything arrived in time.
        """
        deadline = time.monotonic() + timeout_seconds
        self._closing.set()
        self._wake.set()
        self._thread.join()
        while not (delivered := self._exchange()) and time.monotonic() < deadline:
            time.sleep(HEARTBEAT_INTERVAL_SECONDS)
        return delivered

    def _run(self) -> None:
        is_woken = True
        while not self._closing.is_set():
            if is_woken or self._is_due():
                self._exchange()
            is_woken = self._wake.wait(HEARTBEAT_INTERVAL_SECONDS)
            self._wake.clear()

    def _is_due(self) -> bool:
        is_called_if_wanted = self._listens and self._is_unwanted.is_set()
        is_old = time.monotonic() - self._delivered_at >= QUIET_SECONDS
        return not is_called_if_wanted or is_old or self._status.heartbeat() != self._delivered

    def _listen(self) -> None:
        """Waits for calls of the control plane, and answers with heartbeats.

        The first answer comes at once, and shows that the control plane can call.
        """
        while not self._closing.is_set():
            delivered = self._delivered
            if not self._is_unwanted.wait(HEARTBEAT_INTERVAL_SECONDS) or delivered is None or not delivered.revision:
                continue
            pause_seconds = HEARTBEAT_INTERVAL_SECONDS
            try:
                if self._channel.wait_for_call(delivered.revision, WAIT_SECONDS if self._listens else 0.0):
                    self._is_unwanted.clear()
                    self._wake.set()
                self._listens = True
            except AttemptUnknownError:  # the job's own control plane may answer later
                self._listens = False
            except ControlRefusedError:
                self._listens, pause_seconds = False, _REFUSED_SECONDS
            except ControlError:  # the next heartbeat shows it, too
                self._listens = False
            except Exception:
                if not self._closing.is_set():  # the channel is closed while this thread waits
                    raise
            self._closing.wait(pause_seconds)

    def _exchange(self) -> bool:
        """Sends everything once; returns whether all was sent."""
        self._is_unwanted.clear()
        try:
            all_sent = self._send_reports()
            heartbeat = self._status.heartbeat()
            if not self._speaks_for(heartbeat):
                return False
            if not all_sent:  # a command's result, and a sleep, come after the report of their snapshot
                heartbeat = _before_reports(heartbeat)
            response = self._channel.heartbeat(heartbeat)
        except AttemptOverError as over:
            self._on_attempt_over(over)
            return True
        except ControlError as error:
            self._log_sparsely(error)
            return False
        self._delivered, self._delivered_at = heartbeat, time.monotonic()
        if heartbeat.state in _LISTENING and not _wants_more(response):
            self._is_unwanted.set()
        self._status.acknowledge(heartbeat.results, (command.id for command in response.commands))
        self._pass_on(response)
        return all_sent and not self._status.heartbeat().results

    def _pass_on(self, response: HeartbeatResponse) -> None:
        """Passes on what the control plane wants from the driver."""
        if response.settings is not None:
            self._on_settings(response.settings)
        self._on_sleep(response.sleeps)
        if response.diagnostics:
            self._on_diagnostics(response.diagnostics)
        for command in response.commands:
            if command.is_withdrawn:
                self._on_withdrawal(command.id)
            if command.id not in self._seen:
                self._seen.add(command.id)
                self._on_command(command)

    def _speaks_for(self, heartbeat: Heartbeat) -> bool:
        """Returns whether the channel speaks for the heartbeat's attempt.

        Reports of the attempt before are sent first.
        """
        self._speaks_as = self._speaks_as or heartbeat.attempt
        return heartbeat.attempt in {None, self._speaks_as}

    def _send_reports(self) -> bool:
        """Sends waiting reports for a limited time; returns whether all are sent.

        With a longer time the driver would seem silent.
        """
        until = time.monotonic() + REPORTS_SECONDS
        while self._reports and time.monotonic() < until:
            self._send_first()
        if self._reports:
            self._wake.set()
        return not self._reports

    def _forget_oldest(self) -> None:
        for place in range(1, len(self._reports)):
            report = self._reports[place]
            if isinstance(report, CheckpointReport) and not report.is_savepoint:
                logger.warning("the report of checkpoint %d is dropped", report.checkpoint_id)
                del self._reports[place]
                return

    def _send_first(self) -> None:
        first = self._reports[0]
        if isinstance(first, Following):
            self._channel.speak_as(first.job_id, first.attempt, first.token)
            self._speaks_as = first.attempt
        else:
            self._send_report(first)
        with self._lock:
            self._reports.popleft()

    def _send_report(self, report: CheckpointReport) -> None:
        try:
            self._channel.report_checkpoint(report)
        except AttemptUnknownError:  # the job's own control plane may answer later
            raise
        except ControlRefusedError:
            # The control plane would refuse the report again, and the reports after it would wait.
            logger.exception("the report of checkpoint %d was refused", report.checkpoint_id)

    def _log_sparsely(self, error: ControlError) -> None:
        now = time.monotonic()
        if now - self._last_logged >= _UNLOGGED_SECONDS:
            self._last_logged = now
            logger.warning("the control plane cannot be reached (%s); the job continues, reports wait", error)


def _before_reports(heartbeat: Heartbeat) -> Heartbeat:
    """Returns what may be told before the reports of all checkpoints."""
    is_asleep = heartbeat.state is DriverState.SLEEPING
    return heartbeat.model_copy(update={"results": [], "state": DriverState.RUNNING if is_asleep else heartbeat.state})


def _wants_more(response: HeartbeatResponse) -> bool:
    """Returns whether the control plane waits for something that the driver does."""
    return bool(response.commands or response.diagnostics) or response.settings is not None

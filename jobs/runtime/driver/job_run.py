"""The run of one assignment, from script to last report."""

from __future__ import annotations

import contextlib
import logging
import queue
from dataclasses import replace
from typing import TYPE_CHECKING

from keyscale.state.doors.objects import open_store
from keyscale.vocabulary import CommandKind, DriverState

from ...errors import SinkUnavailableError
from ...graph.described_graph import describe
from ...operators.failures import with_script_lines
from ...protocol.messages import CommandResult
from ...secret import Secret, without_secrets
from ...streams.environment import StreamEnvironment
from ..batch.record_sampling import RecordSampling
from ..control.driver_status import DriverStatus
from ..control.followed_settings import FollowedSettings
from ..control.reporter import Reporter
from ..diagnostics.diagnostic_runner import DiagnosticRunner
from ..diagnostics.means import means
from ..errors import AttemptOverError, JobNotDeclaredError, RunEndedError
from ..preparation.artifact import LocalArtifact, require_libraries
from ..preparation.warm_up import start_workers
from ..retries import Retries
from .execution import Execution, RunContext
from .host_metrics import without_spark
from .live_rescale import carry_out, return_context
from .restarts import Restarts, is_session_good
from .run_outcome import ASLEEP, RunOutcome, RunOutcomeBox, log_failure
from .sleep import Sleep
from .target_check import TargetCheck

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.state.doors.objects import ObjectStore

    from ...graph.topology import Topology
    from ...protocol.messages import Assignment, Command
    from ...protocol.specification import RestartStrategy, SecretReference
    from ..control.channel import ControlChannel
    from .attachment import Attachment


def forget_ends(commands: queue.SimpleQueue[Command | None]) -> None:
    """Removes the markers that ended the thread for commands.

    The commands stay, in order.
    """
    left = []
    with contextlib.suppress(queue.Empty):
        while True:
            left.append(commands.get_nowait())
    for command in left:
        if command is not None:
            commands.put(command)


logger = logging.getLogger(__name__)

LAST_REPORT_SECONDS = 60.0  # without the last report, the control plane reads the store


class JobRun:
    """Runs the job of one assignment.

    Args:
        spark: The driver's session.
        channel: The connection to the control plane.
        assignment: The job and its settings.
        work_dir: A directory for this process alone.
        local_root: Directory of local state; the same path on every host, shared by all attempts there.
        libraries: SHA-256s of the libraries that the driver was started with.
        attachment: Gives a standby its assignment; `assignment` is then what the standby was told before.
        workers: The name by which the Python workers offer their stacks.
        leave_spark: Ends Spark and its JVM, but not this process; None: the driver cannot sleep.
    """

    def __init__(
        self,
        spark: SparkSession,
        channel: ControlChannel,
        assignment: Assignment,
        work_dir: Path,
        local_root: Path,
        *,
        libraries: frozenset[str] = frozenset(),
        attachment: Attachment | None = None,
        workers: str = "",
        leave_spark: Callable[[], None] | None = None,
    ) -> None:
        self._spark = spark
        self._channel = channel
        self._assignment = assignment
        self._work_dir = work_dir
        self._local_root = local_root
        self._libraries = libraries
        self._attachment = attachment
        self._status = DriverStatus()
        self._outcome_box = RunOutcomeBox()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._settings = FollowedSettings(assignment, self._status)
        self._withdrawn: set[str] = set()
        self._sampling = RecordSampling()
        self._sleep = Sleep(leave_spark)
        self._diagnostics = DiagnosticRunner(channel, means(spark, workers, self._sampling), without_secrets)
        self._reporter = Reporter(
            channel,
            self._status,
            self._on_command,
            self._on_attempt_over,
            self._settings.follow,
            on_withdrawal=self._withdrawn.add,
            on_diagnostics=self._diagnostics.request,
            on_sleep=self._sleep.want,
        )
        self._topology_given = False

    def run(self) -> DriverState:
        """Runs until the job ends; returns its terminal state.

        The state has been reported, if possible.
        """
        if self._attachment is None:
            self._status.enter(DriverState.RESTORING)
            start_workers(self._spark, self._assignment.spec.parallelism)
        else:
            self._status.prepares()  # the warm-up starts the workers
        self._reporter.start()
        self._diagnostics.start()
        try:
            self._run_script()
        except Exception as failure:  # noqa: BLE001 - any exception fails the run, unless it has ended already
            # An error that the running job raises at `env.execute()` is not about the script's lines.
            self._outcome_box.give(RunOutcome.by(failure if self._topology_given else with_script_lines(failure)))
        outcome = self._outcome_box.outcome or RunOutcome.by(JobNotDeclaredError("the job's script declared no job"))
        if outcome.error is not None:
            log_failure(f"the run ends {outcome.state}", outcome.error)
        self._status.enter(outcome.state, outcome.failure)
        if not self._reporter.close(LAST_REPORT_SECONDS):
            logger.warning("the control plane did not receive the last report")
        self._diagnostics.close()
        return outcome.state

    def _run_script(self) -> None:
        directory = self._work_dir / "artifact"
        directory.mkdir(parents=True, exist_ok=True)
        assignment = self._assignment
        require_libraries(assignment.libraries, self._libraries)
        artifact = LocalArtifact.fetch(
            self._channel, assignment.artifact_filename, assignment.artifact_sha256, directory
        )
        environment = StreamEnvironment(
            self._spark,
            {name: _value_of(given) for name, given in assignment.spec.parameters.items()},
            lambda topology: self._run_topology(topology, environment.restart),
            skip_lost_records=assignment.skip_lost_records,
        )
        with environment.provided():
            artifact.run(self._spark)

    def _run_topology(self, topology: Topology, scripts_restart: RestartStrategy | None) -> None:
        """Runs the job for the script's `env.execute()`.

        Raises the error that ended the job, if any.
        """
        if self._topology_given:
            raise RunEndedError("a script can execute only one job")
        self._topology_given = True
        self._status.declared(describe(topology))
        store = open_store(self._assignment.store_url)
        try:
            self._check_targets(topology, store)
            if self._outcome_box.outcome is None and self._attachment is not None:
                self._rehearse(topology, store)
                self._await_assignment(self._attachment)
        except AttemptOverError as over:
            self._on_attempt_over(over)
        except Exception as failure:  # noqa: BLE001 - any exception fails the run
            self._outcome_box.give(RunOutcome.by(failure))
        if self._outcome_box.outcome is None:
            self._run_assigned(topology, store, scripts_restart)
        outcome = self._outcome_box.outcome
        if outcome is ASLEEP:
            outcome = self._sleep.sleep(self._outcome_box, self._fall_asleep)
            self._status.enter(outcome.state, outcome.failure)
            raise RunEndedError("the run has slept: Spark has ended")
        if outcome is not None:
            # Reported before the script's last lines run, so that the next attempt need not wait for them.
            self._status.enter(outcome.state, outcome.failure)
            self._reporter.nudge()
            if outcome.error is not None:
                raise outcome.error

    def _check_targets(self, topology: Topology, store: ObjectStore) -> None:
        limit_ms = self._assignment.spec.checkpoints.store_outage_max_ms
        retries = Retries(limit_ms, lambda: self._outcome_box.outcome is not None)
        sink_retries = replace(retries, awaited=SinkUnavailableError)
        TargetCheck(topology, self._assignment, store, self._local_root, retries, sink_retries).run()

    def _rehearse(self, topology: Topology, store: ObjectStore) -> None:
        """Rehearses the job's first batch while the old driver works."""
        try:
            Execution(self._context(store), topology).rehearse_ahead()
        except Exception:
            logger.warning("the rehearsal of the first batch failed", exc_info=True)

    def _await_assignment(self, attachment: Attachment) -> None:
        """Waits for the assignment of a standby.

        The standby is ready once Spark is warm, too.

        Raises:
            AttemptOverError: The change has been abandoned.
        """
        assignment = attachment.assignment(self._status.ready)
        if assignment is None:
            raise AttemptOverError("the change was given up before it stopped the old driver")
        self._assignment = assignment
        self._settings.assigned(assignment)
        self._status.enter(DriverState.RESTORING)
        self._reporter.nudge()

    def _context(self, store: ObjectStore) -> RunContext:
        return RunContext(
            spark=self._spark,
            assignment=self._assignment,
            store=store,
            status=self._status,
            settings=self._settings,
            outcome_box=self._outcome_box,
            commands=self._commands,
            reporter=self._reporter,
            work_dir=self._work_dir,
            local_root=self._local_root,
            rescale=carry_out,
            withdrawn=self._withdrawn,
            sampling=self._sampling,
            sleep=self._sleep,
        )

    def _run_assigned(self, topology: Topology, store: ObjectStore, scripts_restart: RestartStrategy | None) -> None:
        settings = self._settings
        restarts = Restarts(
            lambda: settings.newest.spec.restart or scripts_restart, self._assignment.failures, self._status
        )
        settings.on_change = restarts.show
        self._execute(self._context(store), topology, restarts)

    def _execute(self, context: RunContext, topology: Topology, restarts: Restarts) -> None:
        """Executes the job, with restarts and live rescales, until it ends.

        The restart strategy limits the restarts.
        """
        execution: Execution | None = Execution(context, topology)
        while execution is not None:
            try:
                execution.run()
            except Exception as failure:  # noqa: BLE001 - any exception fails the run
                self._outcome_box.give(RunOutcome.by(failure))
            execution = self._next_execution(execution, topology, restarts)
            forget_ends(self._commands)

    def _next_execution(self, execution: Execution, topology: Topology, restarts: Restarts) -> Execution | None:
        """Returns the execution that continues the job, if any."""
        if execution.successor is not None:
            return execution.successor if self._outcome_box.reopen() is None else None
        outcome = self._outcome_box.outcome
        failed = outcome is not None and outcome.state is DriverState.FAILED
        if not failed or not execution.has_opened or not is_session_good(self._spark):
            return None
        back = return_context(execution)
        if back is not None and outcome is not None and outcome.error is not None:
            log_failure("the first batch of a live rescale failed; the job goes back", outcome.error)
            back = replace(back, failure=outcome.failure)
            return Execution(back, topology) if self._outcome_box.reopen() is None else None
        if not restarts.wait_to_restart(self._outcome_box):
            return None
        return Execution(execution.context, topology, execution)

    def _on_command(self, command: Command) -> None:
        if command.kind is CommandKind.CANCEL:
            # Does not wait for a checkpoint or the running batch.
            self._status.answer(CommandResult(command_id=command.id, status="COMPLETED"))
            self._outcome_box.give(RunOutcome(DriverState.STOPPED))
            with contextlib.suppress(Exception):  # Spark may be gone
                self._spark.sparkContext.cancelAllJobs()
        else:
            self._commands.put(command)

    def _fall_asleep(self) -> None:
        self._status.host_measured(without_spark())
        self._status.enter(DriverState.SLEEPING)
        self._reporter.nudge()

    def _on_attempt_over(self, over: AttemptOverError) -> None:
        self._outcome_box.give(RunOutcome(DriverState.FENCED, over))


def _value_of(parameter: str | SecretReference) -> str:
    return parameter if isinstance(parameter, str) else Secret(parameter.secret).reveal()

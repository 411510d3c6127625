"""One assignment, from the user's script to the last report."""

from __future__ import annotations

import contextlib
import logging
import queue
from typing import TYPE_CHECKING

from jobs.environment import StreamEnvironment
from jobs.runtime.artifact import Artifact
from jobs.runtime.ending import Ending, EndingBox
from jobs.runtime.errors import JobNotDeclaredError, RunEndedError
from jobs.runtime.execution import Execution, RunContext
from jobs.runtime.reporter import Reporter
from jobs.runtime.restarts import Restarts, is_session_good
from jobs.runtime.status import DriverStatus
from jobs.runtime.warmth import start_workers
from jobs.wire import CommandKind, CommandResult, DriverState
from state.objects import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jobs.runtime.control import ControlChannel
    from jobs.runtime.errors import AttemptOverError
    from jobs.topology import Topology
    from jobs.wire import Assignment, Command, RestartStrategy


def forget_ends(commands: queue.SimpleQueue[Command | None]) -> None:
    """Remove what ended the thread that took commands; the commands stay, in order."""
    left = []
    with contextlib.suppress(queue.Empty):
        while True:
            left.append(commands.get_nowait())
    for command in left:
        if command is not None:
            commands.put(command)


_log = logging.getLogger(__name__)

FAREWELL_SECONDS = 60.0  # how long the last report is tried; without it the control plane finds out from the store


class JobRun:
    """Runs the job of one assignment.

    Args:
        spark: The driver's session.
        channel: The line to the control plane.
        assignment: What to run.
        work_dir: Of this process only.
        local_root: For local state; shared by the attempts on this host, the same path on every host.
    """

    def __init__(
        self, spark: SparkSession, channel: ControlChannel, assignment: Assignment, work_dir: Path, local_root: Path
    ) -> None:
        self._spark = spark
        self._channel = channel
        self._assignment = assignment
        self._work_dir = work_dir
        self._local_root = local_root
        self._status = DriverStatus()
        self._endings = EndingBox()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._reporter = Reporter(channel, self._status, self._on_command, self._on_attempt_over)
        self._topology_given = False

    def run(self) -> DriverState:
        """Run until the job ends; returns its terminal state, which has been reported where that was possible."""
        self._status.enter(DriverState.RESTORING)
        self._reporter.start()
        start_workers(self._spark, self._assignment.parallelism)
        try:
            self._run_script()
        except Exception as failure:  # noqa: BLE001 - whatever it was, the run has failed; once ended, an ending stays
            self._endings.give(Ending.by(failure))
        ending = self._endings.ending or Ending.by(JobNotDeclaredError("the job's script declared no job"))
        if ending.error is not None:
            _log.error("the run ends %s", ending.state, exc_info=ending.error)
        self._status.enter(ending.state, ending.failure)
        if not self._reporter.close(FAREWELL_SECONDS):
            _log.warning("the control plane did not take the last report")
        return ending.state

    def _run_script(self) -> None:
        directory = self._work_dir / "artifact"
        directory.mkdir(parents=True, exist_ok=True)
        assignment = self._assignment
        artifact = Artifact.fetch(self._channel, assignment.artifact_filename, assignment.artifact_sha256, directory)
        environment = StreamEnvironment(
            self._spark,
            assignment.parameters,
            lambda topology: self._run_topology(topology, assignment.restart or environment.restart),
        )
        with environment.provided():
            artifact.run(self._spark)

    def _run_topology(self, topology: Topology, restart: RestartStrategy | None) -> None:
        """What the script's `env.execute()` does: returns when the job has ended, and raises what ended it."""
        if self._topology_given:
            message = "a script executes one job"
            raise RunEndedError(message)
        self._topology_given = True
        context = RunContext(
            spark=self._spark,
            assignment=self._assignment,
            store=open_store(self._assignment.store_url),
            status=self._status,
            endings=self._endings,
            commands=self._commands,
            reporter=self._reporter,
            work_dir=self._work_dir,
            local_root=self._local_root,
        )
        self._execute(context, topology, Restarts(restart, self._assignment.failures, self._status))
        ending = self._endings.ending
        if ending is not None:
            # Told before the script's last lines run: the next attempt need not wait for them.
            self._status.enter(ending.state, ending.failure)
            self._reporter.nudge()
            if ending.error is not None:
                raise ending.error

    def _execute(self, context: RunContext, topology: Topology, restarts: Restarts) -> None:
        """Execute the job until it ends, or its restart strategy gives it up."""
        execution: Execution | None = None
        while True:
            execution = Execution(context, topology, execution)
            try:
                execution.run()
            except Exception as failure:  # noqa: BLE001 - whatever it was, this run has failed
                self._endings.give(Ending.by(failure))
            failed = self._endings.ending is not None and self._endings.ending.state is DriverState.FAILED
            good = failed and execution.has_opened and is_session_good(self._spark)
            if not good or not restarts.wait_to_restart(self._endings):
                return
            forget_ends(self._commands)

    def _on_command(self, command: Command) -> None:
        if command.kind is CommandKind.CANCEL:
            # Waits neither for a checkpoint nor for the batch that runs.
            self._status.answer(CommandResult(command_id=command.id, status="COMPLETED"))
            self._endings.give(Ending(DriverState.STOPPED))
            with contextlib.suppress(Exception):  # Spark may be gone, which is an end as well
                self._spark.sparkContext.cancelAllJobs()
        else:
            self._commands.put(command)

    def _on_attempt_over(self, over: AttemptOverError) -> None:
        self._endings.give(Ending(DriverState.FENCED, over))

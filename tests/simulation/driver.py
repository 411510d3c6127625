"""A driver: the product's own run of an attempt, in a process of the world, with Spark played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from keyscale.jobs.graph.described_graph import describe
from keyscale.jobs.protocol.messages import AttachRequest, Heartbeat
from keyscale.jobs.runtime.driver.job_run import LAST_REPORT_SECONDS, JobRun
from keyscale.jobs.runtime.driver.main import EXIT_FAILED, EXIT_FENCED, EXIT_OK
from keyscale.jobs.runtime.errors import AttemptOverError, ControlError, ControlRefusedError
from keyscale.vocabulary import DriverState
from tests.simulation.job import Count, FailOnFirstRecord, topology_of
from tests.simulation.network import PlayedChannel
from tests.simulation.spark import PlayedQuery, PlayedSession
from tests.simulation.timed_job import OUT_OF_ORDER_MS, TimedCount
from tests.simulation.world import Process

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.protocol.messages import Assignment
    from keyscale.jobs.runtime.driver.execution import Execution
    from keyscale.jobs.runtime.driver.restarts import Restarts
    from tests.simulation.file_sink import FileSinkModel
    from tests.simulation.kafka_sink import KafkaSinkModel
    from tests.simulation.network import Network
    from tests.simulation.postgres_sink import PostgresSinkModel
    from tests.simulation.sink_model import SinkModel
    from tests.simulation.spark import Source
    from tests.simulation.world import Host, World

ATTACH_RETRY_SECONDS = 2.0
START_SECONDS = 3.0  # Spark's


class PlayedRun(JobRun):
    """A `JobRun` whose script declares the one job of all histories."""

    driver: Driver

    def _run_script(self) -> None:
        driver = self.driver
        status = self._status
        query = PlayedQuery(driver.world, driver.source, status.waits_for_input)
        sink: Any = driver.sink.sink_of(driver.process)
        if self._assignment.spec.parameters.get("fails") == "yes":
            topology = topology_of(sink, query, FailOnFirstRecord())
        elif driver.is_timed:
            topology = topology_of(sink, query, TimedCount(), out_of_order_ms=OUT_OF_ORDER_MS)
        else:
            topology = topology_of(sink, query, Count())
        describe(topology)
        self._run_topology(topology, None)

    def _next_execution(self, execution: Execution, topology: Topology, restarts: Restarts) -> Execution | None:
        following = super()._next_execution(execution, topology, restarts)
        if following is not None:
            self.driver.assignment = following.context.assignment
        return following


class Driver:
    """A driver's process.

    Args:
        world: The world.
        host: Where it runs.
        job_id: Its job.
        attempt: Its attempt.
        network: Its links.
        source: What it reads.
        sink: What it writes to.
        disk: The host's directory.
        parallelism: What it is to run at, if that is known.
        is_timed: Whether its job has timers and operator state.
    """

    def __init__(
        self,
        world: World,
        host: Host,
        job_id: str,
        attempt: int,
        *,
        network: Network,
        source: Source,
        sink: SinkModel | FileSinkModel | KafkaSinkModel | PostgresSinkModel,
        disk: Path,
        parallelism: int = 0,
        is_timed: bool = False,
    ) -> None:
        self.world, self.source, self.sink = world, source, sink
        self.job_id, self.number, self.parallelism, self.is_timed = job_id, attempt, parallelism, is_timed
        self.process = Process(f"driver-{attempt}", host)
        self._channel = PlayedChannel(network, self.process, job_id, attempt)
        self._disk = disk
        self.state: DriverState | None = None
        self.assignment: Assignment | None = None
        self.failure = ""
        """The code of the error that it ended with."""
        world.spawn(self.process, "main", self._main)

    @property
    def attempt(self) -> int:
        """The attempt that it speaks for, which a live rescale changes."""
        return self._channel.attempt

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive

    def _main(self) -> None:
        world = self.world
        world.sleep(START_SECONDS * (0.5 + world.chance.random()))
        try:
            assignment = self._wait_for_assignment()
        except AttemptOverError:
            self._exit(EXIT_FENCED)
            return
        except ControlRefusedError:
            self._exit(EXIT_FAILED)
            return
        if assignment is None:
            self._exit(EXIT_OK)
            return
        self.assignment = assignment
        world.trace.note(
            world,
            f"runs at parallelism {assignment.spec.parallelism},"
            f" {assignment.restore_mode} from {assignment.restore_from}",
        )
        work = self._disk / f"work-{self.job_id}-{self.number}"
        run = PlayedRun(
            cast("Any", PlayedSession()), cast("Any", self._channel), assignment, work, self._disk / "state"
        )
        run.driver = self
        self.state = run.run()
        self._note_end(run)
        world.trace.note(world, f"ends {self.state}: {run._outcome_box.outcome}")
        self._exit({DriverState.FAILED: EXIT_FAILED, DriverState.FENCED: EXIT_FENCED}.get(self.state, EXIT_OK))

    def _wait_for_assignment(self) -> Assignment | None:
        request = AttachRequest(pid=self.number, host=self.process.host.name, spark_ui_url=None)
        while True:
            try:
                answer = self._channel.attach(request)
            except (AttemptOverError, ControlRefusedError):
                raise
            except ControlError:
                self.world.sleep(ATTACH_RETRY_SECONDS)
                continue
            if answer.decision == "exit":
                return None
            if answer.decision == "run" and answer.assignment is not None:
                return answer.assignment
            try:
                self._channel.heartbeat(Heartbeat(state=DriverState.STANDBY))
            except (AttemptOverError, ControlRefusedError):
                raise
            except ControlError:
                pass
            self.world.sleep(1.0)

    def _note_end(self, run: PlayedRun) -> None:
        outcome = run._outcome_box.outcome
        code = self.failure = outcome.error.code if outcome is not None and outcome.error is not None else ""
        ends = {
            "STATE_STORE_UNAVAILABLE": "a driver failed as the store did not answer",
            "STATE_DISK_FULL": "a driver failed as its disk was full",
            "JOB_RESTORE_REFUSED": "a driver was refused a restore",
        }
        if self.state is DriverState.FENCED:
            was_open = run._status.heartbeat().first_commit is not None
            self.world.reach("a driver was fenced" if was_open else "a driver was fenced while it opened its attempt")
        elif code in ends:
            self.world.reach(ends[code])
        elif "SINK" in code:
            self.world.reach("a driver failed in its sink")
        elif self.state is DriverState.FINISHED:
            self.world.reach("a driver drained its input")
        elif self.state is DriverState.STOPPED:
            self.world.reach("a driver stopped with a savepoint")

    def _exit(self, code: int) -> None:
        self.process.exit(code)


__all__ = ["LAST_REPORT_SECONDS", "Driver", "PlayedRun"]

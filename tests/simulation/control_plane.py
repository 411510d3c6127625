"""Control planes: the product's services, reports and lifecycle in processes of the world, with launchers played."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.access.principal import Principal
from keyscale.api.drivers import drivers
from keyscale.api.errors import AttemptOverError, LeadershipLostError, StoreUnavailableError
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.lifecycle.job_worker import JobWorker
from keyscale.api.lifecycle.leadership import Leadership
from keyscale.api.lifecycle.reconciler import JobWorkers
from keyscale.api.maintenance.object_removal import ObjectRemoval
from keyscale.api.maintenance.savepoint_release import SavepointRelease
from keyscale.api.maintenance.snapshot_removal import SnapshotRemoval
from keyscale.db.repositories import attempts, job_signs, leaders
from keyscale.errors import KeyscaleError
from keyscale.vocabulary import AttemptStage, Role
from tests.simulation.network import AttemptEndedError, MessageRefusedError
from tests.simulation.world import Process, ProcessEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.api.control_plane.context import Context
    from keyscale.db.models import Attempt, Job, Revision
    from keyscale.jobs.protocol.messages import (
        AttachRequest,
        AttachResponse,
        CheckpointReport,
        Heartbeat,
        HeartbeatResponse,
    )
    from tests.simulation.driver import Driver
    from tests.simulation.world import Host, World

ROUND_SECONDS = 6.0
PAUSE_SECONDS = 0.2
ELECTION_SECONDS = 1.0
IDLE_SECONDS = 15.0
"""PostgreSQL ends the connection of a silent leader after this time (`leadership.IDLE_TIMEOUT_S`)."""
USER = Principal("simulation", "simulation", Role.ADMIN)
TIMEOUTS = Timeouts(restore_ms=120_000, verify_ms=90_000)


@dataclass(slots=True)
class Election:
    """The advisory lock of PostgreSQL, which ends with its holder's connection.

    Attributes:
        world: The world.
        holder: The process with the lock.
        leader: The process that has begun the last epoch.
        silent_since: When the holder was last heard of.
    """

    world: World
    holder: Process | None = None
    leader: Process | None = None
    silent_since: float = 0.0

    def take(self, process: Process) -> bool:
        holder = self.holder
        is_silent = holder is not None and holder.is_frozen and self.world.now - self.silent_since > IDLE_SECONDS
        if holder is None or not holder.is_alive or is_silent:
            if is_silent:
                self.world.reach("a leader lost its lock while it was stopped")
            self.holder = process
        return self.holder is process

    def beat(self) -> None:
        self.silent_since = self.world.now


@dataclass(slots=True)
class Launched:
    """The drivers that launchers have started, on all hosts.

    Attributes:
        start: Starts a driver of a job's attempt on a host.
        drivers: By job and attempt, with the host that its launcher is on.
    """

    start: Callable[[str, int, str], Driver]
    drivers: dict[tuple[str, int], tuple[str, Driver]]


class PlayedLauncher:
    """In the place of the launcher of a host.

    Args:
        world: The world.
        host: The launcher's host.
        launched: All drivers.
    """

    def __init__(self, world: World, host: Host, launched: Launched) -> None:
        self._world, self._host, self._launched = world, host, launched
        self.place = self.host = host.name

    def inspect(self, attempt: Attempt) -> Seen:
        if attempt.launched_on is None:
            return Seen(ProcessState.UNLAUNCHED)
        if attempt.launched_on != self.place:
            return Seen(ProcessState.UNKNOWN)
        place, driver = self._launched.drivers.get((attempt.job_id, attempt.run_number), ("", None))
        if driver is None or place != self.place:
            return Seen(ProcessState.UNLAUNCHED)
        process = driver.process
        if not process.is_alive:
            return Seen(ProcessState.DEAD, process.exit_code)
        return Seen(ProcessState.SUSPENDED if process.is_frozen else ProcessState.ALIVE)

    def prepare(self, job_id: str, attempt: int) -> str:
        return f"{job_id}-{attempt}"

    def launch(self, job: Job, _revision: Revision, attempt: Attempt, *_: object) -> None:
        self._require_alive()
        key = job.id, attempt.number
        if key not in self._launched.drivers:
            self._launched.drivers[key] = self.place, self._launched.start(job.id, attempt.number, self.place)
        else:
            self._world.reach("a driver was launched a second time")

    def keep_record(self, _job: Job, _record: object) -> None:
        self._require_alive()

    def kill(self, job_id: str, attempt: int) -> None:
        self._require_alive()
        place, driver = self._launched.drivers.get((job_id, attempt), ("", None))
        if driver is not None and place == self.place:
            driver.process.kill()

    def clean_up(self, job_id: str, attempt: int) -> None:
        self.kill(job_id, attempt)

    def forget(self, job_id: str) -> None:
        self._require_alive()
        for (known, _), (place, driver) in self._launched.drivers.items():
            if known == job_id and place == self.place:
                driver.process.kill()

    def secrets_of(self, *_: object) -> dict[str, str]:
        return {}

    def _require_alive(self) -> None:
        self._world.moment("launcher.acting")
        if self._world.is_over or not self._world.process.is_alive:
            raise ProcessEndedError


class PlayedControlPlane:
    """A process with a reconciler that stands for election, and with the answers to drivers.

    Args:
        world: The world.
        host: Where it runs.
        context: The parts of a control plane, which all share.
        election: The lock.
        launched: All drivers.
        name: Its name in the trace.
    """

    def __init__(  # noqa: PLR0917 - its parts
        self, world: World, host: Host, context: Context, election: Election, launched: Launched, name: str
    ) -> None:
        self.world = world
        self.process = Process(name, host)
        launcher = PlayedLauncher(world, host, launched)
        self.context = replace(context, launcher=cast("Any", launcher))
        self._launcher = launcher
        self._election = election
        self.quarantines: dict[str, Any] = {}
        self.round_seconds = ROUND_SECONDS
        world.spawn(self.process, "reconciler", self._run)

    # Answers to drivers

    def attach(self, job_id: str, attempt: int, message: AttachRequest) -> AttachResponse:
        return self._answered(job_id, attempt, lambda identity: drivers.attach(self.context, identity, message))

    def heartbeat(self, job_id: str, attempt: int, message: Heartbeat) -> HeartbeatResponse:
        return self._answered(job_id, attempt, lambda identity: drivers.heartbeat(self.context, identity, message))

    def report_checkpoint(self, job_id: str, attempt: int, message: CheckpointReport) -> None:
        return self._answered(
            job_id, attempt, lambda identity: drivers.report_checkpoint(self.context, identity, message)
        )

    def _answered(self, job_id: str, attempt: int, answer: Callable[[DriverIdentity], Any]) -> Any:
        with self.context.sessions() as session:
            found = attempts.find(session, job_id, attempt)
        if found is None:
            raise MessageRefusedError("no attempt has this token")
        try:
            return answer(DriverIdentity(job_id, attempt, found.stage is AttemptStage.ENDED))
        except AttemptOverError as error:
            raise AttemptEndedError(str(error)) from error
        except StoreUnavailableError as error:
            raise OSError(str(error)) from error
        except KeyscaleError as error:
            self.world.trace.note(self.world, f"refused a message of attempt {attempt}: {error.code}: {error}")
            raise MessageRefusedError(str(error)) from error

    # The reconciler

    def _run(self) -> None:
        while True:
            try:
                self._stand_and_lead()
            except LeadershipLostError:
                self.world.reach("a leader found that another one leads")
                if self._election.holder is self.process:
                    self._election.holder = None
            self.world.sleep(ELECTION_SECONDS)

    def _stand_and_lead(self) -> None:
        if not self._election.take(self.process):
            return
        with self.context.sessions.begin() as session:
            epoch = leaders.begin_epoch(session, self.process.name)
        self._election.leader = self.process
        self.world.trace.note(self.world, "leads")
        leadership = Leadership(self.context.sessions, epoch)
        worker = JobWorker(
            leadership=leadership, launcher=cast("Any", self._launcher), store=self.context.store, timeouts=TIMEOUTS
        )
        served = JobWorkers(worker, leadership, TIMEOUTS)
        self.quarantines = served._quarantines
        removal = ObjectRemoval(self.context.sessions, self.context.pulse)
        release = SavepointRelease(self.context.sessions, self.context.pulse, self.context.store)
        snapshots = SnapshotRemoval(self.context.sessions, self.context.pulse)
        while True:
            self._election.beat()
            with leadership.transaction() as session:
                signs = job_signs.to_reconcile(session)
            served.serve(signs, frozenset())
            removal.work(leadership)
            release.run(leadership)
            snapshots.work(leadership)
            self.context.wakeup.wait(self.round_seconds)
            self.world.sleep(PAUSE_SECONDS)

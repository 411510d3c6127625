"""Stand-ins for drivers, their commit log and their store, so that a change of a job takes no time.

The control plane's steps, its database and its answers to drivers are the real ones. A stand-in takes one action at
each turn: it attaches, opens its attempt, commits a batch, publishes a savepoint, reports it, opens the next attempt
itself, ends. At each action, and at each moment of the control plane's steps, something may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.drivers import drivers
from keyscale.api.errors import AttemptOverError
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.store_check import PublishedSavepoint
from keyscale.clock import now_ms
from keyscale.db.repositories import attempts
from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    CommandResult,
    Commit,
    DriverMetrics,
    Failure,
    Heartbeat,
    LiveRescale,
    ReservedAttempt,
)
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.layout import Layout, location_of
from keyscale.state.objects.opening import canonical_url
from keyscale.vocabulary import AttemptStage, CommandKind, DriverState, RescalePhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.api.control_plane.context import Context
    from keyscale.db.models import Attempt
    from keyscale.jobs.protocol.messages import Assignment, Command

SLOTS = 8
_RAISED = Failure(code="JOB_FUNCTION_FAILED", message="it raises")


class DriverDiedError(Exception):
    """A stand-in was killed in the middle of its turn."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The entry that opens an attempt."""

    attempt: int
    revision: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The entry of a batch."""

    attempt: int
    revision: int


@dataclass(slots=True)
class World:
    """Everything that outlives the control plane: drivers, the commit log and the store.

    Attributes:
        reach: Called at each action, with its name; may kill.
        raising: Revisions whose programs fail on their first batch.
        log: The commit log.
        savepoints: By id, with the length of the log when they were published.
        drivers: By the attempt that they were launched for.
    """

    context: Context
    job_id: str
    store_url: str
    reach: Callable[[str], None]
    raising: set[int] = field(default_factory=set)
    log: list[Opened | Committed] = field(default_factory=list)
    savepoints: dict[str, int] = field(default_factory=dict)
    drivers: dict[int, RehearsedDriver] = field(default_factory=dict)

    def turn(self) -> None:
        """Lets each driver take an action."""
        for driver in list(self.drivers.values()):
            driver.turn()

    def alive(self) -> list[int]:
        return [driver.number for driver in self.drivers.values() if driver.is_alive]

    def location(self, savepoint_id: str) -> str:
        path = Layout(JobId(self.job_id)).manifest(CheckpointId(0), savepoint_id)
        return location_of(canonical_url(self.store_url), path)

    def append(self, entry: Opened | Committed) -> bool:
        """Appends an entry, unless a newer attempt has been opened; returns whether it did."""
        if any(before.attempt > entry.attempt for before in self.log):
            return False
        self.log.append(entry)
        return True

    def find_savepoint(self, _store_url: str, _job_id: str, savepoint_id: str) -> PublishedSavepoint | None:
        """As the store's check does."""
        if savepoint_id not in self.savepoints:
            return None
        return PublishedSavepoint(
            self.location(savepoint_id),
            CheckpointId(len(self.savepoints)),
            batch_id=len(self.log),
            state_size=0,
            created_at_ms=now_ms(),
        )

    def newest_attempt(self, _store_url: str, _job_id: str) -> int:
        """As the store's check does."""
        return max((entry.attempt for entry in self.log), default=0)

    def counters(self, _store_url: str, _job_id: str, *, limit_ms: int) -> JobCounters:
        """As the store's check does."""
        del limit_ms
        return JobCounters(sum(isinstance(entry, Committed) for entry in self.log))

    def first_commit_after(self, _store_url: str, _job_id: str, location: str, *, attempt: int) -> int | None:
        """As the store's check does."""
        lengths = (length for each, length in self.savepoints.items() if self.location(each) == location)
        after = self.log[next(lengths, 0) :]
        return 1 if any(isinstance(entry, Committed) and entry.attempt > attempt for entry in after) else None


@dataclass(slots=True)
class RehearsedDriver:
    """A driver that takes one action at each turn.

    Attributes:
        number: The attempt that it has opened last.
        rescale: The progress of its live rescale.
        return_attempt: The attempt that it opens if its next batch fails.
        sleeps: Whether the control plane wants it to sleep.
        has_input: Whether its sources have records, which wake it.
    """

    world: World
    number: int
    rescale: LiveRescale | None = None
    return_attempt: ReservedAttempt | None = None
    is_alive: bool = True
    exit_code: int | None = None
    state: DriverState | None = None
    assignment: Assignment | None = None
    committed: int = 0
    command: Command | None = None
    result: CommandResult | None = None
    sleeps: bool = False
    has_input: bool = False

    def turn(self) -> None:
        """Takes the next action."""
        if not self.is_alive:
            return
        try:
            self._act()
        except AttemptOverError:
            self._end(10)
        except DriverDiedError:
            self.is_alive = False

    def kill(self) -> None:
        self.is_alive = False

    def _act(self) -> None:
        if self.assignment is None:
            self._attach()
        elif self.state is None:
            self._open()
        elif self.command is not None and self.command.kind is CommandKind.RESCALE:
            self._rescale(self.command)
        elif self.command is not None and self.command.kind in {CommandKind.CHECKPOINT, CommandKind.SAVEPOINT}:
            self._take_snapshot(self.command)
        elif self.command is not None:
            self._stop()
        elif self.state is DriverState.SLEEPING:
            self._doze()
        elif self.sleeps and not self.has_input:
            self._reach("falling asleep")
            self.state = DriverState.SLEEPING
            self._report(DriverState.SLEEPING)
        else:
            self._commit()

    def _attach(self) -> None:
        self._reach("attaching")
        with self.world.context.sessions() as session:
            found = attempts.find(session, self.world.job_id, self.number)
        over = found is None or found.stage is AttemptStage.ENDED
        identity = DriverIdentity(self.world.job_id, self.number, over)
        answer = drivers.attach(self.world.context, identity, AttachRequest(pid=self.number, host="rehearsed"))
        if answer.decision == "exit":
            self._end(0)
        elif answer.decision == "run":
            self.assignment = answer.assignment
        else:
            self._report(DriverState.STANDBY)

    def _open(self) -> None:
        assert self.assignment is not None
        self._reach("opening")
        if not self.world.append(Opened(self.number, self.assignment.revision)):
            self._report(DriverState.FENCED)
            self._end(10)
            return
        self._reach("opened")
        self.state = DriverState.RUNNING
        self._report(DriverState.RUNNING)

    def _commit(self) -> None:
        assert self.assignment is not None
        if self.assignment.revision in self.world.raising:
            self._reach("raising")
            if self.return_attempt is not None:
                self._open_reserved(self.return_attempt, "returned")
                return
            self._report(DriverState.FAILED, _RAISED)
            self._end(1)
            return
        self._reach("committing")
        if not self.world.append(Committed(self.number, self.assignment.revision)):
            self._report(DriverState.FENCED)
            self._end(10)
            return
        self.committed += 1
        self.return_attempt = None
        self._reach("committed")
        self._report(DriverState.RUNNING)

    def _rescale(self, command: Command) -> None:
        """Prepares at one turn, and opens the next attempt at the next one."""
        assert command.next_attempt is not None
        if self.rescale is None and not command.is_withdrawn:
            self._reach("preparing")
            now = now_ms()
            self.rescale = LiveRescale(
                command_id=command.id,
                phase=RescalePhase.PREPARE,
                from_attempt=self.number,
                to_attempt=command.next_attempt.assignment.attempt,
                began_at_ms=now,
                prepared_at_ms=now,
            )
            self._report(DriverState.RUNNING)
            return
        self.command = None
        if command.is_withdrawn:
            why = Failure(code="RESCALE_WITHDRAWN", message="it is withdrawn")
            self.result = CommandResult(command_id=command.id, status="FAILED", failure=why)
            self._report(DriverState.RUNNING)
            return
        self.return_attempt = command.return_attempt
        self._open_reserved(command.next_attempt, "switched")

    def _open_reserved(self, reserved: ReservedAttempt, moment: str) -> None:
        """Opens an attempt without a restart; from then on the driver speaks with its token."""
        self._reach("opening")
        if not self.world.append(Opened(reserved.assignment.attempt, reserved.assignment.revision)):
            self._report(DriverState.FENCED)
            self._end(10)
            return
        assert self.rescale is not None
        failure = None
        if moment == "returned":
            self.return_attempt, failure = None, _RAISED
        self.number, self.assignment, self.committed = reserved.assignment.attempt, reserved.assignment, 0
        self.rescale = self.rescale.model_copy(
            update={"phase": RescalePhase.VERIFY, "switched_at_ms": now_ms(), "failure": failure}
        )
        self._reach(moment)
        self._report(DriverState.RUNNING)

    def _doze(self) -> None:
        """Watches its sources, and asks the control plane; wakes for either."""
        if not self.has_input:
            self._report(DriverState.SLEEPING)
        if self.has_input or not self.sleeps:
            self._reach("waking")
            self.state = DriverState.WOKEN
            self._report(DriverState.WOKEN)
            self._end(0)

    def _take_snapshot(self, command: Command) -> None:
        self._reach("publishing")
        location = None if command.savepoint_id is None else self.world.location(command.savepoint_id)
        taken = CommandResult(command_id=command.id, status="COMPLETED", location=location, checkpoint_id=1)
        self.result, self.command = taken, None
        self._report(DriverState.RUNNING)

    def _stop(self) -> None:
        """Takes the savepoint at one turn, and reports it at the next one."""
        command = self.command
        assert command is not None
        assert command.savepoint_id is not None
        if self.result is None or self.result.command_id != command.id:  # of an earlier snapshot
            self._reach("publishing")
            self.world.savepoints[command.savepoint_id] = len(self.world.log)
            self.result = CommandResult(
                command_id=command.id,
                status="COMPLETED",
                location=self.world.location(command.savepoint_id),
                checkpoint_id=len(self.world.savepoints),
            )
            self._reach("published")
            return
        self._reach("reporting")
        self._report(DriverState.STOPPED)
        self._end(0)

    def _report(self, state: DriverState, failure: Failure | None = None) -> None:
        commit = Commit(batch_id=self.committed - 1, at_ms=1) if self.committed else None
        message = Heartbeat(
            state=state,
            attempt=self.number,
            slots=SLOTS,
            rescale=self.rescale,
            first_commit=commit and Commit(batch_id=0, at_ms=1),
            last_commit=commit,
            restored_at_ms=1 if self.assignment is not None else None,
            metrics=DriverMetrics(batches=self.committed),
            results=[self.result] if self.result is not None else [],
            failure=failure,
        )
        identity = DriverIdentity(self.world.job_id, self.number, over=False)
        answer = drivers.heartbeat(self.world.context, identity, message)
        self.sleeps = answer.sleeps
        if answer.commands and self._is_new(answer.commands[0]):
            self.command = answer.commands[0]

    def _is_new(self, command: Command) -> bool:
        is_answered = self.result is not None and self.result.command_id == command.id
        return not is_answered and (self.command is None or command.is_withdrawn)

    def _reach(self, action: str) -> None:
        self.world.reach(f"driver {self.number}: {action}")
        if not self.is_alive:
            raise DriverDiedError

    def _end(self, exit_code: int) -> None:
        self.is_alive, self.exit_code = False, exit_code


class RehearsedLauncher:
    """In place of the launcher: starts stand-ins. Its memory is lost with the control plane.

    Args:
        world: Where drivers live.
        place: Its host.
    """

    def __init__(self, world: World, place: str) -> None:
        self._world, self.place = world, place

    def inspect(self, attempt: Attempt) -> Seen:
        """As the launcher does for runs of its own host and of another one."""
        if attempt.launched_on is None:
            return Seen(ProcessState.UNLAUNCHED)
        if attempt.launched_on != self.place:
            return Seen(ProcessState.UNKNOWN)
        driver = self._world.drivers.get(attempt.run_number)
        if driver is None:
            return Seen(ProcessState.UNLAUNCHED)
        return Seen(ProcessState.ALIVE if driver.is_alive else ProcessState.DEAD, driver.exit_code)

    def prepare(self, job_id: str, attempt: int) -> str:
        return f"{job_id}-{attempt}"

    def launch(self, _job: object, _revision: object, attempt: Attempt, *_: object) -> None:
        self._world.drivers.setdefault(attempt.number, RehearsedDriver(self._world, attempt.number))

    def keep_record(self, _job: object, _record: object) -> None:
        pass

    def kill(self, _job_id: str, attempt: int) -> None:
        if (driver := self._world.drivers.get(attempt)) is not None:
            driver.kill()

    def clean_up(self, job_id: str, attempt: int) -> None:
        self.kill(job_id, attempt)

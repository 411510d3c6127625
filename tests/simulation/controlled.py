"""A world with control planes: the real one's services, lifecycle and repositories on PostgreSQL, two replicas of it.

The user's requests go to a control plane; drivers are started by it, and are those of the data plane.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from keyscale.api.jobs import clones, jobs
from keyscale.api.jobs.schemas.job import CloneRequest, JobRequest
from keyscale.api.jobs.schemas.restore import RestoreSource
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.operations import operation_requests, operations
from keyscale.api.operations.schemas.change import RollbackRequest, UpdateRequest
from keyscale.api.operations.schemas.operation import OperationRequest, RescaleRequest, StartRequest
from keyscale.api.settings import Settings
from keyscale.api.web.app import make_context
from keyscale.db.models import Attempt, DeletedJob, Job, Operation, Revision
from keyscale.errors import KeyscaleError
from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.jobs.runtime.control import reporter
from keyscale.state.documents.log_entries import AttemptOpened
from keyscale.state.layout import Layout
from keyscale.vocabulary import (
    CHANGES,
    AttemptStage,
    ChangePhase,
    ClaimMode,
    DriverState,
    JobStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    UpgradeMode,
)
from tests.simulation.control_plane import ROUND_SECONDS, USER, Election, Launched, PlayedControlPlane
from tests.simulation.database import ARTIFACT
from tests.simulation.driver import Driver
from tests.simulation.environment import STEP_SECONDS, Environment, Outcome
from tests.simulation.given_control import MAX_PARALLELISM, SETTINGS, SLOW_SETTINGS
from tests.simulation.object_store import URL
from tests.simulation.stage import (
    AGE_FLOOR_MS,
    HEARTBEAT_SECONDS,
    REMOVAL_SETTLED_MS,
    RETENTION_INTERVAL_SECONDS,
    played,
)
from tests.simulation.trace import Trace
from tests.simulation.world import ProcessEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.api.control_plane.context import Context
    from tests.simulation.database import Database
    from tests.simulation.history import History
    from tests.simulation.network import ControlPlane
    from tests.simulation.world import Process

NAME = "flights"
HOSTS = ("a", "b")
RESTING_SECONDS = 20.0
QUIET_SECONDS = 900.0
"""After the last fault, each request of the user must have been carried out within this virtual time."""
SETTLED = {JobStatus.CREATED, JobStatus.STOPPED, JobStatus.FINISHED, JobStatus.FAILED}


class ControlledEnvironment(Environment):
    """A world with two hosts, each with a control plane, and PostgreSQL.

    Args:
        history: The events.
        trace: Takes what happens.
        database: PostgreSQL.
    """

    def __init__(self, history: History, trace: Trace, database: Database) -> None:
        super().__init__(history, trace)
        self.database = database
        self.launched = Launched(self._launch, {})
        self.network.reachable = self._reachable
        self.election = Election(self.world)
        database.on_commit = self._check_leader
        self.first_record: dict[str, int] = defaultdict(int)
        self.planes: dict[str, PlayedControlPlane] = {}
        self.requests = 0
        self.change_ids: set[str] = set()
        self._context: Context | None = None
        self._planes_started = 0
        self._must_roll_back = False

    def begin(self) -> None:
        """Starts the control planes, and creates and starts the job."""
        settings = Settings(home=self._directory, store_url=URL, artifact_bytes_max=1 << 20, failures_per_minute=0)
        self._context = make_context(settings, self.database.engine)
        for host in HOSTS:
            self._begin_control_plane(host)
        request = JobRequest(
            name=NAME,
            spec=JobSpec(
                artifact_id=ARTIFACT,
                parallelism=2,
                max_parallelism=MAX_PARALLELISM,
                checkpoints=SETTINGS,
                parameters={"fails": "no"},
            ),
        )
        self._ask("create", lambda context: jobs.create(context, USER, request))
        self.world.run_until(self.world.now + 2.0)
        self._request("start", OperationKind.START, StartRequest())

    def _begin_control_plane(self, host: str) -> None:
        assert self._context is not None
        self._planes_started += 1
        name = f"control-{host}{self._planes_started}"
        self.planes[host] = PlayedControlPlane(
            self.world, self.hosts[host], self._context, self.election, self.launched, name
        )

    def play(self) -> None:
        self.begin()
        super().play()

    # Requests of the user

    def on_rescale_mode(self, mode: str) -> None:
        """Sets the way of the job's next rescales."""
        given = UpdateRequest(spec={"rescale_mode": mode}, plan_first=False, id=self._id())
        self._request("set the mode of rescales", OperationKind.UPGRADE, given)

    def on_rescale(self, parallelism: int, *, twice: bool = False) -> None:
        given = RescaleRequest(parallelism=parallelism, id=self._id())
        self._request("rescale", OperationKind.RESCALE, given, twice=twice)

    def _request(self, what: str, kind: OperationKind, given: OperationRequest, *, twice: bool = False) -> None:
        self._ask(what, self._asking(NAME, kind, given), twice=twice)

    def _asking(self, name: str, kind: OperationKind, given: OperationRequest) -> Callable[[Context], None]:
        def ask(context: Context) -> None:
            operation_requests.request(context, USER, name, kind, given, "*")

        return ask

    def on_upgrade(self, fails: bool, mode: str, *, twice: bool = False) -> None:
        given = UpdateRequest(
            spec={"parameters": {"fails": "yes" if fails else "no", "version": self._id()}},
            upgrade_mode=UpgradeMode(mode.upper().replace("-", "_")),
            plan_first=False,
            id=self._id(),
        )
        self._request("upgrade", OperationKind.UPGRADE, given, twice=twice)

    def on_roll_back(self, revision: int, state: str) -> None:
        given = RollbackRequest(revision=revision, state=state.upper(), plan_first=False, id=self._id())
        self._request("roll back", OperationKind.ROLLBACK, given)

    def on_must_roll_back(self) -> None:
        """Says that a change of this history brings a program that fails, and so must be rolled back."""
        self._must_roll_back = True

    def on_cancel_change(self) -> None:
        in_progress = select(Operation).where(
            Operation.status == OperationStatus.IN_PROGRESS, Operation.kind.in_(CHANGES)
        )
        with self.database.sessions() as session:
            running = session.scalars(in_progress.order_by(Operation.id)).first()
        if running is not None:
            self._ask("cancel the change", lambda context: operations.cancel(context, USER, running.id))

    def on_stop(self, drain: bool) -> None:
        kind = OperationKind.DRAIN if drain else OperationKind.STOP
        self._request("stop", kind, OperationRequest(id=self._id()))

    def on_cancel(self) -> None:
        self._request("cancel", OperationKind.CANCEL, OperationRequest())

    def on_run(self, parallelism: int | None = None) -> None:
        self._request("start", OperationKind.START, StartRequest(parallelism=parallelism))

    def on_run_from(self, which: str, *, claim: bool, parallelism: int | None = None) -> None:
        """Goes back to the latest snapshot, by stopping and starting from it."""
        source = RestoreSource(latest=True) if which == "latest" else RestoreSource(savepoint_id=which)
        mode = ClaimMode.CLAIM if claim else ClaimMode.NO_CLAIM
        given = StartRequest(restore_from=source, claim_mode=mode, parallelism=parallelism)
        self._request("start from", OperationKind.START, given)

    def on_command(self, what: str) -> None:
        self._request(what.lower(), OperationKind(what), OperationRequest(id=self._id()))

    def on_delete(self) -> None:
        if self._alive():
            self.world.reach("a job was deleted while a driver of it was alive")
        self._ask("delete", self._deletion_of(NAME))

    def _deletion_of(self, name: str) -> Callable[[Context], None]:
        """Returns the request to delete a job, of which nothing is needed any more once it is accepted."""
        with self.database.sessions() as session:
            job_id = session.scalar(select(Job.id).where(Job.name == name))

        def delete(context: Context) -> None:
            jobs.delete(context, USER, name)
            self.auditor.deleted_jobs.add(job_id or "")

        return delete

    def on_clone(self, parallelism: int, *, claim: bool = False) -> None:
        if sum(name.startswith("clone") for name in self._job_names()) >= 1:
            return
        given = CloneRequest(
            name=f"clone-{self._id()}",
            spec={"parallelism": parallelism},
            start=True,
            restore_from=RestoreSource(latest=True),
            claim_mode=ClaimMode.CLAIM if claim else ClaimMode.NO_CLAIM,
        )
        self._ask("clone", lambda context: clones.clone(context, USER, NAME, given))

    def on_delete_clone(self) -> None:
        for name in self._job_names():
            if name.startswith("clone"):
                self._ask("cancel", self._asking(name, OperationKind.CANCEL, OperationRequest()))
                self._ask("delete", self._deletion_of(name))

    # Faults of control planes

    def on_kill_control(self, host: str, seconds: float) -> None:
        plane = self.planes[host]
        plane.process.kill()
        self.world.after(seconds, lambda: self._begin_control_plane(host))

    def on_freeze_control(self, host: str, seconds: float) -> None:
        process = self.planes[host].process
        self.world.freeze(process)
        self.world.after(seconds, lambda: self.world.thaw(process))

    def _kill_others(self, victims: str) -> None:
        super()._kill_others(victims)
        if victims in {"all control planes", "everything"}:
            for host, plane in self.planes.items():
                plane.process.kill()
                self.world.after(5.0, lambda host=host: self._begin_control_plane(host))

    def _strike(self, process: Process, name: str, *, freezes: bool) -> None:
        if not freezes and process.is_alive and self._is_control(process):
            self.world.after(10.0, lambda: self._begin_again(process))
        super()._strike(process, name, freezes=freezes)

    def _begin_again(self, process: Process) -> None:
        host = process.host.name
        if self.planes[host].process is process:
            self._begin_control_plane(host)

    # The end

    def settle(self) -> None:
        """Mends everything, waits for the last request, lets the job run, stops and deletes it; checks at each step."""
        self._mend()
        self.world.run_until(self.world.now + 20.0)  # the last request arrives, and sleepers wake
        try:
            self._come_right()
        finally:
            self._check_quarantines()

    def _note_changes(self) -> None:
        """Notes what became of the changes and attempts of the history."""
        ends = {
            (OperationStatus.COMPLETED, OperationKind.RESCALE): "a rescale was completed",
            (OperationStatus.COMPLETED, OperationKind.UPGRADE): "an upgrade was completed",
            (OperationStatus.COMPLETED, OperationKind.ROLLBACK): "a change went back to an earlier revision",
        }
        with self.database.sessions() as session:
            of_changes = select(Operation).where(Operation.kind.in_(CHANGES))
            made = session.scalars(of_changes.order_by(Operation.id)).all()
            if self._must_roll_back and all(change.status != OperationStatus.ROLLED_BACK for change in made):
                self.auditor.find("a change to a program that fails was not rolled back")
            for change in made:
                self._note_way(change)
                if change.status == OperationStatus.CANCELLED:
                    self.world.reach("a change was cancelled")
                elif change.status == OperationStatus.ROLLED_BACK:
                    self.world.reach("a change was rolled back")
                elif (change.status, change.kind) in ends:
                    self.world.reach(ends[change.status, change.kind])
            for attempt in session.scalars(select(Attempt).order_by(Attempt.job_id, Attempt.number)).all():
                if attempt.cause == Cause.RECOVER:
                    self.world.reach("a driver was replaced")
            if session.scalars(select(Job.id).where(Job.status == JobStatus.FAILED)).first():
                self.world.reach("a job failed for good")
            if len(session.scalars(select(Job.id).where(Job.status == JobStatus.RUNNING)).all()) > 1:
                self.world.reach("a clone ran beside its original")

    def _note_way(self, change: Operation) -> None:
        if change.live is not None and change.status is OperationStatus.COMPLETED:
            self.world.reach("a driver rescaled its job")
        elif change.rescale_mode is RescaleMode.STANDBY and change.phases[0]["phase"] == ChangePhase.PREPARE:
            self.world.reach("a new driver carried a live rescale out")

    def _come_right(self) -> None:
        if not self._wait("the end of the last request", self._is_quiet):
            return
        self._check_one_driver_each()
        self._note_changes()
        if NAME not in self._job_names():
            self._stop_and_delete()
            return
        self.on_records([number % 6 for number in range(8)])
        if not self._run_well():
            return
        self._check_data()
        if self.auditor.findings:
            return
        for name in self._job_names():
            self._request_now("slow", self._asking(name, OperationKind.UPGRADE, _slow()))
        self._rest(AGE_FLOOR_MS / 1000)
        self.on_records([1])
        self._rest(3 * RETENTION_INTERVAL_SECONDS)
        if not self._wait("the job to catch up after the clean-up", self._have_all_caught_up):
            return
        self._check_data()
        for job_id in self._job_ids():
            if not self.auditor.damaged:
                self.auditor.check_left_over(job_id, retained=SETTINGS.retained_count)
                self._check_savepoints_of_changes(job_id)
        self._stop_and_delete()

    def _mend(self) -> None:
        self._armed.clear()
        self._end_watch()
        self.on_heal()
        self.store.is_away = False
        for sink in self.sinks.values():
            sink.is_away = False
        for host in self.hosts.values():
            host.is_full = host.is_cut_off = host.store_is_away = False
        for driver in self.drivers:
            if driver.is_alive and driver.process.is_frozen:
                self._thaw(driver)
        for host, plane in list(self.planes.items()):
            if plane.process.is_alive:
                self.world.thaw(plane.process)
            else:
                self._begin_control_plane(host)

    def _run_well(self) -> bool:
        """Has the job run a good program; returns whether it does, and has read all."""
        with self.database.sessions() as session:
            job = session.scalars(select(Job).where(Job.name == NAME)).one()
            present = session.get_one(Revision, (job.id, job.revision))
        if present.spec["parameters"].get("fails") == "yes":
            given = UpdateRequest(spec={"parameters": {"fails": "no"}}, plan_first=False, id=self._id())
            if job.status not in SETTLED:
                self._request_now("cancel", self._asking(NAME, OperationKind.CANCEL, OperationRequest()))
                if not self._wait("the cancelled job to end", lambda: self._status() in SETTLED):
                    return False
            self._request_now("mend", self._asking(NAME, OperationKind.UPGRADE, given))
        if self._status() in SETTLED:
            self._request_now("start", self._asking(NAME, OperationKind.START, StartRequest()))
        return self._wait("all records to be read", self._have_all_caught_up)

    def _stop_and_delete(self) -> None:
        for name in self._job_names():
            if self._status(name) not in SETTLED and not self._stop(name):
                return
        if not self._wait("all drivers to end", lambda: not self._alive()):
            return
        deleted = {job_id for job_id, _ in self.launched.drivers}
        for name in self._job_names():
            self._request_now("delete", self._deletion_of(name))
        self._rest(REMOVAL_SETTLED_MS / 1000 + 30.0)
        if self._wait("the objects of deleted jobs to be gone", self._is_all_removed):
            self._check_removed(deleted)

    def _rest(self, seconds: float) -> None:
        """Lets a time pass in which only clean-ups have work; a message each 20 seconds is enough."""
        reporter.HEARTBEAT_INTERVAL_SECONDS = RESTING_SECONDS
        for plane in self.planes.values():
            plane.round_seconds = RESTING_SECONDS
        self.world.run_until(self.world.now + seconds)
        reporter.HEARTBEAT_INTERVAL_SECONDS = HEARTBEAT_SECONDS
        for plane in self.planes.values():
            plane.round_seconds = ROUND_SECONDS

    def _stop(self, name: str) -> bool:
        given = OperationRequest(id=self._id())
        self._request_now("stop", self._asking(name, OperationKind.STOP, given))
        return self._wait("the job to stop", lambda: self._status(name) == JobStatus.STOPPED)

    def _check_savepoints_of_changes(self, job_id: str) -> None:
        """Of changes that have ended only the last upgrade's or rollback's savepoint is left, for a rollback."""
        with self.database.sessions() as session:
            changes_of_job = session.scalars(
                select(Operation)
                .where(Operation.job_id == job_id, Operation.kind.in_(CHANGES))
                .order_by(Operation.requested_at_ms, Operation.id)
            ).all()
        layout = Layout(JobId(job_id))
        left = [
            change for change in changes_of_job if layout.manifest(CheckpointId(0), change.id) in self.store.objects
        ]
        for change in left[:-1]:
            self.auditor.find(f"the savepoint of the {change.kind} {change.id} of {job_id} is left")
        if left and (left[-1].kind is OperationKind.RESCALE or left[-1].status is OperationStatus.ROLLED_BACK):
            self.auditor.find(f"the savepoint of the {left[-1].kind} {left[-1].id} of {job_id} is left")
        if len(left) < len(changes_of_job):
            self.world.reach("a savepoint of a change was deleted")
        self.change_ids |= {change.id for change in changes_of_job}

    def _check_removed(self, deleted: set[str]) -> None:
        """Of deleted jobs only users' savepoints are left, and no job has a claim on one."""
        for job_id in sorted(deleted):
            layout = Layout(JobId(job_id))
            for path in sorted(self.store.objects):
                if path.startswith(layout.job) and not path.startswith(layout.savepoints):
                    self.auditor.find(f"{path} is left of a deleted job")
            for change_id in sorted(self.change_ids):
                if layout.manifest(CheckpointId(0), change_id) in self.store.objects:
                    self.auditor.find(f"the savepoint of the change {change_id} is left of a deleted job")
        for path in sorted(self.store.objects):
            if path.endswith("/claim.json"):
                self.auditor.find(f"{path} is left, and its job is deleted")

    def _is_all_removed(self) -> bool:
        with self.database.sessions() as session:
            return not session.scalars(select(DeletedJob)).all()

    def _check_data(self) -> None:
        with self.database.sessions() as session:
            running = set(session.scalars(select(Job.id).where(Job.status == JobStatus.RUNNING)).all())
        for job_id in self._job_ids():
            self.auditor.check_log(job_id)
            if job_id in self.sinks:
                first, is_complete = self._first_record_of(job_id), job_id in running
                self.auditor.check_rows(job_id, self.sinks[job_id], self.source.records, first, is_complete=is_complete)

    def _check_one_driver_each(self) -> None:
        """The job runs as its row says: one driver, of its revision and parallelism."""
        with self.database.sessions() as session:
            for job in session.scalars(select(Job).order_by(Job.id)).all():
                active = session.scalars(
                    select(Attempt)
                    .where(Attempt.job_id == job.id, Attempt.stage == AttemptStage.ACTIVE)
                    .order_by(Attempt.number)
                ).all()
                alive = [driver for driver in self._alive() if driver.job_id == job.id]
                numbers = [driver.attempt for driver in alive]
                if job.status in SETTLED and numbers:
                    self.auditor.find(f"{job.name} is {job.status}, and attempts {numbers} run")
                if job.status == JobStatus.RUNNING:
                    revision = session.get_one(Revision, (job.id, job.revision))
                    if numbers != [attempt.number for attempt in active]:
                        self.auditor.find(f"attempts {numbers} of {job.name} run")
                    for driver in alive:
                        given = driver.assignment
                        if given is not None and given.spec.parallelism != revision.spec["parallelism"]:
                            self.auditor.find(f"{job.name} runs at parallelism {given.spec.parallelism}")

    def _check_leader(self) -> None:
        """Checks that only the process of the last epoch takes a reconciler's steps."""
        task, leader = self.world.current, self.election.leader
        if task is not None and task.name == "pool" and leader is not None and task.process is not leader:
            self.auditor.find(f"{task.process.name} took a step while {leader.name} led")

    def _check_quarantines(self) -> None:
        for plane in self.planes.values():
            for job_id, quarantine in plane.quarantines.items():
                self.auditor.find(f"the steps of {job_id} fail: {quarantine.code}")
        for task, error in self.world.failures:
            self.auditor.find(f"task {task.name} of {task.process.name} failed: {type(error).__name__}: {error}")

    def _is_quiet(self) -> bool:
        with self.database.sessions() as session:
            if session.scalars(select(Operation.id).where(Operation.status == OperationStatus.IN_PROGRESS)).first():
                return False
            rows = session.scalars(select(Job)).all()
            unreaped = session.scalars(
                select(Attempt.number).where(Attempt.stage == AttemptStage.ENDED, Attempt.reaped.is_(False))
            ).all()
        is_settled = all(job.status in {*SETTLED, JobStatus.RUNNING} for job in rows)
        running = sum(job.status == JobStatus.RUNNING for job in rows)
        return is_settled and not unreaped and len(self._alive()) == running

    def _have_all_caught_up(self) -> bool:
        if not self._is_quiet():
            return False
        with self.database.sessions() as session:
            running = session.scalars(select(Job.id).where(Job.status == JobStatus.RUNNING)).all()
            fails = session.scalars(select(Job.failure).where(Job.name == NAME)).one()
        if fails or self._status() != JobStatus.RUNNING:
            return False
        count = len(self.source.records)
        return all(len(self.sinks[job_id].rows) >= count - self._first_record_of(job_id) for job_id in running)

    def _first_record_of(self, job_id: str) -> int:
        """Returns how many records a clone's snapshot had read, whose effect is in the original's sink."""
        opened = [entry for entry in self.auditor.entries.get(job_id, {}).values() if isinstance(entry, AttemptOpened)]
        first = min(opened, key=lambda entry: entry.attempt, default=None)
        if first is None or first.restored_from is None:
            return 0
        return self.auditor.records_read.get(first.restored_from, 0)

    def _wait(self, what: str, observe: Callable[[], bool]) -> bool:
        deadline = self.world.now + QUIET_SECONDS
        while self.world.now < deadline:
            if observe():
                return True
            self.world.run_until(self.world.now + STEP_SECONDS)
        with self.database.sessions() as session:
            shown = [
                (job.name, str(job.status), job.failure) for job in session.scalars(select(Job).order_by(Job.id)).all()
            ]
        self.auditor.find(f"waited in vain for {what}: {shown}")
        return False

    # What the rest of the environment uses

    def _launch(self, job_id: str, attempt: int, host: str) -> Driver:
        disk = self._directory / host
        disk.mkdir(exist_ok=True)
        driver = Driver(
            self.world,
            self.hosts[host],
            job_id,
            attempt,
            network=self.network,
            source=self.source,
            sink=self.sink_of(job_id),
            disk=disk,
        )
        beside = [each for each in self.drivers if each.job_id == job_id and each.is_alive]
        if beside:
            self.world.reach("two drivers of a job were alive")
            if any(each.state is None and each.assignment is not None for each in beside):
                self.world.reach("a standby was warm beside a running driver")
        self.drivers.append(driver)
        return driver

    def _reachable(self, process: Process) -> tuple[ControlPlane, Process] | None:
        """A driver stays with the control plane that answers it, and looks for another one if it does not."""
        known = process.resources.get("control plane")
        for plane in sorted(self.planes.values(), key=lambda each: (each is not known, each.process.name)):
            if plane.process.is_alive and not plane.process.is_frozen and not plane.process.host.is_cut_off:
                if known is not None and plane is not known:
                    self.world.reach("a driver found another control plane")
                process.resources["control plane"] = plane
                return plane, plane.process
        return None

    def _ask(self, what: str, call: Callable[[Context], Any], *, twice: bool = False) -> None:
        """Sends a request to a control plane; a double click is two requests, perhaps to both."""
        planes = [plane for plane in self.planes.values() if plane.process.is_alive and not plane.process.is_frozen]
        if twice:
            self.world.reach("a double click was one change")
        for _ in range(2 if twice else 1):
            if not planes:
                return
            plane = self.world.chance.choice(planes)
            self.world.spawn(plane.process, f"request {what}", lambda plane=plane: self._answer(plane, what, call))

    def _answer(self, plane: PlayedControlPlane, what: str, call: Callable[[Context], Any]) -> None:
        try:
            call(plane.context)
        except KeyscaleError as error:
            self.world.trace.note(self.world, f"refused to {what}: {error.code}: {error}")
        except ProcessEndedError:
            raise
        else:
            self.world.trace.note(self.world, f"accepted to {what}")

    def _request_now(self, what: str, call: Callable[[Context], Any]) -> None:
        """Sends a request after the last fault: it must be accepted."""
        plane = next(plane for plane in self.planes.values() if plane.process.is_alive)
        done: list[str] = []

        def run() -> None:
            try:
                call(plane.context)
            except KeyscaleError as error:
                self.auditor.find(f"refused to {what} when all was well: {error.code}: {error}")
            done.append(what)

        self.world.spawn(plane.process, f"request {what}", run)
        for _ in range(20):
            if done:
                return
            self.world.run_until(self.world.now + 1.0)
        self.auditor.find(f"no answer to {what}")

    def _id(self) -> str:
        self.requests += 1
        return f"request-{self.requests}"

    def _job_names(self) -> list[str]:
        with self.database.sessions() as session:
            return sorted(session.scalars(select(Job.name)).all(), reverse=True)

    def _job_ids(self) -> list[str]:
        with self.database.sessions() as session:
            return sorted(session.scalars(select(Job.id)).all())

    def _status(self, name: str = NAME) -> JobStatus | None:
        with self.database.sessions() as session:
            return session.scalar(select(Job.status).where(Job.name == name))

    def on_sink_away(self, seconds: float) -> None:
        for sink in self.sinks.values():
            sink.is_away = True
            self.world.after(seconds, lambda sink=sink: setattr(sink, "is_away", False))

    def _may_stop_here(self) -> bool:
        return not self.database.has_transaction

    def _is_control(self, process: Process) -> bool:
        return any(plane.process is process for plane in self.planes.values()) or process.name.startswith("control")


def _slow() -> UpdateRequest:
    return UpdateRequest(spec={"checkpoints": SLOW_SETTINGS.model_dump()}, plan_first=False)


def play_controlled(
    history: History,
    database: Database,
    trace: Trace | None = None,
    patches: list[tuple[Any, str, object]] | None = None,
) -> Outcome:
    """Plays a history with control planes."""
    trace = trace or Trace()
    database.begin_history(None)
    environment = ControlledEnvironment(history, trace, database)
    with ExitStack() as stack:
        stack.callback(environment.close)
        stack.enter_context(played(environment.world, environment.store, patches))
        database.world = environment.world
        try:
            environment.play()
        finally:
            environment.world.close()
            database.world = None
    return environment.outcome()


__all__ = ["ControlledEnvironment", "DriverState", "play_controlled"]

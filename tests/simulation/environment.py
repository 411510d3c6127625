"""Plays a history: each event does what its name says, and in the end everything is mended and has to come right."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.messages import Command, ReservedAttempt
from keyscale.jobs.runtime.errors import OutputWithdrawnError, RestoreRefusedError
from keyscale.state.documents.manifest import SnapshotKind
from keyscale.state.layout import location_of
from keyscale.state.log.recovery import NothingUsableError
from keyscale.vocabulary import CommandKind, DriverState
from tests.simulation.auditor import Auditor
from tests.simulation.commit_faults import CommitFaults
from tests.simulation.crash_points import is_durable
from tests.simulation.driver import Driver
from tests.simulation.file_sink import FileSinkModel
from tests.simulation.given_control import SETTINGS, SLOW_SETTINGS, GivenControl
from tests.simulation.job import Record
from tests.simulation.kafka_sink import KafkaSinkModel
from tests.simulation.network import Network
from tests.simulation.object_store import URL, Fate, StoreModel
from tests.simulation.postgres_sink import BY_BATCH, BY_KEY, PostgresSinkModel
from tests.simulation.sink_model import SinkModel
from tests.simulation.spark import Source
from tests.simulation.stage import AGE_FLOOR_MS, RETENTION_INTERVAL_SECONDS, played
from tests.simulation.timed_job import judged_rows, wanted_rows
from tests.simulation.trace import Trace
from tests.simulation.watched_calls import AT_MOMENTS, watching
from tests.simulation.world import Host, Process, ProcessEndedError, World

if TYPE_CHECKING:
    from keyscale.state.documents.manifest import Manifest
    from keyscale.state.subtask.open_store_cache import OpenStoreCache
    from tests.simulation.history import History

JOB = "job"
_EARLIER = re.compile(rb'"log_position":(\d+)')
DISKS = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - in memory, as no power is cut here
SETTLE_SECONDS = 1_000.0
"""After the last fault the job must have caught up within this virtual time."""
STARTS_MAX = 20
"""After the last fault the job must have caught up within so many starts."""
WAKING_SECONDS = 45.0
"""After the last fault an older driver that is awake finds out within this virtual time that it is overtaken."""
STEP_SECONDS = 5.0
LOST_SECONDS = 8.0
"""A host that was lost is replaced after this virtual time."""


@dataclass(slots=True)
class Outcome:
    """How a history went.

    Attributes:
        findings: What was wrong.
        reached: How often each rare state was reached.
        digest: Of the trace.
        seconds: Virtual time.
        switches: How often a task went on.
    """

    findings: list[str]
    reached: Counter[str]
    digest: str
    seconds: float
    switches: int
    rows: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    durable: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Armed:
    """A fault that waits for a named moment."""

    moment: str
    nth: int
    freezes: bool
    away_seconds: float = 0.0
    cuts_off: bool = False
    of_newest: bool = False


class Environment:
    """A world with hosts, a store, a source, a sink, and drivers of one job after the other.

    Args:
        history: The events.
        trace: Takes what happens.
    """

    def __init__(self, history: History, trace: Trace) -> None:
        self.history = history
        self.world = World(history.seed, trace)
        self.store = StoreModel(self.world)
        self.auditor = Auditor(self.world, self.store)
        self.hosts = {name: Host(name) for name in ("a", "b", "c", "new")}
        self.source = Source()
        self.sink_kind = "database"
        self.is_timed = False
        self.sinks: dict[str, SinkModel | FileSinkModel | KafkaSinkModel | PostgresSinkModel] = {}
        self.commit_faults = CommitFaults()
        self.control = GivenControl()
        self.control_process = Process("control", Host("control"))
        self.network = Network(self.world, lambda _: (self.control, self.control_process))
        self.drivers: list[Driver] = []
        self.attempt = 0
        self.commands = 0
        self._armed: list[Armed] = []
        self._pending_restore: dict[str, Any] = {}
        self._rewinding: str | None = None
        self._rewinds: list[tuple[int, int]] = []
        self._keeper_seconds: float | None = None
        self._restart: dict[str, Any] | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="keyscale-sim-", dir=DISKS))
        trace.directory = str(self._directory)
        self.world.on_reach = self._moment
        self.moments: Counter[str] = Counter()
        self._durable: list[str] | None = None
        self._crash: tuple[int, str] | None = None
        self._steps: list[str] = []

    # The history

    def play(self) -> None:
        """Plays all events, and settles."""
        for event in self.history.events:
            self.world.run_until(self.world.now + event.after)
            self.world.trace.note(self.world, f"EVENT {event}")
            getattr(self, f"on_{event.kind}")(**event.given)
        self.settle()

    def close(self) -> None:
        self.world.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def on_sink(self, kind: str) -> None:
        """Before a job is started: what it writes to, `database`, `files`, `copied files`, `kafka`, `appended table`
        or `upserted table`."""
        self.sink_kind = kind

    def on_timed(self) -> None:
        """Before a job is started: it has timers and operator state."""
        self.is_timed = True

    def sink_of(self, job: str) -> SinkModel | FileSinkModel | KafkaSinkModel | PostgresSinkModel:
        """Returns the system that a job writes to."""
        if job not in self.sinks:
            directory = self._directory / f"sink-{job}"
            if self.sink_kind == "database":
                self.sinks[job] = SinkModel(self.world, on_publish=lambda batch: self.auditor.published(job, batch))
            elif self.sink_kind == "kafka":
                self.sinks[job] = KafkaSinkModel(
                    self.world, directory, lambda: self.auditor.committed_tokens(job), self.commit_faults
                )
            elif self.sink_kind in {"appended table", "upserted table"}:
                options = BY_KEY if self.sink_kind == "upserted table" else BY_BATCH
                self.sinks[job] = PostgresSinkModel(
                    self.world, options, lambda batch: self.auditor.published(job, batch), self.commit_faults
                )
            else:
                self.sinks[job] = FileSinkModel(self.world, directory, copies=self.sink_kind == "copied files")
        return self.sinks[job]

    def on_records(self, keys: list[int]) -> None:
        first = len(self.source.records)
        self.source.records += [Record(key, first + place) for place, key in enumerate(keys)]

    def on_keeper(self, seconds: float) -> None:
        """From now on a driver that has ended is replaced after a while, as a control plane does."""
        self._keeper_seconds = seconds
        self._keep()

    def _keep(self) -> None:
        if self._keeper_seconds is None:
            return
        if self.attempt and not self._runs() and not self._is_stopped():
            last = self.drivers[-1]
            self._start(last.parallelism, last.process.host.name, self._hint("latest"))
        self.world.after(self._keeper_seconds, self._keep)

    def _is_stopped(self) -> bool:
        return self.drivers[-1].state in {DriverState.STOPPED, DriverState.FINISHED}

    def on_start(
        self, parallelism: int, host: str, hint: str = "latest", *, kills: bool = False, **restore: Any
    ) -> None:
        """Starts the next attempt; the one before may live on."""
        if kills:
            for driver in self._alive():
                driver.process.kill()
        elif self._alive():
            self.world.reach("two drivers of a job were alive")
        self._start(parallelism, host, self._hint(hint), **restore)

    def on_restarts(self, times: int, delay_ms: int = 1_000) -> None:
        """From now on attempts restart in their own process so many times."""
        self._restart = {"type": "fixed-delay", "attempts": times, "delay_ms": delay_ms}

    def on_retained(self, count: int) -> None:
        """From now on attempts retain so many checkpoints."""
        self.control.assigned = SETTINGS.model_copy(update={"retained_count": count})

    def on_kill(self, which: int) -> None:
        if driver := self._chosen(which):
            driver.process.kill()

    def on_freeze(self, which: int) -> None:
        if driver := self._chosen(which):
            self.world.freeze(driver.process)

    def on_thaw(self, which: int) -> None:
        frozen = [driver for driver in self.drivers if driver.is_alive and driver.process.is_frozen]
        if frozen:
            self._thaw(frozen[which % len(frozen)])

    def on_kill_at(self, moment: str, nth: int) -> None:
        self._armed.append(Armed(moment, nth, freezes=False))

    def on_freeze_at(self, moment: str, nth: int, *, of_newest: bool = False) -> None:
        self._armed.append(Armed(moment, nth, freezes=True, of_newest=of_newest))

    def on_lose_host_at(self, moment: str, nth: int) -> None:
        """At a moment the host of a driver is lost; other systems do not see that the driver has died."""
        self._armed.append(Armed(moment, nth, freezes=False, cuts_off=True))

    def on_away_at(self, moment: str, seconds: float) -> None:
        """From a moment on the store does not answer for a while."""
        self._armed.append(Armed(moment, 1, freezes=False, away_seconds=seconds))

    def on_command(self, what: str) -> None:
        self.commands += 1
        drain = what == "drain"
        kind = CommandKind.STOP_WITH_SAVEPOINT if drain else CommandKind(what)
        takes = kind in {CommandKind.SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT}
        name = f"command-{self.commands}"
        command = Command(id=name, kind=kind, savepoint_id=name if takes else None, drain=drain)
        newest = self.drivers[-1].attempt if self.drivers else self.attempt
        self.control.commands.setdefault((JOB, newest), []).append(command)

    def on_live_rescale(self, parallelism: int) -> None:
        """The newest driver rescales its job itself, with an attempt for it and another one for the way back."""
        if not self._alive():
            return
        driver = self._alive()[-1]
        self.commands += 1
        present = self.control.assignments[JOB, driver.attempt].spec.parallelism
        numbers, self.attempt = (self.attempt + 1, self.attempt + 2), self.attempt + 2
        self.auditor.rescaled.update(numbers)
        following, back = (
            ReservedAttempt(token="", assignment=self.control.assign(JOB, number, wanted, restart=self._restart))
            for number, wanted in zip(numbers, (parallelism, present), strict=True)
        )
        command = Command(
            id=f"command-{self.commands}", kind=CommandKind.RESCALE, next_attempt=following, return_attempt=back
        )
        self.control.commands.setdefault((JOB, driver.attempt), []).append(command)

    def on_command_again(self) -> None:
        """Gives the newest attempt the last command of the job, if no attempt has answered it."""
        given = [command for commands in self.control.commands.values() for command in commands]
        if given and given[-1].id not in self.control.results:
            self.control.commands.setdefault((JOB, self.attempt), []).append(given[-1])

    def on_store_faults(
        self, not_applied: float, answer_lost: float, applied_late: float, slow: float, damaged: float = 0.0
    ) -> None:
        self.store.faults = {
            Fate.NOT_APPLIED: not_applied,
            Fate.ANSWER_LOST: answer_lost,
            Fate.APPLIED_LATE: applied_late,
            Fate.SLOW: slow,
            Fate.DAMAGED: damaged,
        }

    def on_store_away(self, seconds: float) -> None:
        self.store.is_away = True
        self.world.after(seconds, lambda: setattr(self.store, "is_away", False))

    def on_host_cut_off(self, host: str, seconds: float) -> None:
        self.hosts[host].is_cut_off = True
        self.world.after(seconds, lambda: setattr(self.hosts[host], "is_cut_off", False))

    def on_network_faults(self, lost: float, unanswered: float, twice: float) -> None:
        self.network.lost, self.network.unanswered, self.network.twice = lost, unanswered, twice

    def on_heal(self) -> None:
        self.store.faults = {}
        self.network.lost = self.network.unanswered = self.network.twice = 0.0
        self.on_commit_faults(refused=0.0, lost=0.0, unanswered=0.0, late=0.0)

    def on_clock_jump(self, host: str, ms: int) -> None:
        self.hosts[host].clock.ahead_ms += ms
        if ms < 0 and any(driver.process.host.name == host for driver in self._alive()):
            self.world.reach("a clock went back while a driver ran")

    def on_clock_drift(self, host: str, drift: float) -> None:
        self.hosts[host].clock.drift = drift

    def on_disk_full(self, host: str, seconds: float) -> None:
        self.hosts[host].is_full = True
        self.world.after(seconds, lambda: setattr(self.hosts[host], "is_full", False))

    def on_lose_executor(self, which: int) -> None:
        """Loses what an executor has open: its stores, and their locks."""
        driver = self._chosen(which)
        lost: OpenStoreCache | None = driver and driver.process.resources.pop("open stores", None)
        if lost is not None:
            self.world.outside.resources.setdefault("lost", []).append(lost)
            for idle in list(lost._idle.values()):
                idle.store.abandon()

    def on_close_idle_stores(self, which: int) -> None:
        """An executor closes its open stores, as it does when they have been idle for long."""
        driver = self._chosen(which)
        stores: OpenStoreCache | None = driver and driver.process.resources.get("open stores")
        if driver is not None and stores is not None:
            self.world.spawn(driver.process, "open stores", stores.close)

    def on_lose_disk(self, host: str) -> None:
        """A host is replaced by a new one of the same name."""
        for driver in self.drivers:
            if driver.process.host.name == host:
                driver.process.kill()
        shutil.rmtree(self._directory / host, ignore_errors=True)

    def on_sink_away(self, seconds: float) -> None:
        sink = self.sink_of(JOB)
        sink.is_away = True
        self.world.after(seconds, lambda: setattr(sink, "is_away", False))

    def on_commit_faults(self, **shares: float) -> None:
        """From now on commits of the sink's system fail; see `CommitFaults`."""
        for name, share in shares.items():
            setattr(self.commit_faults, name, share)

    def on_rewind(self, parallelism: int, host: str, which: int, *, claim: bool, kills: bool = True) -> None:
        """Goes back to a savepoint, after whatever runs has been ended, or beside it."""
        savepoints = [
            path
            for path in self._snapshots(SnapshotKind.SAVEPOINT)
            if not self._is_disowned(self.auditor.manifests[path])
        ]
        if savepoints:
            self._rewind(savepoints[which % len(savepoints)], parallelism, host, claim=claim, kills=kills)

    def on_go_forward(self, host: str) -> None:
        """Goes to the newest savepoint of a history that the job has left."""
        left = [
            path for path in self._snapshots(SnapshotKind.SAVEPOINT) if self._is_disowned(self.auditor.manifests[path])
        ]
        if left:
            self._rewind(left[-1], 1, host, claim=False, kills=True)

    def _rewind(self, savepoint: str, parallelism: int, host: str, *, claim: bool, kills: bool) -> None:
        for driver in self._alive() if kills else []:
            driver.process.kill()
        chosen = self.auditor.manifests[savepoint]
        self._rewinds.append((self.attempt, chosen.log_position))
        self.commands += 1
        self._pending_restore = {
            "restore_mode": "rewind",
            "restore_id": f"restore-{self.commands}",
            "claim_mode": "claim" if claim else "no_claim",
        }
        location = location_of(URL, savepoint)
        self._start(parallelism, host, location, **self._pending_restore)
        self._rewinding = location

    def _is_disowned(self, manifest: Manifest) -> bool:
        """Whether a rewind has left the history of a snapshot; the sink no longer has the rows of that history."""
        return any(
            manifest.attempt <= attempt and manifest.log_position > position for attempt, position in self._rewinds
        )

    def on_delete_snapshot(self, which: int) -> None:
        """A user deletes a savepoint that the job has not gone back to, or has its own checkpoint since."""
        has_own = any(
            each.attempt == self.attempt and each.kind is SnapshotKind.CHECKPOINT
            for each in self.auditor.manifests.values()
        )
        savepoints = [
            path
            for path in self._snapshots(SnapshotKind.SAVEPOINT)
            if has_own
            or all(location_of(URL, path) != given.restore_from for given in self.control.assignments.values())
        ]
        if savepoints:
            self._delete_savepoint(savepoints[which % len(savepoints)])

    def on_delete_wanted_savepoint(self) -> None:
        """A user deletes the savepoint that a driver is about to go back to for the first time."""
        wanted, driver = self._rewinding, self.drivers[-1] if self.drivers else None
        if not self._pending_restore or wanted is None or driver is None or driver.assignment is not None:
            return
        earlier = [given for (_, attempt), given in self.control.assignments.items() if attempt < self.attempt]
        path = wanted.removeprefix(f"{URL}/")
        if path in self.auditor.manifests and all(given.restore_from != wanted for given in earlier):
            self._delete_savepoint(path)

    def _delete_savepoint(self, path: str) -> None:
        directory = path.rpartition("/")[0] + "/"
        if f"{directory}claim.json" not in self.store.objects:
            self.store.delete(path)
            for each in [each for each in self.store.objects if each.startswith(directory)]:
                self.store.delete(each)

    def on_damage(self, which: int, how: str) -> None:
        """An object of the newest checkpoint is damaged, if an older one is there to go back to."""
        checkpoints = self._snapshots(SnapshotKind.CHECKPOINT)
        if len(checkpoints) < 2 or self.auditor.damaged:
            return
        newest, older = self.auditor.manifests[checkpoints[-1]], self.auditor.manifests[checkpoints[-2]]
        own = sorted({file.path for file in newest.files()} - {file.path for file in older.files()})
        if not own:
            return
        path = checkpoints[-1] if how == "renumber" else own[which % len(own)]
        self.auditor.damaged.add(path)
        stored = self.store.objects[path]
        if how == "remove":
            del self.store.objects[path]
        elif how == "renumber":
            data = _EARLIER.sub(lambda found: b'"log_position":%d' % max(0, int(found[1]) - 1), stored.data, count=1)
            self.store.objects[path] = type(stored)(data, stored.modified_ms)
        else:
            data = stored.data[:-1] if how == "truncate" else bytes([stored.data[0] ^ 1]) + stored.data[1:]
            self.store.objects[path] = type(stored)(data, stored.modified_ms)
        # At once, on an empty disk: later checkpoints would name the damaged file, too, and replace the older ones.
        for driver in self._alive():
            driver.process.kill()
        self.on_lose_disk("c")
        self._start(2, "c", self._hint("latest"))

    def on_watch(self) -> None:
        """From now on durable steps are counted."""
        self._durable = []

    def on_crash_at(self, step: int, victims: str) -> None:
        """Before a durable step the process that takes it is lost, perhaps with others."""
        self._crash = step, victims

    def _end_watch(self) -> None:
        self._steps, self._durable, self._crash = self._durable or [], None, None

    def _crash_now(self, process: Process, name: str) -> None:
        _, victims = self._crash or (0, "itself")
        self._crash = None
        self._kill_others(victims)
        self._strike(process, name, freezes=False)

    def _kill_others(self, victims: str) -> None:
        if victims in {"all drivers", "everything"}:
            for driver in self._alive():
                driver.process.kill()

    def on_idle(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    # The end

    def settle(self) -> None:
        """Mends everything, lets sleepers wake, starts a last attempt on a new host, and checks what is left."""
        world = self.world
        self._keeper_seconds = None
        self._armed.clear()
        self._end_watch()
        self.on_heal()
        self.store.is_away = self.sink_of(JOB).is_away = False
        for host in self.hosts.values():
            host.is_full = host.is_cut_off = host.store_is_away = False
        for driver in self.drivers:
            if driver.is_alive and driver.process.is_frozen:
                self._thaw(driver)
        world.run_until(world.now + WAKING_SECONDS)
        self._check_overtaken()
        self.on_records([number % 6 for number in range(8)])
        parallelism = 1 + world.chance.randrange(4)
        if self.is_timed:
            parallelism = 1  # there all operator state comes together
        self._start(parallelism, "new", self._hint("latest"))
        deadline, starts = world.now + SETTLE_SECONDS, 1
        while world.now < deadline and not self._has_caught_up():
            world.run_until(world.now + STEP_SECONDS)
            if self._has_lost_its_state():
                world.reach("a job lost every checkpoint that it could start from")
                self.auditor.check_log(JOB)
                return
            if not self._runs():
                if starts == STARTS_MAX:
                    break
                starts += 1
                self.on_records([0])  # an earlier attempt may have fired all timers: one must fire in the last attempt
                self._start(parallelism, "new", self._hint("latest"))
        self.auditor.check_log(JOB)
        self._check_rows()
        if self.auditor.findings:
            return
        self._clean_up()

    def _has_lost_its_state(self) -> bool:
        """Whether damage and deletions have left no checkpoint to start from, and the job has said so."""
        if self.drivers[-1].failure != NothingUsableError.code:
            return False
        manifests = self.auditor.manifests
        return bool(self.auditor.damaged) and not any(
            self.auditor.is_whole(path) and not self._is_disowned(manifest) for path, manifest in manifests.items()
        )

    def _clean_up(self) -> None:
        """Lets the clean-up have its time: the age floor, and a pass after it."""
        world = self.world
        self.control.settings = SLOW_SETTINGS
        world.run_until(world.now + AGE_FLOOR_MS / 1000)
        self.on_records([1])
        world.run_until(world.now + 3 * RETENTION_INTERVAL_SECONDS)
        if not self._runs():
            self.auditor.find("the last attempt has ended")
            return
        self.auditor.check_log(JOB)
        self._check_rows()
        if not self.auditor.damaged:
            self.auditor.check_left_over(JOB, retained=SETTINGS.retained_count)
        if alive := [driver.attempt for driver in self._alive()[:-1]]:
            self.auditor.find(f"the attempts {alive} still run beside attempt {self.attempt}")
        self._check_stops()
        if left := self.sink_of(JOB).staged:
            self.auditor.find(f"{len(left)} batches are left staged: {sorted(left)[:3]}")
        for task, error in world.failures:
            self.auditor.find(f"task {task.name} of {task.process.name} failed: {type(error).__name__}: {error}")

    def _check_overtaken(self) -> None:
        opened = {entry.attempt for entry in self.auditor.entries.get(JOB, {}).values()}
        older = [
            driver.attempt for driver in self._alive() if driver.attempt in opened and driver.attempt < max(opened)
        ]
        if older:
            self.auditor.find(f"the attempts {older} still run beside attempt {max(opened)}")

    def _check_stops(self) -> None:
        stops = {
            command.id
            for commands in self.control.commands.values()
            for command in commands
            if command.kind is CommandKind.STOP_WITH_SAVEPOINT
        }
        for command_id in stops & self.control.results.keys():
            location = self.control.results[command_id].location
            if location is not None:
                self.auditor.check_stopped(JOB, location.removeprefix(f"{URL}/"))

    def _has_caught_up(self) -> bool:
        rows, records = self.sink_of(JOB).rows, self.source.records
        if self.is_timed:
            return not wanted_rows(records) - Counter(rows)
        return len(rows) >= len(records)

    def _check_rows(self) -> None:
        sink, records = self.sink_of(JOB), self.source.records
        if self.is_timed:
            self.auditor.compare(
                JOB, wanted_rows(records), judged_rows(sink.rows, records, drained=self._has_drained())
            )
        else:
            self.auditor.check_rows(JOB, sink, records)
        if isinstance(sink, KafkaSinkModel | PostgresSinkModel):
            for sentence in sink.wrong():
                self.auditor.find(sentence)

    def _has_drained(self) -> bool:
        return any(
            command.drain and command.id in self.control.results
            for commands in self.control.commands.values()
            for command in commands
        )

    def _runs(self) -> bool:
        return bool(self.drivers) and self.drivers[-1].is_alive

    def _start(self, parallelism: int, host: str, restore_from: str | None, **restore: Any) -> None:
        self.attempt += 1
        if "restore_mode" not in restore and self._pending_restore and not self._is_restore_carried_out():
            restore, restore_from = self._pending_restore, self._rewinding  # it stays until it is carried out
        elif "restore_mode" not in restore:
            self._pending_restore = {}
        restore |= {"restore_from": restore_from, "restart": self._restart}
        self.control.assign(JOB, self.attempt, parallelism, **restore)
        disk = self._directory / host
        disk.mkdir(exist_ok=True)
        self.drivers.append(
            Driver(
                self.world,
                self.hosts[host],
                JOB,
                self.attempt,
                network=self.network,
                source=self.source,
                sink=self.sink_of(JOB),
                disk=disk,
                parallelism=parallelism,
                is_timed=self.is_timed,
            )
        )

    def _is_restore_carried_out(self) -> bool:
        """Whether a driver that carries the restore out has said that it runs; one may have done so and died before."""
        return any(
            given.restore_id == self._pending_restore["restore_id"] and heard.state is DriverState.RUNNING
            for key, heard in self.control.heard.items()
            if (given := self.control.assignments.get(key)) is not None
        )

    def _hint(self, hint: str) -> str | None:
        """Returns what a control plane would say of the job's own history: its latest report, an older one, nothing."""
        failure = self.drivers[-1].failure if self.drivers else ""
        if self._pending_restore and failure in {RestoreRefusedError.code, OutputWithdrawnError.code}:
            if failure == OutputWithdrawnError.code:
                self.world.reach("a snapshot whose rows were taken back was refused")
            self._pending_restore, self._rewinding = {}, None  # the user has read why, and takes it back
            self._rewinds.pop()
        pending = self._rewinding if self._pending_restore else None
        known = [
            location
            for location, _ in self.control.completed.get(JOB, [])
            if location.removeprefix(f"{URL}/") in self.auditor.manifests
        ]
        if hint == "none" or not known:
            return pending
        return known[-1] if hint == "latest" else known[len(known) // 2]

    def _alive(self) -> list[Driver]:
        return [driver for driver in self.drivers if driver.is_alive]

    def _chosen(self, which: int) -> Driver | None:
        alive = self._alive()
        return alive[which % len(alive)] if alive else None

    def _snapshots(self, kind: SnapshotKind) -> list[str]:
        found = [
            (manifest.checkpoint_id, path) for path, manifest in self.auditor.manifests.items() if manifest.kind is kind
        ]
        return [path for _, path in sorted(found)]

    def _thaw(self, driver: Driver) -> None:
        newer = [
            each for each in self.drivers if (each.attempt > driver.attempt and each.state is not None) or each.is_alive
        ]
        if driver.attempt < self.attempt and newer:
            self.world.reach("a driver woke after a newer attempt had begun")
        self.world.thaw(driver.process)

    def _moment(self, name: str) -> None:
        world = self.world
        self.moments[name] += 1
        process = world.process
        if self._durable is not None and is_durable(name):
            self._durable.append(f"{process.name} {name}")
            if self._crash is not None and self._crash[0] == len(self._durable) - 1:
                self._crash_now(process, name)
        for armed in self._armed:
            if armed.moment != name or (armed.of_newest and process is not self.drivers[-1].process):
                continue
            armed.nth -= 1
            if armed.nth > 0:
                continue
            self._armed.remove(armed)
            if armed.away_seconds:
                self.on_store_away(armed.away_seconds)
                return
            if armed.cuts_off:
                self.on_host_cut_off(process.host.name, LOST_SECONDS)
            self._strike(process, name, freezes=armed.freezes)
            return

    def _strike(self, process: Process, name: str, *, freezes: bool) -> None:
        """Ends or stops the process that is at a moment."""
        world = self.world
        if not self._is_control(process) and name in AT_MOMENTS:
            world.reach(AT_MOMENTS[name])
        if not freezes:
            world.trace.note(world, f"killed at {name}")
            process.kill()
            if self._is_control(process):
                raise ProcessEndedError  # its transaction is rolled back
            world.wait(None)  # a driver's task is never resumed, and nothing of it is unwound
        if self._may_stop_here():
            world.trace.note(world, f"frozen at {name}")
            world.freeze(process)
            world.wait(0.0)

    def _is_control(self, process: Process) -> bool:
        return process is self.control_process

    def _may_stop_here(self) -> bool:
        """Whether a task may wait here; not within a transaction, as others would wait for its locks."""
        return True

    def outcome(self) -> Outcome:
        """How the history went."""
        return Outcome(
            findings=self.auditor.findings,
            reached=self.world.reached,
            digest=self.world.trace.digest,
            seconds=self.world.now,
            switches=self.world.switches,
            rows=sum(len(sink.rows) for sink in self.sinks.values()),
            moments=self.moments,
            durable=self._steps,
        )


def play(
    history: History,
    trace: Trace | None = None,
    patches: list[tuple[Any, str, object]] | None = None,
) -> Outcome:
    """Plays a history in a world of its own, and has it judged."""
    environment = Environment(history, trace or Trace())
    with ExitStack() as stack:
        stack.callback(environment.close)
        further = [*watching(environment.world), *(patches or ())]
        stack.enter_context(played(environment.world, environment.store, further))
        try:
            environment.play()
        finally:
            environment.world.close()
    return environment.outcome()

"""The faults of a soak: each is brought about, held for a while, and taken away again."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import psutil

from keyscale.client.errors import ControlPlaneUnreachableError, RefusedError
from keyscale.client.request_paths import job_path
from keyscale.clock import now_ms
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.state.documents.log_entries import BatchCommitted
from tests.support.servers.faulty_s3_server import Fault
from tests.support.servers.host_clock import (
    clock_library,
    clock_variables,
    moving_modules,
    set_clock,
    sleeping_modules,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from keyscale.db.embedded import EmbeddedPostgres
    from tests.soak.soak_objects import JobObjects
    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.faulty_s3_server import FaultyS3Server
    from tests.support.servers.kafka_broker import Broker

    Processes: TypeAlias = Callable[[], list[psutil.Process]]

HOUR_SECONDS = 3600
DISK_BYTES = 256 << 20
PROCESS_SECONDS = 600.0  # on a busy host a driver may take minutes to be there again
EFFECT_SECONDS = 600.0
CALM_SECONDS = 90.0
FULL = "No space left on device"


class SmallDisk:
    """A disk of its own for local state, which can be filled. Needs the right to mount.

    Args:
        path: The directory that it becomes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(path)]
        self.is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Leaves no free block on it for a while."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        try:
            yield
        finally:
            filler.unlink()


JAVA = """#!/bin/sh
{exports}
export PYTHONPATH={modules}:$PYTHONPATH
exec {java} "$@"
"""


class HostClock:
    """The clock of a driver in Python and of its workers, which can be moved. Needs Debian's faketime.

    Not that of the JVM, which asks for the time so often that it would hardly do anything else.

    Args:
        home: A directory of its own. It becomes the JAVA_HOME of the drivers.
        has_kafka: They use Kafka's client, which waits by the host's clock: only Python's is moved, without faketime.
    """

    def __init__(self, home: Path, *, has_kafka: bool) -> None:
        self._path = home / "clock"
        library = clock_library()
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        self.variables: dict[str, str] = {}
        if library and java:
            (home / "bin").mkdir(parents=True)
            script = home / "bin" / "java"
            moved: dict[str, str] = {}
            if has_kafka:
                modules = moving_modules(home / "modules", self._path)
            else:
                modules = sleeping_modules(home / "modules")
                moved = {**clock_variables(library, self._path), "FAKETIME_ONLY_CMDS": Path(sys.executable).name}
            exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in moved.items())
            script.write_text(JAVA.format(exports=exports, modules=modules, java=java))
            script.chmod(0o755)
            self.variables = {"JAVA_HOME": str(home)}
            set_clock(self._path, 0)

    @property
    def is_there(self) -> bool:
        return bool(self.variables)

    @contextlib.contextmanager
    def moved(self, seconds: int) -> Iterator[None]:
        """Has the clock be so many seconds before or after the host's for a while."""
        set_clock(self._path, seconds)
        try:
            yield
        finally:
            set_clock(self._path, 0)


@dataclass(slots=True)
class SoakRig:
    """All that faults act upon.

    Attributes:
        job_id: The job.
        objects: The job's objects in the store.
        chance: Chooses among processes.
        sink_database: The server of the job's sink, if it may be killed.
        fired: How often each fault has had its effect, by name.
        present: The fault or change that is there at the moment; empty if there is none.
        undisturbed_since: The end of the last one, as time.monotonic() has it.
    """

    control_plane: RunningControlPlane
    s3: FaultyS3Server
    disk: SmallDisk
    clock: HostClock | None
    job_id: str
    objects: JobObjects
    chance: random.Random
    broker: Broker | None = None
    sink_database: EmbeddedPostgres | None = None
    fired: dict[str, int] = field(default_factory=dict)
    present: str = ""
    undisturbed_since: float = 0.0

    @property
    def job_directory(self) -> Path:
        """The directory of all that the job's attempts keep on this host."""
        return self.control_plane.home / "runs" / self.job_id

    def faults(self) -> dict[str, Callable[[], AbstractContextManager[None]]]:
        """Returns the faults that are possible here, by name."""
        found: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "driver killed": partial(self._run_killed, self._driver),
            "driver stopped": partial(self._stopped, self._driver),
            "executor killed": partial(self._run_killed, self._executor),
            "executor stopped": partial(self._stopped, self._executor),
            "worker killed": partial(self._killed, self._worker),
            "worker stopped": partial(self._stopped, self._worker),
            "control plane killed": self._without_control_plane,
            "control plane stopped": partial(self._stopped, self._control_plane),
            "database killed": partial(self._killed, self._database),
            "store killed": self._without_store,
        }
        found |= {f"store: {fault}": partial(self._faulty_store, fault) for fault in Fault}
        if self.broker is not None:
            found |= {
                "broker killed": partial(self._without_broker, self.broker),
                "broker stopped": partial(self._stopped, self._broker),
            }
        if self.sink_database is not None:
            found |= {
                "sink's database killed": partial(self._without_sink_database, self.sink_database, signal.SIGKILL),
                "sink's database restarted": partial(self._without_sink_database, self.sink_database, signal.SIGINT),
            }
        if self.disk.is_mounted:
            found["disk full"] = self._full_disk
        if self.clock is not None and self.clock.is_there:
            found |= {
                "clock an hour on": partial(self._moved_clock, self.clock, HOUR_SECONDS),
                "clock an hour back": partial(self._moved_clock, self.clock, -HOUR_SECONDS),
            }
        return found

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Returns the processes by kind; none of a kind that is being replaced."""
        return {
            "control plane": self._control_plane(),
            "driver": self._driver(),
            "executor": self._executor(),
            "worker": self._workers(),
        }

    @contextlib.contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Brings a fault about, takes it away at the end, and counts it."""
        with self.disturbed(name), self.faults()[name]():
            yield
        self.fired[name] = self.fired.get(name, 0) + 1

    @contextlib.contextmanager
    def disturbed(self, name: str) -> Iterator[None]:
        """Says what disturbs the job meanwhile."""
        before, self.present = self.present, f"{self.present}, {name}" if self.present else name
        try:
            yield
        finally:
            self.present, self.undisturbed_since = before, time.monotonic()

    def is_calm(self) -> bool:
        """Whether nothing has disturbed the job for a minute and a half."""
        return not self.present and time.monotonic() - self.undisturbed_since > CALM_SECONDS

    @contextlib.contextmanager
    def _killed(self, which: Processes) -> Iterator[None]:
        processes = _found(which)
        for process in processes:
            process.kill()
        yield
        wait_until(lambda: not _running(processes), PROCESS_SECONDS, what="the end of the killed process")

    @contextlib.contextmanager
    def _run_killed(self, which: Processes) -> Iterator[None]:
        """Kills a process of the job's run, which none of the others may outlive."""
        run = [
            process for executor in _found(self._executor) for process in (executor, *executor.children(recursive=True))
        ]
        with self._killed(which):
            yield
        wait_until(lambda: not _running(run), PROCESS_SECONDS, what="the end of the processes of the killed run")

    @contextlib.contextmanager
    def _stopped(self, which: Processes) -> Iterator[None]:
        processes = _found(which)
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # others may have given it up and killed it
                    process.resume()

    @contextlib.contextmanager
    def _without_control_plane(self) -> Iterator[None]:
        self.control_plane.kill()
        yield
        self.control_plane.start_again()

    @contextlib.contextmanager
    def _without_store(self) -> Iterator[None]:
        self.s3.stop()
        yield
        self.s3.start()

    @contextlib.contextmanager
    def _faulty_store(self, fault: Fault) -> Iterator[None]:
        before, self.s3.fault = self.s3.hits, fault
        try:
            yield
            wait_until(lambda: self.s3.hits > before, 60, what=f"a request that meets the fault: {fault}")
        finally:
            self.s3.fault = None

    @contextlib.contextmanager
    def _without_broker(self, broker: Broker) -> Iterator[None]:
        for process in _found(self._broker):
            process.send_signal(signal.SIGKILL)
        yield
        broker.control("start")

    @contextlib.contextmanager
    def _without_sink_database(self, database: EmbeddedPostgres, how: signal.Signals) -> Iterator[None]:
        pid = (database.root / "data" / "postmaster.pid").read_text().partition("\n")[0]
        first = psutil.Process(int(pid))
        all_of_it = [first, *first.children(recursive=True)]
        first.send_signal(how)
        yield
        wait_until(lambda: not _running(all_of_it), PROCESS_SECONDS, what="the end of the sink's database")
        database.start()

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        before = self._complaints()

        def is_felt() -> bool:
            return self._complaints() > before

        with self.disk.full():
            yield
            wait_until(
                lambda: self._complaints() > before, EFFECT_SECONDS, what="a driver that finds the disk full", poll=0.5
            )

    @contextlib.contextmanager
    def _moved_clock(self, clock: HostClock, seconds: int) -> Iterator[None]:
        def is_moved() -> bool:
            entry = self.objects.last_entry()
            moved_ms = 1000 * seconds
            return isinstance(entry, BatchCommitted) and (
                abs(entry.committed_at_ms - now_ms() - moved_ms) < abs(moved_ms) / 2
            )

        with clock.moved(seconds):
            yield
            wait_until(is_moved, EFFECT_SECONDS, what="a batch at the moved time", poll=0.5)

    def _complaints(self) -> int:
        """Returns how often the drivers' logs tell of a full disk."""
        logs = self.job_directory.glob("*/driver.log")
        return sum(log.read_text(errors="replace").count(FULL) for log in logs)

    def _control_plane(self) -> list[psutil.Process]:
        return [psutil.Process(self.control_plane.process.pid)]

    def _database(self) -> list[psutil.Process]:
        """The first process of the control plane's PostgreSQL, with which the others end."""
        pid = (self.control_plane.home / "postgres" / "data" / "postmaster.pid").read_text().partition("\n")[0]
        return [psutil.Process(int(pid))]

    def _driver(self) -> list[psutil.Process]:
        try:
            attempt = self.control_plane.api.get(job_path(self.job_id))["status"]["attempt"]
        except (RefusedError, ControlPlaneUnreachableError):  # its database starts again, or it does
            return []
        pid = attempt["pid"] if attempt else None  # once the driver has ended, it may be another process's number
        return [each for each in processes_of(self.control_plane.home) if each.pid == pid]

    def _executor(self) -> list[psutil.Process]:
        """The parent of the driver in Python, which is the executor, too; not of a driver that it has left behind."""
        parents = [driver.parent() for driver in self._driver()]
        return [parent for parent in parents if parent and "SparkSubmit" in _command(parent)]

    def _workers(self) -> list[psutil.Process]:
        """The Python workers, of which each is a child of a daemon."""
        children = [each for executor in self._executor() for each in executor.children(recursive=True)]
        daemons = [each for each in children if "pyspark" in _command(each)]
        return [each for daemon in daemons for each in daemon.children() if each not in self._driver()]

    def _worker(self) -> list[psutil.Process]:
        workers = self._workers()
        return [self.chance.choice(workers)] if workers else []

    def _broker(self) -> list[psutil.Process]:
        assert self.broker is not None
        marker = self.broker.directory
        return [each for each in psutil.process_iter() if _is_java_of(each, marker)]


def _running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those that have not ended; a parent may not have noticed an end yet."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _found(which: Processes) -> list[psutil.Process]:
    """Waits until there is such a process: the last fault may have ended the one before."""

    def look() -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return which()
        return []

    found: list[psutil.Process] = wait_until(look, PROCESS_SECONDS, what="a process to be hit")
    return found


def _is_java_of(process: psutil.Process, marker: str) -> bool:
    command = _command(process)
    return "java" in command.partition(" ")[0] and marker in command


def _command(process: psutil.Process) -> str:
    """Returns a process's command line; nothing if it has ended, though its parent has not noticed yet."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline())
    return ""

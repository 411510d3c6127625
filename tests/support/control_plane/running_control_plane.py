"""A real control plane for tests: the process that users start, on a directory that vanishes afterwards."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.client.errors import RefusedError
from keyscale.client.keyscale import Keyscale
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from tests.support.servers.postgres import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RunningControlPlane:
    """A control plane that a test may talk to, kill and start again."""

    def __init__(self, process: ControlPlaneProcess) -> None:
        self.process = process
        self.home = process.home
        self.api = Keyscale(connection=process.connection)

    def kill(self) -> None:
        """Kills it as a crash would; drivers and the database go on."""
        self.process.kill()

    def start_again(self, port: int | None = None) -> None:
        """Starts another one on the same home, and on the same port unless another one is given."""
        if port is not None:
            self.process.port = port
            self.api.close()
        self.process.start()
        if port is not None:
            self.api = Keyscale(connection=self.process.connection)

    @property
    def url(self) -> str:
        return self.process.connection.url

    def leads(self) -> bool:
        """Whether it is the leader, by its own account."""
        try:
            return bool(self.api.get("/health")["role"] == "leader")
        except RefusedError:  # nobody leads at the moment
            return False

    def stop_by_signal(self) -> None:
        """Stops it as a hung host would, until `go_on`."""
        psutil.Process(self.process.pid).suspend()

    def go_on(self) -> None:
        psutil.Process(self.process.pid).resume()


@contextmanager
def running_control_plane(settings: Mapping[str, str] | None = None) -> Iterator[RunningControlPlane]:
    """Starts a control plane on a fresh home; ends it and everything that it has started afterwards.

    As root, jobs do not run as users of their own unless the settings say so: tests' directories are root's alone.
    Spare drivers cost as much processor time as drivers: few tests have them.
    """
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-home-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "home"
        plain = {"KEYSCALE_JOB_USERS": "off", "KEYSCALE_SPARE_DRIVERS": "0"}
        process = ControlPlaneProcess(home, free_port(), {**plain, **(settings or {})})
        try:
            process.start()
            running = RunningControlPlane(process)
            try:
                yield running
            finally:
                running.api.close()
        finally:
            process.stop()
            end_processes(processes_of(home))


@contextmanager
def replicas(settings: Mapping[str, str] | None = None) -> Iterator[tuple[RunningControlPlane, RunningControlPlane]]:
    """Starts two control planes on one database and one store; the first one leads.

    Args:
        settings: Further settings of the first one.
    """
    with running_postgres() as postgres, tempfile.TemporaryDirectory(prefix="keyscale-store-") as store:
        shared = {"KEYSCALE_DATABASE_URL": postgres.url, "KEYSCALE_STORE_URL": Path(store).as_uri()}
        with (
            running_control_plane({**shared, **(settings or {})}) as first,
            running_control_plane(shared) as second,
        ):
            yield first, second

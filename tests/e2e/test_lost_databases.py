"""The guide's commands for a database that is lost, and for an older backup, on real control planes and drivers."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import keyscale.api.cli.process
from keyscale.api.cli.process import free_port
from keyscale.db.embedded import EmbeddedPostgres, programs
from tests.support.control_plane import counts_job
from tests.support.control_plane.counts_job import KEYS, CountsJob
from tests.support.control_plane.readme_job import paste
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.repository import DOCS
from tests.support.servers.postgres import create_database, running_postgres
from tests.support.servers.s3_server import running_s3_server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(5400), pytest.mark.xdist_group("platform")]

GUIDE = DOCS / "guide" / "backup.md"
START_SECONDS = 1200.0  # until a new driver runs, on a busy host
STORE = "s3://bucket/keyscale"
"""The guide's store, which the tests replace by their own."""


def commands(heading: str, word: str) -> str:
    """Returns the commands with a word below a heading of the guide, as they are printed."""
    section = GUIDE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].partition("\n## ")[0]
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if word in block]
    assert len(found) == 1, (heading, word)
    return textwrap.dedent(found[0])


@dataclass(slots=True)
class Installation:
    """A control plane with its database and its store, in the words of the guide.

    Attributes:
        store_url: The store, which outlives the database.
        database_url: The database; empty for the embedded one.
    """

    control_plane: RunningControlPlane
    directory: Path
    store_url: str
    database_url: str

    @property
    def embedded(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(self.control_plane.home / "postgres")

    def paste(self, text: str) -> str:
        """Runs commands of the guide, with this installation's store and the name of a job."""
        return paste(
            text.replace(STORE, self.store_url),
            self.control_plane,
            self.directory,
            KEYSCALE_HOME=str(self.control_plane.home),
            KEYSCALE_DATABASE_URL=self.database_url,
            PATH=f"{programs()}{os.pathsep}{os.environ['PATH']}",
        )

    def back_up(self) -> None:
        if self.database_url:
            self.paste(commands("What to back up", "pg_dump"))
            return
        self.control_plane.process.stop()
        self.paste(commands("What to back up", "cp -a"))
        self.control_plane.start_again()

    def go_back(self) -> None:
        """Restores the backup, while drivers run that it does not know."""
        self.control_plane.process.stop()
        self.paste(commands("A backup that is older than the jobs", "pg_restore" if self.database_url else "cp -a"))
        self.control_plane.start_again()

    def lose_database(self) -> None:
        """Starts a control plane on a new database, on the same host or as on another one."""
        self.control_plane.kill()
        if self.database_url:
            self.database_url = create_database(self.database_url, "new")
            settings = {**self.control_plane.process.settings, "KEYSCALE_DATABASE_URL": self.database_url}
            self.control_plane.process.settings = settings
            (self.control_plane.home / "token").unlink()
            self.control_plane.start_again(free_port())
        else:
            self.embedded.stop()
            shutil.rmtree(self.embedded.root)
            self.control_plane.start_again()

    def recover(self) -> None:
        """Rebuilds the jobs that the store knows, and the database does not."""
        printed = self.paste(commands("A lost database", "recover"))
        assert "would be recovered" in printed

    def start_job(self, name: str) -> None:
        start = re.search(r"`(\./keyscale jobs start JOB)`", GUIDE.read_text(encoding="utf-8"))
        assert start is not None
        self.paste(start[1].replace("JOB", name))


@contextmanager
def installation(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Starts a control plane.

    Args:
        kind: "embedded": with the embedded database and a local store; "servers": with a PostgreSQL and an S3 server.
    """
    monkeypatch.setattr(counts_job, "SECONDS", START_SECONDS)
    monkeypatch.setattr(keyscale.api.cli.process, "START_TIMEOUT_S", START_SECONDS)
    with ExitStack() as exits:
        if kind == "embedded":
            store_url, database_url = (directory / "store").as_uri(), ""
            settings = {"KEYSCALE_STORE_URL": store_url}
        else:
            server = exits.enter_context(running_s3_server())
            for variable, value in server.variables.items():
                monkeypatch.setenv(variable, value)
            store_url = f"s3://{server.new_bucket()}/keyscale"
            database_url = create_database(exits.enter_context(running_postgres()).url, "old")
            settings = {"KEYSCALE_STORE_URL": store_url, "KEYSCALE_DATABASE_URL": database_url}
        control_plane = exits.enter_context(running_control_plane(settings))
        yield Installation(control_plane, directory, store_url, database_url)


KINDS = pytest.mark.parametrize("kind", ["embedded", "servers"])


def running_job(here: Installation, name: str) -> CountsJob:
    job = CountsJob(lambda: here.control_plane.api, here.directory / name, name)
    job.create(1)
    job.act("start")
    job.deliver()
    job.wait_for_all()
    return job


def driver_of(job: CountsJob) -> psutil.Process:
    """Returns the driver of the job's latest attempt."""
    return psutil.Process(job.show()["status"]["attempt"]["pid"])


def check_goes_on(job: CountsJob, attempt: int, old_driver: psutil.Process) -> None:
    """Waits for rows of a later attempt; each record counts once, and the old driver ends."""
    job.deliver()
    job.wait_for_all()
    wait_until(lambda: not _runs(old_driver), START_SECONDS, what="the end of the old driver")
    job.deliver()
    job.wait_for_all()
    assert job.show()["status"]["attempt"]["number"] > attempt

    def counted() -> Any:
        return job.show()["metrics"]["input_records"] == job.files * len(KEYS)

    wait_until(counted, what=f"{job.files * len(KEYS)} records read since the job was created")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@KINDS
def test_a_job_is_rebuilt_after_its_database_was_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installation(kind, tmp_path, monkeypatch) as here:
        job = running_job(here, "visits")
        attempt, driver = job.show()["status"]["attempt"]["number"], driver_of(job)
        here.lose_database()
        assert here.control_plane.api.get("/v1/jobs")["jobs"] == []
        job.deliver()
        job.wait_for_all()  # the old driver runs on
        here.recover()
        shown = job.show()
        assert (shown["id"], shown["status"]["state"]) == (job.id, "STOPPED")
        here.start_job("visits")
        check_goes_on(job, attempt, driver)


@KINDS
def test_jobs_go_on_from_an_older_backup_beside_drivers_that_it_does_not_know(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installation(kind, tmp_path, monkeypatch) as here:
        job = running_job(here, "visits")
        here.back_up()
        assert job.ended(job.rescale(2))["status"] == "COMPLETED"
        younger = running_job(here, "younger")
        attempt, driver, younger_driver = job.show()["status"]["attempt"]["number"], driver_of(job), driver_of(younger)
        here.go_back()
        check_goes_on(job, attempt, driver)
        assert job.show()["spec"]["parallelism"] == 1
        assert [each["name"] for each in here.control_plane.api.get("/v1/jobs")["jobs"]] == ["visits"]
        here.recover()
        here.start_job("younger")
        check_goes_on(younger, 1, younger_driver)

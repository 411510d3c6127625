"""A spare driver takes a start, a restart after a kill, and an upgrade; every number is right."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.launching.isolation import owner_of
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.counts_job import SECONDS, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.drivers.driver_process import sink_rows
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]

USERS = pytest.param(
    "50000-50999", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
)


SECRET, FILE_BYTES_MAX = "of-the-spare-alone", 5 << 30
PROGRAM = """
import hashlib, resource
from typing import Any
from keyscale import FileSink, KeyedProcessFunction, Secret, StreamEnvironment

def seen(where: str, value: str) -> str:
    print(f"{where} has {value}", flush=True)
    return hashlib.sha256(value.encode()).hexdigest()

class Reads(KeyedProcessFunction):
    def __init__(self, secret: Secret, of_script: str) -> None:
        self.secret, self.of_script = secret, of_script

    def process_element(self, row: Any, context: Any) -> Any:
        file_bytes_max, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield context.current_key, self.of_script, seen("the worker", self.secret.reveal()), file_bytes_max

env = StreamEnvironment.current()
secret = Secret("SPARE")
rows = env.stream(env.spark.readStream.schema("key string").json(env.parameters["input"]))
output = {"key": "string", "script": "string", "worker": "string", "file_bytes_max": "bigint"}
read = rows.key_by("key").process(Reads(secret, seen("the script", secret.reveal())), output=output).uid("read")
read.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
"""


def taken(home: Path, job: str) -> list[str]:
    """Returns the spare of each attempt, in order; empty: none."""
    runs = sorted((home / "runs" / job).glob("[1-9]*"), key=lambda run: int(run.name))
    return [json.loads((run / "process.json").read_text()).get("spare", "") for run in runs]


def waiting(home: Path, job: str = "none") -> Path:
    """Waits for a warm spare without a run; returns its directory."""

    def look() -> Path | None:
        ready = (file.parent for file in home.glob("spares/*/ready"))
        return next((spare for spare in ready if spare.name not in taken(home, job)), None)

    return wait_until(look, SECONDS, what="a warm spare")


@pytest.mark.parametrize("users", ["off", USERS])
def test_a_spare_takes_the_next_start_of_a_job(users: str) -> None:
    with running_control_plane({"KEYSCALE_JOB_USERS": users, "KEYSCALE_SPARE_DRIVERS": "1"}) as control_plane:
        home = control_plane.home
        directory = home.parent / "jobs"
        directory.mkdir(mode=0o755)
        counts = CountsJob(lambda: control_plane.api, directory / "counts")
        counts.output.mkdir()
        counts.output.chmod(0o777)
        counts.create(1, parallelism=2)
        if users == "off":
            waiting(home)
        counts.deliver()
        counts.act("start")
        counts.wait_for_all()
        spare = waiting(home, counts.id)
        assert owner_of(spare / "work") == owner_of(home / "runs" / counts.id / "state"), "it is of the job's user"

        psutil.Process(counts.show()["status"]["attempt"]["pid"]).kill()
        counts.deliver()
        counts.wait_for_all()
        waiting(home, counts.id)
        change = counts.ended(counts.update(2))
        assert (change["status"], change["failure"]) == ("COMPLETED", None)
        counts.wait_for_all()

        first, *later = taken(home, counts.id)
        assert bool(first) is (users == "off"), "a new job with a user of its own starts without a spare"
        assert (len(later), all(later)) == (2, True)
        log = (home / "runs" / counts.id / "2" / "driver.log").read_text()
        assert "the spare driver has its run" in log
        assert "warm after" not in log, "the log begins with the run"
        counts.act("stop")
        wait_until(lambda: counts.show()["status"]["state"] == "STOPPED", SECONDS, what="the stop")
        control_plane.process.stop()
        left = [process for process in psutil.process_iter() if str(home / "spares") in _work_of(process)]
        wait_until(lambda: not [each for each in left if each.is_running()], what="the end of the spares")


@pytest.mark.parametrize("users", ["off", USERS])
def test_a_job_that_takes_a_spare_has_its_secret_and_its_quota_and_its_log_is_masked(users: str) -> None:
    settings = {"KEYSCALE_JOB_USERS": users, "KEYSCALE_SPARE_DRIVERS": "1", "KEYSCALE_JOB_QUOTA_FILE": "5g"}
    with running_control_plane({**settings, f"{JOB_SECRET_PREFIX}SPARE": SECRET}) as control_plane:
        api, home = control_plane.api, control_plane.home
        directory = home.parent / "jobs"
        for name, mode in (("", 0o755), ("input", 0o755), ("output", 0o777)):
            (directory / name).mkdir()
            (directory / name).chmod(mode)
        (directory / "reads.py").write_text(PROGRAM)
        (directory / "input" / "0.json").write_text('{"key": "a"}\n{"key": "b"}\n')
        parameters = {"input": str(directory / "input"), "output": str(directory / "output")}
        artifact = upload_file(api, directory / "reads.py")["id"]
        body = with_spec(name="reads", artifact_id=artifact, parameters=parameters, secrets=["SPARE"], parallelism=2)
        job = api.post("/v1/jobs", body)["id"]

        def wait_for_rows(number: int) -> list[dict[str, object]]:
            wait_until(lambda: len(sink_rows(directory / "output")) == number, SECONDS, what=f"{number} rows")
            return sink_rows(directory / "output")

        spare = waiting(home) if users == "off" else None
        api.post("/v1/jobs/reads/start")
        wait_for_rows(2)
        if spare is None:  # only a running job has a spare of its user
            waiting(home, job)
            psutil.Process(api.get("/v1/jobs/reads")["status"]["attempt"]["pid"]).kill()
            (directory / "input" / "1.json").write_text('{"key": "c"}\n')
            wait_for_rows(3)
        assert taken(home, job)[-1], "no spare was taken"
        rows = sink_rows(directory / "output")
        digest = hashlib.sha256(SECRET.encode()).hexdigest()
        assert {(row["script"], row["worker"], row["file_bytes_max"]) for row in rows} == {
            (digest, digest, FILE_BYTES_MAX)
        }
        log = (home / "runs" / job / str(len(taken(home, job))) / "driver.log").read_text()
        assert "the script has *****" in log
        assert "the worker has *****" in log
        texts = (home.glob("runs/*/*/driver.log*"), home.glob("spares/*/driver.log*"))
        assert not any(SECRET in file.read_text() for files in texts for file in files)


def _work_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("KEYSCALE_WORK_DIR", "")
    except psutil.Error:
        return ""

"""`./keyscale bench control-plane`: what idle running jobs cost the control plane."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from bench.api_rows import fill
from bench.control_plane import cpu_seconds, started
from bench.idle_drivers import ATTEMPT, job_id
from bench.measure import CHECKOUT, ContenderFailedError
from bench.table import Table, count, decimal
from keyscale.clock import now_ms
from keyscale.db.embedded import EmbeddedPostgres
from keyscale.jobs.protocol.specification import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from keyscale.api.cli.process import ControlPlaneProcess

WARM_UP_S = 20
WARM_UP_S_PER_JOB = 0.05  # a new leader looks at each job once
TIMEOUT_S = 60.0
CANCELS = 10
READS_PER_S = 50
TARGET_CORES = 0.5
TARGET_READ_MS = 5
TARGET_SCRAPE_MS = 200
TARGET_CANCEL_MS = 1000
_CHECKPOINTS = 20
_HEARTBEATS = re.compile(
    r'^keyscale_requests_total\{[^}]*route="/driver/heartbeat"[^}]*status="200"\} (\S+)$', re.MULTILINE
)

# What `fill` has written becomes the history of jobs that run.
_RUN = (
    "UPDATE revisions SET spec = CAST(:spec AS jsonb) || spec",
    """UPDATE attempts SET stage = 'ACTIVE', reaped = false, ended_at_ms = NULL, revision = 3, attached_at_ms = :now,
           assigned_at_ms = :now, running_at_ms = :now, launched_at_ms = :now,
           caught_up_at_ms = :now, settled_at_ms = :now, launched_on = :place, pid = :pid,
           host = :host, token_sha256 = encode(sha256(convert_to('driver-' || job_id, 'UTF8')), 'hex')""",
    """UPDATE jobs SET desired = 'RUNNING', status = 'RUNNING', revision = 3, started_at_ms = :now""",
    "DELETE FROM heartbeats",
)


@dataclass(frozen=True, slots=True)
class RunningJobSizes:
    """The size of the measurement.

    Attributes:
        seconds: How long each number of jobs is measured, and then with scrapes, and with reads.
        cores: The cores of the machine for everything.
    """

    seconds: int
    cores: int


def run_running_jobs(numbers: Sequence[int], sizes: RunningJobSizes, say: Callable[[str], None]) -> Iterator[Table]:
    """Measures a control plane with each number of idle jobs."""
    table = Table(
        "idle running jobs on one control plane",
        (
            "jobs",
            "reports/s",
            "control plane cores",
            "PostgreSQL cores",
            "CPU ms per read",
            "CPU ms per scrape",
            "scrape p50 ms",
            "cancel p50 ms",
            "cancel worst ms",
        ),
    )
    for number in numbers:
        say(f"{number} jobs")
        table.add(count(number), *_row(number, sizes, say))
    table.notes.append(
        f"targets: {TARGET_CORES} cores at 1,000 jobs, {TARGET_READ_MS} ms per read, {TARGET_SCRAPE_MS} ms per scrape,"
        f" {TARGET_CANCEL_MS} ms to cancel"
    )
    table.notes.append(
        "reports/s: heartbeats that were answered; a ninth of the jobs unless the machine is too busy for the stand-ins"
    )
    table.notes.append(
        "cores: processor seconds per second; a read is GET /v1/jobs/{id}, 50 per second; a scrape is GET /metrics,"
        " once a second"
    )
    table.notes.append("cancel: from the request to the end of the attempt, after which its processes are killed")
    yield table


def _row(number: int, sizes: RunningJobSizes, say: Callable[[str], None]) -> list[str]:
    # Not below the benchmark's root: as root, PostgreSQL runs as another user, who may not enter private directories.
    with (
        tempfile.TemporaryDirectory(prefix="keyscale-bench-", ignore_cleanup_errors=True) as directory,
        ExitStack() as running,
    ):
        home = Path(directory) / "home"
        control_plane = started(home, {"KEYSCALE_ADDRESS_REQUESTS_PER_SECOND": "0"}, running)
        drivers = running.enter_context(_waiting_drivers(control_plane.url, number))
        _begin_jobs(home, number, drivers.pid)
        _go(drivers)
        time.sleep(WARM_UP_S + WARM_UP_S_PER_JOB * number)
        reported, began_s = _reports(control_plane), time.monotonic()
        idle = _cores(control_plane, lambda: time.sleep(sizes.seconds))
        reports_per_s = (_reports(control_plane) - reported) / (time.monotonic() - began_s)
        say(f"  {idle}, {reports_per_s:.0f} reports/s")
        scrapes_ms: list[float] = []
        scraping = _cores(control_plane, lambda: scrapes_ms.extend(_scrape(control_plane, sizes.seconds)))
        say(f"  with scrapes: {scraping}")
        reading = _cores(control_plane, lambda: _read(control_plane, number, sizes.seconds))
        say(f"  with reads: {reading}")
        took = [_cancel_ms(control_plane, job_id(each + 1)) for each in range(CANCELS)]
        if drivers.poll() is not None:
            raise ContenderFailedError("the stand-ins for drivers have ended")
    scrape_ms = 1000 * (scraping["the control planes"] - idle["the control planes"])
    read_ms = 1000 * (reading["the control planes"] - idle["the control planes"]) / READS_PER_S
    return [
        decimal(reports_per_s),
        decimal(idle["the control planes"], 2),
        decimal(idle["PostgreSQL"], 2),
        decimal(read_ms),
        decimal(scrape_ms),
        decimal(statistics.median(scrapes_ms)),
        decimal(statistics.median(took)),
        decimal(max(took)),
    ]


@contextmanager
def _waiting_drivers(url: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the process of the stand-ins for drivers.

    It waits for a line on its input. It leads a session, as the supervisor of a run does.
    """
    path = os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "bench.idle_drivers", url, str(number)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _go(drivers: subprocess.Popen[bytes]) -> None:
    if drivers.stdin is not None:
        drivers.stdin.write(b"go\n")
        drivers.stdin.flush()


def _begin_jobs(home: Path, number: int, pid: int) -> None:
    """Writes jobs that run, with one process as the driver of each."""
    registered = json.dumps({"pid": pid, "started_at_s": psutil.Process(pid).create_time()})
    for each in range(1, number + 1):
        directory = home / "runs" / job_id(each) / str(ATTEMPT)
        directory.mkdir(parents=True)
        (directory / "process.json").write_text(registered)
    host, at_ms = platform.node(), now_ms()
    spec = JobSpec(artifact_id="artifact-0").model_dump_json()
    values = {"now": at_ms, "host": host, "place": f"{host}:{home}", "pid": pid, "spec": spec}
    engine = create_engine(make_url(EmbeddedPostgres(home / "postgres").url).set(drivername="postgresql+psycopg"))
    with Session(engine) as session, session.begin():
        fill(session, jobs=number, checkpoints=_CHECKPOINTS, subtasks=2, attempts=ATTEMPT, events=20, now_ms=at_ms)
        for statement in _RUN:
            session.execute(text(statement), values)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


def _cores(control_plane: ControlPlaneProcess, action: Callable[[], None]) -> Mapping[str, float]:
    """Returns the processor seconds per second of each side during an action."""
    before, began_s = cpu_seconds([control_plane]), time.monotonic()
    action()
    after, took_s = cpu_seconds([control_plane]), time.monotonic() - began_s
    return {name: (after[name] - before[name]) / took_s for name in before}


def _read(control_plane: ControlPlaneProcess, number: int, seconds: int) -> None:
    """Reads the jobs in turn, at a steady rate."""
    with _client(control_plane) as client:
        begin_s = time.monotonic()
        for each in range(READS_PER_S * seconds):
            time.sleep(max(0.0, begin_s + each / READS_PER_S - time.monotonic()))
            client.get(f"/v1/jobs/{job_id(each % number + 1)}").raise_for_status()


def _reports(control_plane: ControlPlaneProcess) -> float:
    """Returns how many heartbeats the control plane has answered."""
    with _client(control_plane) as client:
        text = client.get("/metrics").raise_for_status().text
    return sum(map(float, _HEARTBEATS.findall(text)))


def _scrape(control_plane: ControlPlaneProcess, seconds: int) -> Sequence[float]:
    """Scrapes the metrics once a second.

    Returns:
        The milliseconds until each answer was complete.
    """
    took_ms = []
    with _client(control_plane) as client:
        begin_s = time.monotonic()
        for each in range(seconds):
            time.sleep(max(0.0, begin_s + each - time.monotonic()))
            asked_s = time.monotonic()
            client.get("/metrics").raise_for_status()
            took_ms.append(1000 * (time.monotonic() - asked_s))
        time.sleep(max(0.0, begin_s + seconds - time.monotonic()))
    return took_ms


def _cancel_ms(control_plane: ControlPlaneProcess, job: str) -> float:
    """Cancels a job; returns the milliseconds until its attempt has ended."""
    with _client(control_plane) as client:
        began_s = time.monotonic()
        client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        while _attempt(client, job)["stage"] != "ENDED":
            if time.monotonic() - began_s > TIMEOUT_S:
                raise ContenderFailedError(f"job {job} is not cancelled")
            time.sleep(0.005)
        return 1000 * (time.monotonic() - began_s)


def _attempt(client: httpx.Client, job: str) -> Any:
    return client.get(f"/v1/jobs/{job}/attempts").raise_for_status().json()["attempts"][0]


def _client(control_plane: ControlPlaneProcess) -> httpx.Client:
    headers = {"Authorization": f"Bearer {control_plane.connection.token}"}
    return httpx.Client(base_url=control_plane.url, headers=headers, trust_env=False, timeout=TIMEOUT_S)

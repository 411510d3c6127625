"""A job runs for long under one fault after another on a busy host; its output stays exact, and nothing grows.

KEYSCALE_SOAK_MINUTES says for how long each job runs (five minutes by default), KEYSCALE_SOAK_SEED which faults come,
KEYSCALE_SOAK_BUSY how many processes compete with it (one per processor by default; 0 where the host is busy anyway),
KEYSCALE_SOAK_FAULTS a word that the names of all faults have ("clock"; all faults by default),
KEYSCALE_SOAK_RECOVERY_SECONDS how long it may take to go on after a fault (five minutes by default).
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.deploy.demo.home_processes import processes_of
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from tests.soak.soak_faults import HostClock, SmallDisk, SoakRig
from tests.soak.soak_figures import figures_of, grown
from tests.soak.soak_jobs import FlightsUnderFaults, ViewsUnderFaults
from tests.soak.soak_objects import JobObjects
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.servers.faulty_s3_server import FaultyS3Server
from tests.support.servers.kafka_broker import running_broker
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.soak.soak_figures import Figures
    from tests.soak.soak_jobs import SoakJob

MINUTES = float(os.environ.get("KEYSCALE_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("KEYSCALE_SOAK_SEED", "1"))
FAULTS = os.environ.get("KEYSCALE_SOAK_FAULTS", "")
BUSY = int(os.environ.get("KEYSCALE_SOAK_BUSY") or os.cpu_count() or 1)
RECOVERY_SECONDS = float(os.environ.get("KEYSCALE_SOAK_RECOVERY_SECONDS", "300"))  # 180 on a host that is not busy
HELD_SECONDS = (2.0, 15.0)

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(60 * MINUTES + 6 * RECOVERY_SECONDS)]


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """Has processes compete with the job for the processors."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def report(line: str) -> None:
    """Writes a line to the test's output, which `-s` shows while it runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def feed_and_wait(job: SoakJob, what: str) -> None:
    before = job.records_out()
    job.feed()
    wait_until(lambda: job.records_out() > before, RECOVERY_SECONDS, what=f"output {what}")


def run_under_faults(rig: SoakRig, job: SoakJob, scratch: Path) -> None:
    ends = time.monotonic() + 60 * MINUTES
    samples: list[Figures] = []
    chosen = sorted(name for name in rig.faults() if FAULTS in name)
    names: list[str] = []
    while time.monotonic() < ends:
        names = names or rig.chance.sample(chosen, k=len(chosen))
        name = names.pop()
        feed_and_wait(job, f"before: {name}")
        with rig.fault(name):
            if not name.startswith("broker"):
                job.feed()
            time.sleep(rig.chance.uniform(*HELD_SECONDS))  # how long the fault lasts; no condition is waited for
        feed_and_wait(job, f"after: {name}")
        job.check_so_far()
        samples.append(figures_of(rig))
        report(f"{len(samples)}. {name}: {job.records_out()} records out, {rig.objects.count()} objects; {samples[-1]}")
    job.check_all()
    wait_until(lambda: not spark_processes(rig), 120, what=f"the end of {spark_processes(rig)}")
    job.check_state(rig.objects.savepoint(), scratch)
    assert rig.s3.rewritten == []
    batches = rig.objects.check_history()
    rig.objects.check_snapshots()
    collected = rig.objects.collect()
    report(f"{batches} batches, each committed once; {rig.objects.count()} objects left, {collected} collected")
    report(f"faults: {dict(sorted(rig.fired.items()))}")
    report(f"at first {samples[0]}\nat last {samples[-1]}")
    assert grown(samples) == []


def spark_processes(rig: SoakRig) -> list[str]:
    """Returns the command lines of drivers and workers."""
    found = []
    for each in processes_of(rig.control_plane.home):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(each.cmdline()))
    return [line for line in found if "spark" in line]


@pytest.mark.parametrize("name", ["flights", "views"])
def test_a_job_under_one_fault_after_another_gives_exact_results_and_nothing_grows(
    name: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyscale-soak-")))
        clock = HostClock(home / "java", has_kafka=name == "views")
        s3 = FaultyS3Server(SEED, tmp_path / "history")
        stack.callback(s3.stop)
        for variable, value in s3.server.variables.items():
            monkeypatch.setenv(variable, value)
        store_url = f"s3://{s3.server.new_bucket()}/jobs"
        settings = {
            **clock.variables,
            "KEYSCALE_STORE_URL": store_url,
            f"{JOB_SECRET_PREFIX}COUNTS": postgres_url,
        }
        control_plane = stack.enter_context(running_control_plane(settings))
        broker = stack.enter_context(running_broker()) if name == "views" else None
        job: SoakJob = (
            FlightsUnderFaults(control_plane, MINUTES)
            if broker is None
            else ViewsUnderFaults(control_plane, broker, postgres_url, SEED)
        )
        job.create()
        disk = SmallDisk(control_plane.home / "runs" / job.id / "state")
        stack.callback(disk.close)
        job.start()

        objects = JobObjects(store_url, job.id, tmp_path / "history")
        rig = SoakRig(control_plane, s3, disk, clock, job.id, objects, random.Random(SEED), broker)
        stack.enter_context(busy_host())
        run_under_faults(rig, job, tmp_path / "dumps")

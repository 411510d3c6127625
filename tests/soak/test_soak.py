"""A job runs for long under one fault after another on a busy host; its output stays exact, and nothing grows.

KEYSCALE_SOAK_MINUTES says for how long each job runs (five minutes by default), KEYSCALE_SOAK_SEED which faults come,
KEYSCALE_SOAK_BUSY how many processes compete with it (one per processor by default; 0 where the host is busy anyway),
KEYSCALE_SOAK_FAULTS a word that the names of all faults have ("clock"; all faults by default),
KEYSCALE_SOAK_RECOVERY_SECONDS how long it may take to go on after a fault (five minutes by default),
KEYSCALE_SOAK_TABLE the file of the shop job's observations (a temporary one by default).
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

import keyscale.api.cli.process
from keyscale.client.errors import ControlPlaneUnreachableError, RefusedError
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from tests.soak.soak_faults import CALM_SECONDS, HostClock, SmallDisk, SoakRig
from tests.soak.soak_figures import grown, job_metrics_of
from tests.soak.soak_jobs import FlightsUnderFaults, ViewsUnderFaults
from tests.soak.soak_objects import JobObjects
from tests.soak.soak_observer import Observer
from tests.soak.soak_shop import ShopUnderFaults
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.servers.faulty_s3_server import FaultyS3Server
from tests.support.servers.kafka_broker import running_broker
from tests.support.servers.postgres import running_postgres
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.soak.soak_figures import Figures
    from tests.soak.soak_jobs import SoakJob

MINUTES = float(os.environ.get("KEYSCALE_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("KEYSCALE_SOAK_SEED", "1"))
FAULTS = os.environ.get("KEYSCALE_SOAK_FAULTS", "")
BUSY = int(os.environ.get("KEYSCALE_SOAK_BUSY") or os.cpu_count() or 1)
RECOVERY_SECONDS = float(os.environ.get("KEYSCALE_SOAK_RECOVERY_SECONDS", "300"))  # 180 on a host that is not busy
HELD_SECONDS = (2.0, 15.0)
LONG_HELD_SHARE, LONG_HELD_SECONDS = 0.25, 60.0
RESCALE_SHARE = 0.2
CALM_SHARE = 0.1

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


def run_under_faults(rig: SoakRig, job: SoakJob, scratch: Path, check: Callable[[], None] = lambda: None) -> None:
    """Plays faults until the time is over, and checks the job's output after each, and everything at the end.

    Args:
        check: Fails if something else has gone wrong.
    """
    ends = time.monotonic() + 60 * MINUTES
    samples: list[Figures] = []
    chosen = sorted(name for name in rig.faults() if FAULTS in name)
    names: list[str] = []
    while time.monotonic() < ends:
        names = names or rig.chance.sample(chosen, k=len(chosen))
        name = names.pop()
        feed_and_wait(job, f"before: {name}")
        with rescaling(rig, job):
            with rig.fault(name):
                if not name.startswith("broker"):
                    job.feed()
                time.sleep(held_seconds(rig))  # how long the fault lasts; no condition is waited for
            feed_and_wait(job, f"after: {name}")
        job.check_so_far()
        check()
        samples.append(job_metrics_of(rig))
        report(f"{len(samples)}. {name}: {job.records_out()} records out, {rig.objects.count()} objects; {samples[-1]}")
        if isinstance(job, ShopUnderFaults) and rig.chance.random() < CALM_SHARE:
            wait_until(rig.is_calm, 2 * CALM_SECONDS, what="a time without faults", poll=1)
            job.check_pause(RECOVERY_SECONDS)
            report("a pause: all numbers are exactly right")
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


def held_seconds(rig: SoakRig) -> float:
    return LONG_HELD_SECONDS if rig.chance.random() < LONG_HELD_SHARE else rig.chance.uniform(*HELD_SECONDS)


@contextlib.contextmanager
def rescaling(rig: SoakRig, job: SoakJob) -> Iterator[None]:
    """Has the shop job be rescaled, now and then, while there is a fault."""
    if not isinstance(job, ShopUnderFaults) or rig.chance.random() > RESCALE_SHARE:
        yield
        return
    try:
        change = job.rescale()
    except (RefusedError, ControlPlaneUnreachableError):  # on a busy host it may take longer than a client waits
        yield
        return
    with rig.disturbed("rescale"):
        yield
        outcome = job.end_of_change(change, 3 * RECOVERY_SECONDS)
    assert outcome in {"COMPLETED", "ROLLED_BACK"}, outcome
    name = f"rescale {outcome}"
    rig.fired[name] = rig.fired.get(name, 0) + 1


def spark_processes(rig: SoakRig) -> list[str]:
    """Returns the command lines of drivers and workers."""
    found = []
    for each in processes_of(rig.control_plane.home):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(each.cmdline()))
    return [line for line in found if "spark" in line]


@pytest.mark.parametrize("name", ["flights", "views", "shop"])
def test_a_job_under_one_fault_after_another_gives_exact_results_and_nothing_grows(
    name: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy host a control plane takes its time to start.
    monkeypatch.setattr(keyscale.api.cli.process, "START_TIMEOUT_S", RECOVERY_SECONDS)
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyscale-soak-")))
        # The observer of the shop job compares times.
        clock = None if name == "shop" else HostClock(home / "java", has_kafka=name == "views")
        s3 = FaultyS3Server(SEED, tmp_path / "history")
        stack.callback(s3.stop)
        for variable, value in s3.server.variables.items():
            monkeypatch.setenv(variable, value)
        store_url = f"s3://{s3.server.new_bucket()}/jobs"
        sink_database = stack.enter_context(running_postgres()) if name == "shop" else None
        sink_url = postgres_url if sink_database is None else sink_database.url
        settings = {
            **({} if clock is None else clock.variables),
            "KEYSCALE_STORE_URL": store_url,
            f"{JOB_SECRET_PREFIX}COUNTS": sink_url,
        }
        control_plane = stack.enter_context(running_control_plane(settings))
        job: SoakJob
        if name == "flights":
            broker, job = None, FlightsUnderFaults(control_plane, MINUTES)
        else:
            broker = stack.enter_context(running_broker())
            kind = ViewsUnderFaults if name == "views" else ShopUnderFaults
            job = kind(control_plane, broker, sink_url, SEED)
        job.create()
        disk = SmallDisk(control_plane.home / "runs" / job.id / "state")
        stack.callback(disk.close)
        job.start()

        objects = JobObjects(store_url, job.id, tmp_path / "history")
        chance = random.Random(SEED)
        rig = SoakRig(control_plane, s3, disk, clock, job.id, objects, chance, broker, sink_database)
        stack.enter_context(busy_host())
        if isinstance(job, ShopUnderFaults):
            run_observed(rig, job, tmp_path)
        else:
            run_under_faults(rig, job, tmp_path / "dumps")


def run_observed(rig: SoakRig, job: ShopUnderFaults, scratch: Path) -> None:
    """Runs the shop job under faults; fails if a number of the API, the series or the page was wrong."""
    table = Path(os.environ.get("KEYSCALE_SOAK_TABLE") or scratch / "observations.csv")
    observer = Observer(rig, job, table, report)
    try:
        with observer.watching():
            run_under_faults(rig, job, scratch / "dumps", observer.check)
    finally:
        job.orders.end()
        report(
            f"{observer.observations} observations, {observer.silent} without an answer, {observer.pages} looks at"
            f" the page after {observer.sign_ins} openings, {len(observer.wrong)} numbers wrong: {table}"
        )
    assert observer.wrong == []
    assert observer.observations > observer.silent
    assert observer.pages > 0

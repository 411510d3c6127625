"""Jobs that are made ill have the right reason named, and a healthy job has none: real drivers."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from keyscale.clock import now_ms
from keyscale.metrics import BATCH_PARTS
from keyscale.vocabulary import DiagnosticKind
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.repository import ROOT
from tests.support.servers.faulty_s3_server import Fault, FaultyS3Server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(3600)]

JOB = ROOT / "tests" / "support" / "jobs" / "ailing_job.py"
SECONDS = 600.0
BATCHES = 8
SYMPTOMS = {"FALLING_BEHIND", "BEHIND", "HOST_OVERLOADED"}
"""What any job that is too slow may have beside the cause, on a host with other work."""

ILLNESSES: dict[str, dict[str, str]] = {
    "HOT_KEY_GROUP": {"rate": "3000", "batch": "2000", "hot": "9", "record_s": "0.005"},
    "FUNCTION_SLOW": {"rate": "3000", "batch": "3000", "record_s": "0.005"},
    "SUBTASK_SKEW": {"rate": "3000", "batch": "2000", "record_s": "0.005", "is_skewed": "yes"},
    "SINK_SLOW": {"rate": "3000", "batch": "2000", "sink_s": "10"},
    "BATCHES_TOO_SMALL": {"rate": "1000", "batch": "20"},
    "FAILS_REPEATEDLY": {"rate": "100", "batch": "2000", "raises": "yes"},
}


class Ward:
    """A control plane on which one job after the other is ill."""

    def __init__(self, control_plane: RunningControlPlane, directory: Path) -> None:
        self.api = control_plane.api
        self.directory = directory
        self.artifact_id = upload_file(self.api, JOB)["id"]

    def begin(self, name: str, parameters: dict[str, str]) -> None:
        known = {"since_ms": str(now_ms()), "output": str(self.directory / name)}
        spec = {
            "artifact_id": self.artifact_id,
            "parallelism": 2,
            "parameters": {**known, **parameters},
            "restart": {"type": "fixed-delay", "attempts": 100, "delay_ms": 500},
        }
        self.api.post("/v1/jobs", {"name": name, "spec": spec})
        self.api.post(job_path(name, "start"))

    def show(self, name: str) -> Any:
        return self.api.get(job_path(name))

    def reasons(self, name: str) -> list[str]:
        return [reason["code"] for reason in self.show(name)["status"]["health"]["reasons"]]

    def has(self, name: str, code: str) -> bool:
        return code in self.reasons(name)

    def batches(self, name: str) -> list[Any]:
        metrics = (self.show(name)["status"]["attempt"] or {}).get("metrics") or {}
        return [batch for batch in metrics.get("recent_batches", ()) if batch["input_records"]]

    def look(self, name: str, **wanted: Any) -> dict[str, str]:
        asked = self.api.diagnostics.request(name, **wanted)
        return {part.name: part.text for part in self.api.diagnostics.wait(name, asked.id, SECONDS).parts}

    def end(self, name: str) -> None:
        self.api.post(job_path(name, "cancel"))
        wait_until(lambda: self.show(name)["status"]["state"] == "STOPPED", SECONDS, what="the job to stop")


def test_each_cause_that_is_made_on_purpose_is_named_and_a_healthy_job_has_no_reason(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    ward = Ward(control_plane, tmp_path)
    ward.begin("healthy", {"rate": "50", "batch": "2000"})
    found: list[list[str]] = []

    def is_well() -> bool:
        assert ward.show("healthy")["status"]["state"] != "FAILED"
        found.append(ward.reasons("healthy"))
        return len(ward.batches("healthy")) >= BATCHES

    wait_until(is_well, SECONDS, what="batches of a healthy job", poll=0.5)
    assert [reasons for reasons in found if set(reasons) - {"START_WAITS"}] == []
    assert ward.show("healthy")["status"]["health"]["level"] == "OK"
    assert_that_the_parts_add_up(ward.batches("healthy"))
    assert_that_a_signal_writes_the_stacks_of_driver_and_workers(ward, "healthy")
    assert_that_records_and_logs_are_shown(ward, "healthy")
    ward.end("healthy")

    for code, parameters in ILLNESSES.items():
        name = code.lower().replace("_", "-")
        ward.begin(name, parameters)
        wait_until(partial(ward.has, name, code), SECONDS, what=f"{code} to be named", poll=0.5)
        causes = [reason for reason in ward.reasons(name) if reason not in SYMPTOMS]
        assert causes[0] == code or code == "FAILS_REPEATEDLY"
        assert set(causes) <= {code, "JOB_FUNCTION_FAILED"}
        condition = next(each for each in ward.show(name)["status"]["conditions"] if each["type"] == "HEALTHY")
        assert condition["status"] == "FALSE"
        ward.end(name)


def test_a_slow_object_store_is_named(tmp_path: Path) -> None:
    s3 = FaultyS3Server(1, tmp_path / "history")
    try:
        store = {"KEYSCALE_STORE_URL": f"s3://{s3.server.new_bucket()}/jobs", **s3.server.variables}
        with running_control_plane(store) as control_plane:
            ward = Ward(control_plane, tmp_path)
            ward.begin("far-away", {"rate": "1000", "batch": "500"})
            wait_until(lambda: ward.batches("far-away"), SECONDS, what="a batch", poll=0.5)
            s3.fault, s3.share = Fault.SLOW, 1.0
            wait_until(partial(ward.has, "far-away", "STORE_SLOW"), SECONDS, what="STORE_SLOW to be named", poll=0.5)
            assert {each for each in ward.reasons("far-away") if each not in SYMPTOMS} == {"STORE_SLOW"}
            s3.fault = None
            ward.end("far-away")
    finally:
        s3.stop()


def test_a_busy_host_is_named(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    ward = Ward(control_plane, tmp_path)
    spinning = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spinning) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        ward.begin("crowded", {"rate": "3000", "batch": "2000", "cpu_s": "0.002"})
        wait_until(partial(ward.has, "crowded", "HOST_OVERLOADED"), SECONDS, what="HOST_OVERLOADED", poll=0.5)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    ward.end("crowded")


def test_a_job_whose_function_hangs_in_c_shows_where_and_can_be_cancelled(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    ward = Ward(control_plane, tmp_path)
    ward.begin("hanging", {"rate": "50", "batch": "2000", "hangs": "yes"})
    wait_until(lambda: (ward.show("hanging")["status"]["attempt"] or {}).get("pid"), SECONDS, what="a driver")

    def hanging() -> list[str]:
        found = ward.look("hanging", kind=DiagnosticKind.THREAD_DUMP)
        return [name for name, text in found.items() if "ailing_job.py" in text and "process_element" in text]

    workers = wait_until(hanging, SECONDS, what="a worker in the function", poll=0.5)
    assert all(re.fullmatch(r"worker \d+: operator work, subtask [01], batch 0", name) for name in workers), workers
    profile = ward.look("hanging", kind=DiagnosticKind.PROFILE, duration_ms=1000)
    innermost = re.compile(r"process_element \(\S*ailing_job.py\);match \(re/__init__.py\) \d+")
    assert any(innermost.search(text) for text in profile.values()), profile
    no_records = ward.look("hanging", kind=DiagnosticKind.SAMPLE, operator_uid="work", duration_ms=1000)
    assert no_records["input"].startswith("(no batch with records")
    with zipfile.ZipFile(io.BytesIO(ward.api.jobs.bundle("hanging"))) as bundle:
        assert b"process_element" in bundle.read("hanging/threads.txt")
    ward.end("hanging")


def assert_that_records_and_logs_are_shown(ward: Ward, name: str) -> None:
    shown = ward.look(name, kind=DiagnosticKind.SAMPLE, operator_uid="work", rows=3)
    assert [sorted(json.loads(line)) for line in shown["input"].splitlines()] == 3 * [["key", "number"]]
    masked = ward.look(name, kind=DiagnosticKind.SAMPLE, operator_uid="work", rows=3, with_values=False)
    assert len(masked["output"].splitlines()) == 3
    assert all(json.loads(line)["number"].startswith("int ") for line in masked["output"].splitlines())
    (log,) = ward.look(name, kind=DiagnosticKind.EXECUTOR_LOGS).values()
    assert "The log of the job" in log


def assert_that_a_signal_writes_the_stacks_of_driver_and_workers(ward: Ward, name: str) -> None:
    driver = psutil.Process(ward.show(name)["status"]["attempt"]["pid"])
    submit = next(each for each in driver.parents() if "SparkSubmit" in " ".join(each.cmdline()))
    daemon = "keyscale.jobs.runtime.executor.worker_daemon"
    workers = [each for each in submit.children(recursive=True) if daemon in each.cmdline()]
    assert len(workers) > 1, "the daemon and what it has forked"
    for process in (driver, *workers):
        process.send_signal(signal.SIGUSR1)

    def dumps() -> bool:
        text = ward.api.get(job_path(name, "logs"), tail_bytes=1 << 20)["text"]
        return bool(text.count("most recent call first") > len(workers) and "execution.py" in text)

    wait_until(dumps, SECONDS, what="the stacks in the log", poll=0.5)
    assert ward.reasons(name) == [], "the job goes on"


def assert_that_the_parts_add_up(batches: list[Any]) -> None:
    """The parts of a batch cover the time from the previous publication to its own, as the commits show."""
    for before, batch in pairwise(batches):
        if batch["batch_id"] == before["batch_id"] + 1:
            covered_ms = sum(batch[part.name] for part in BATCH_PARTS)
            between_ms = batch["at_ms"] + batch["publish_ms"] - before["at_ms"] - before["publish_ms"]
            assert covered_ms == pytest.approx(between_ms, abs=250)

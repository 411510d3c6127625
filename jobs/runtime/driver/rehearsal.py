"""Rehearses a whole job in a spare driver.

A JVM takes seconds for the first batch of a job: classes are loaded, code is generated and compiled, Python workers
start and import. A tiny job takes the same way beforehand, from the script to the commit, and once more from the state
that it has left: a run of its own in all but its messages to a control plane.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.vocabulary import CommandKind

from ...protocol.messages import Assignment, AttachResponse, Command, HeartbeatResponse
from ...protocol.specification import CheckpointSettings, JobSpec
from ..errors import ControlRefusedError
from ..preparation.warm_up import WarmUp
from .job_run import JobRun

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from ...protocol.messages import (
        AttachRequest,
        CheckpointReport,
        DiagnosticReport,
        Heartbeat,
        StoreCredentials,
    )

_PROGRAM = Path(__file__).with_name("rehearsed_job.py")
_ROWS = '{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n'
_CHECKPOINT_INTERVAL_MS = 3_600_000  # no checkpoint: nothing of the job is kept


class Rehearsal(WarmUp):
    """A warm-up by a tiny job of Keyscale's own.

    Args:
        spark: The driver's session.
        directory: The directory of the job's files, which are deleted afterwards.
        parallelism: The job's parallelism.
        local_root: The directory of its local state, which stays: workers may have it open for a while.
    """

    def __init__(self, spark: SparkSession, directory: Path, parallelism: int, local_root: Path) -> None:
        super().__init__(spark, directory, parallelism)
        self._local_root = local_root

    def run_job(self, turn: int) -> None:
        source = self._directory / "in"
        source.mkdir(parents=True, exist_ok=True)
        (source / f"{turn}.json").write_text(_ROWS, encoding="utf-8")
        assignment = Assignment(
            job_id="rehearsal",
            job_name="rehearsal",
            attempt=turn + 1,
            artifact_filename=_PROGRAM.name,
            artifact_sha256=hashlib.sha256(_PROGRAM.read_bytes()).hexdigest(),
            store_url=(self._directory / "store").as_uri(),
            spec=JobSpec(
                artifact_id="rehearsal",
                parallelism=self._parallelism,
                parameters={"input": str(source), "output": str(self._directory / "out")},
                checkpoints=CheckpointSettings(interval_ms=_CHECKPOINT_INTERVAL_MS),
            ),
        )
        work = self._directory / f"work-{turn}"
        main = sys.modules["__main__"]
        try:
            JobRun(self._spark, _NoControl(self._cancelled), assignment, work, self._local_root).run()
        finally:
            sys.modules["__main__"] = main  # the script's module is left behind, and its file is deleted


class _NoControl:
    """Cancels the job after its first commit, like a control plane."""

    can_call = False

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled

    def attach(self, request: AttachRequest) -> AttachResponse:  # noqa: ARG002 - a protocol's signature
        return AttachResponse(decision="exit")

    def fetch_artifact(self, target: Path) -> None:
        shutil.copyfile(_PROGRAM, target)

    def store_credentials(self) -> StoreCredentials:
        raise ControlRefusedError("a rehearsal has a local store")

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        is_over = heartbeat.first_commit is not None or self._cancelled.is_set()
        commands = [Command(id="end", kind=CommandKind.CANCEL)] if is_over and not heartbeat.results else []
        return HeartbeatResponse(commands=commands)

    def wait_for_call(self, revision: int, seconds: float) -> bool:  # noqa: ARG002 - as above
        raise ControlRefusedError("a rehearsal has no control plane")

    def report_checkpoint(self, report: CheckpointReport) -> None:
        """Ignores the report."""

    def report_diagnostic(self, report: DiagnosticReport) -> None:
        """Ignores the report."""

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:
        """Ignores the attempt."""

    def close(self) -> None:
        """Does nothing, without a connection."""

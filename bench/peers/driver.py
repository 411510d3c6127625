"""A Keyscale driver without a control plane, controlled by files.

It is the process that the platform starts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import pyspark

from bench.peers.followed_log import FollowedLog
from bench.peers.spark import DRIVER_MEMORY
from keyscale.identifiers import JobId
from keyscale.installation import DRIVER_PROGRAM
from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.messages import Assignment, Command, Heartbeat
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.protocol.specification import CheckpointSettings, JobSpec
from keyscale.state.layout import Layout, split_location
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import CommandKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

MAX_PARALLELISM = 128


class DriverFailedError(RuntimeError):
    """The driver ended early; its log is above."""


class Driver:
    """A running driver, which ends with its `with` block.

    Its files in the object store are then deleted.

    Attributes:
        log: The job's commit log.
    """

    def __init__(
        self,
        work: Path,
        artifact: Path,
        parameters: Mapping[str, str],
        *,
        cores: int,
        checkpoint_interval_ms: int,
        restore_from: str | None = None,
        jars: str = "",
    ) -> None:
        self._store_url = split_location(restore_from)[0] if restore_from else (work / "store").as_uri()
        assignment = Assignment(
            job_id=f"bench-{uuid.uuid4().hex}",
            job_name=artifact.stem,
            attempt=1,
            spec=JobSpec(
                artifact_id=artifact.stem,
                parallelism=cores,
                max_parallelism=MAX_PARALLELISM,
                parameters=dict(parameters),
                checkpoints=CheckpointSettings(interval_ms=checkpoint_interval_ms),
            ),
            artifact_filename=artifact.name,
            artifact_sha256=hashlib.sha256(artifact.read_bytes()).hexdigest(),
            store_url=self._store_url,
            restore_from=restore_from,
        )
        self._job = JobId(assignment.job_id)
        self.log = FollowedLog(CommitLog(open_store(self._store_url), Layout(self._job)))
        file = work / "assignment.json"
        file.write_text(assignment.model_dump_json(), encoding="utf-8")
        self._control = file.with_suffix(".control")
        environment = {
            **os.environ,
            "KEYSCALE_WORK_DIR": str(work / "driver"),
            "KEYSCALE_ASSIGNMENT_FILE": str(file),
            "KEYSCALE_ARTIFACT_FILE": str(artifact),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONSAFEPATH": "1",
        }
        self._process = subprocess.Popen(_command(work, cores, jars), env=environment)  # noqa: S603 - our own driver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.storage, ignore_errors=True)  # the store may be the savepoint's own

    @property
    def storage(self) -> Path:
        """The job's folder in the object store."""
        return Path(urlsplit(self._store_url).path, self._job)

    def heartbeat(self) -> Heartbeat | None:
        """Returns the last heartbeat, or None before the first.

        Raises:
            DriverFailedError: The driver has ended.
        """
        if self._process.poll() is not None:
            message = f"the driver ended by itself with {self._process.returncode}"
            raise DriverFailedError(message)
        file = self._control / "heartbeat.json"
        return Heartbeat.model_validate_json(file.read_bytes()) if file.exists() else None

    def cancel(self) -> None:
        """Cancels the driver's job, and waits for its end.

        Raises:
            DriverFailedError: The driver ended otherwise.
        """
        command = Command(id="end", kind=CommandKind.CANCEL)
        (self._control / "commands" / "end.json").write_text(command.model_dump_json(), encoding="utf-8")
        if self._process.wait() != 0:
            message = f"the driver was told to end and ended with {self._process.returncode}"
            raise DriverFailedError(message)


def _command(work: Path, cores: int, jars: str) -> list[str]:
    settings = {
        **REQUIRED_SETTINGS,
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **LOCAL_SETTINGS,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": f"{work}/spark",
        **({"spark.jars": jars} if jars else {}),
    }
    conf = [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return [str(submit), "--master", f"local[{cores},4]", *conf, str(DRIVER_PROGRAM)]

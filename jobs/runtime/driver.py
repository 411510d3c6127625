r"""The program that `spark-submit` runs: one process, one attempt of one job.

Start it so (the launcher and tests do):

    PYTHONPATH=<checkout> PYSPARK_PYTHON=<python> PYSPARK_DRIVER_PYTHON=<python> KEYSCALE_...=... \
        spark-submit --master <master> --conf <key>=<value> ... <checkout>/jobs/runtime/driver.py

Environment:
    KEYSCALE_CONTROL_URL: base address of the control plane, e.g. http://127.0.0.1:8080; `/driver/...` is added to it.
    KEYSCALE_ATTEMPT_TOKEN: the attempt's bearer token; needed with KEYSCALE_CONTROL_URL.
    KEYSCALE_WORK_DIR: a local directory for Spark's checkpoint directory, state files and the artifact. Ephemeral: nothing
        is read from it that an earlier process has written. Give each attempt its own and delete it afterwards.
    KEYSCALE_LOCAL_STATE_DIR: root of local state files, by default a subdirectory of KEYSCALE_WORK_DIR. Attempts that share it
        find each other's files on the same host, verified, and download less. It is never needed for correctness.
    KEYSCALE_ASSIGNMENT_FILE: instead of a control plane: a file that holds an `Assignment` as JSON (see control.py for the
        directory in which commands are read and reports are written).
    KEYSCALE_ARTIFACT_FILE: with KEYSCALE_ASSIGNMENT_FILE: the artifact's path.
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...: the object store's credentials, where it is s3://.

Spark settings: `REQUIRED_SETTINGS`, `DEFAULT_SETTINGS` and, for `local[...]` masters, `LOCAL_SETTINGS` of spark_settings.py.
A `local` master must allow task retries: `local[<cores>,4]`.

Exit codes: 0 stopped as told, finished, or no work; 1 failed (the reason was reported, and is in the log); 2 wrong environment;
10 fenced: another attempt has taken over, nothing is wrong.

Told to wait, the driver warms Spark up; it sends its first heartbeat (STANDBY) when it is warm, so a control plane that waits
for that loses no time to class loading between the old run's stop and the new one's first commit.

The process ends when spark-submit's JVM ends, and the JVM when this process ends; Python workers end with the JVM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from jobs.runtime.control import FileControl, HttpControl
from jobs.runtime.errors import AttemptOverError, ControlError, ControlRefusedError, DriverEnvironmentError
from jobs.runtime.job_run import JobRun
from jobs.runtime.lifeline import end_with_parent
from jobs.runtime.reporter import HEARTBEAT_INTERVAL_SECONDS
from jobs.runtime.warmth import WarmUp
from jobs.wire import AttachRequest, AttachResponse, DriverState, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.runtime.control import ControlChannel
    from jobs.wire import Assignment

_log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_MISCONFIGURED = 2
EXIT_FENCED = 10

_ATTACH_RETRY_SECONDS = 0.5
_WARM_UP_PARALLELISM = 2


@dataclass(frozen=True, slots=True)
class DriverEnvironment:
    """What the driver is told by its environment variables."""

    work_dir: Path
    local_root: Path
    control_url: str | None
    attempt_token: str
    assignment_file: Path | None
    artifact_file: Path | None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> DriverEnvironment:
        """Read the variables that this module's docstring lists.

        Raises:
            DriverEnvironmentError: One is missing.
        """

        def required(name: str) -> str:
            if not variables.get(name):
                message = f"the environment variable {name} is not set"
                raise DriverEnvironmentError(message)
            return variables[name]

        work_dir = Path(required("KEYSCALE_WORK_DIR")).absolute()
        local_root = Path(variables.get("KEYSCALE_LOCAL_STATE_DIR") or work_dir / "state").absolute()
        if file := variables.get("KEYSCALE_ASSIGNMENT_FILE"):
            artifact = Path(required("KEYSCALE_ARTIFACT_FILE")).absolute()
            return cls(work_dir, local_root, None, "", Path(file).absolute(), artifact)
        url, token = required("KEYSCALE_CONTROL_URL"), required("KEYSCALE_ATTEMPT_TOKEN")
        return cls(work_dir, local_root, url, token, None, None)

    def channel(self) -> ControlChannel:
        if self.assignment_file is not None and self.artifact_file is not None:
            return FileControl(self.assignment_file, self.artifact_file)
        return HttpControl(self.control_url or "", self.attempt_token)


def main() -> int:
    """Run the driver; returns its exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        environment = DriverEnvironment.read(os.environ)
    except DriverEnvironmentError as error:
        _log.error("%s: %s (%s)", error.code, error, error.advice)
        return EXIT_MISCONFIGURED
    end_with_parent()
    environment.work_dir.mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.getOrCreate()
    with contextlib.closing(environment.channel()) as channel:
        try:
            assignment = wait_for_assignment(channel, spark, environment.work_dir)
        except AttemptOverError:
            _log.info("the attempt was over before it began")
            return EXIT_FENCED
        except ControlRefusedError:
            _log.exception("the control plane refuses this driver")
            return EXIT_FAILED
        if assignment is None:
            return EXIT_OK
        outcome = JobRun(spark, channel, assignment, environment.work_dir, environment.local_root).run()
    return {DriverState.FAILED: EXIT_FAILED, DriverState.FENCED: EXIT_FENCED}.get(outcome, EXIT_OK)


def wait_for_assignment(channel: ControlChannel, spark: SparkSession, work_dir: Path) -> Assignment | None:
    """Ask for work until there is some; None when there will be none.

    Raises:
        ControlRefusedError: The control plane does not know this driver.
        AttemptOverError: It no longer wants it.
    """
    request = AttachRequest(pid=os.getpid(), host=platform.node(), spark_ui_url=spark.sparkContext.uiWebUrl)
    warm_up = WarmUp(spark, work_dir / "warm-up", _WARM_UP_PARALLELISM)
    while True:
        response = _attach(channel, request)
        if response is None:
            time.sleep(_ATTACH_RETRY_SECONDS)
        elif response.decision == "exit":
            return None
        elif response.decision == "run" and response.assignment is not None:
            _log.info("assigned attempt %d of job %s", response.assignment.attempt, response.assignment.job_id)
            warm_up.finish()
            return response.assignment
        else:
            warm_up.start()
            if warm_up.done:
                with contextlib.suppress(ControlError):
                    channel.heartbeat(Heartbeat(state=DriverState.STANDBY))
            time.sleep(min(response.retry_after_ms / 1000, HEARTBEAT_INTERVAL_SECONDS))


def _attach(channel: ControlChannel, request: AttachRequest) -> AttachResponse | None:
    try:
        return channel.attach(request)
    except (AttemptOverError, ControlRefusedError):
        raise
    except ControlError as error:
        _log.warning("no answer to the request for work: %s", error)
        return None


if __name__ == "__main__":
    sys.exit(main())

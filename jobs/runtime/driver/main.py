r"""The program that `spark-submit` runs: one process, one attempt of one job.

Start it as the launcher and tests do:

    PYTHONPATH=<checkout>/src PYSPARK_PYTHON=<python> PYSPARK_DRIVER_PYTHON=<python> KEYSCALE_...=... \
        spark-submit --master <master> --conf <key>=<value> ... <checkout>/src/keyscale/jobs/runtime/driver/main.py

Environment:
    KEYSCALE_CONTROL_URL: base address of the control plane, e.g. http://127.0.0.1:8080; `/driver/...` is added to it.
    KEYSCALE_ATTEMPT: the attempt, as <job>:<number>, and KEYSCALE_ATTEMPT_TOKEN: its bearer token; needed with
        KEYSCALE_CONTROL_URL.
    KEYSCALE_JOB_STORE_URL: the job's store, in which a driver without an answer from its control plane looks for
        another control plane.
    KEYSCALE_LIBRARIES: SHA-256 of each library of the job that the driver was started with, separated by commas, and
        KEYSCALE_EXECUTOR_PYTHONPATH: where executors on other hosts find them, below their working directory.
    KEYSCALE_CA_FILE: a PEM file with certificate authorities to trust for the control plane.
    KEYSCALE_WORK_DIR: a local directory for Spark's checkpoint directory, state files and the artifact. Ephemeral:
        the driver does not read files of earlier processes there. Give each attempt its own, and delete it
        afterwards.
    KEYSCALE_LOCAL_STATE_DIR: root of local state files, by default a subdirectory of KEYSCALE_WORK_DIR. Attempts that
        share the directory reuse each other's verified files on the same host and download less. Results do not depend
        on it.
    KEYSCALE_ASSIGNMENT_FILE: instead of a control plane, a file with an `Assignment` as JSON (see channel.py for the
        directory in which commands are read and reports are written).
    KEYSCALE_ARTIFACT_FILE: with KEYSCALE_ASSIGNMENT_FILE, the artifact's path.
    KEYSCALE_LOG_FORMAT: `text` or `json`, the form of log lines; KEYSCALE_LOG_FIELDS: a JSON object with fields of all
        lines.
    KEYSCALE_SPARE: the driver is a spare. It starts Spark, warms it up, and waits at the socket `assignment` beside its
        KEYSCALE_WORK_DIR for the variables of its run, which replace the variables above.
    KEYSCALE_SPARK_WITHOUT: uses of Spark's internals to switch off, separated by commas (see docs/spark-internals.md).
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...: the object store's credentials, for s3://.
    KEYSCALE_STORE_CREDENTIALS_RENEWED, instead of the keys: the control plane grants credentials for the job's own
    objects; the driver writes the file of AWS_CONFIG_FILE.

Spark settings: `REQUIRED_SETTINGS`, `DEFAULT_SETTINGS` and, for `local[...]` masters, `LOCAL_SETTINGS` of
spark_settings.py. A `local` master must allow task retries: `local[<cores>,4]`.

Exit codes: 0 stopped by command, finished, or no work; 1 failed (the reason was reported, and is in the log); 2 wrong
environment; 10 fenced: another attempt has taken over.

If the control plane answers "wait", the driver warms Spark up, runs the script, checks that it can write to its store
and its sinks, and rehearses its first batch. It sends heartbeats from then on, and says in them when it is ready. If
the control plane waits for that, neither class loading nor the script delays the new run's first commit, and a target
without a right or a script that fails is found while the old driver works.

SIGUSR1 writes the stacks of all threads of the process, or of a Python worker, into the log.

The process ends when spark-submit's JVM ends, and the JVM when this process ends; Python workers end with the JVM.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import platform
import signal
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from keyscale.jobs.protocol.messages import AttachRequest, Heartbeat
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.spare import SPARE_VARIABLE
from keyscale.jobs.runtime.control.channel import FileControl, HttpControl
from keyscale.jobs.runtime.control.control_search import ControlSearch
from keyscale.jobs.runtime.control.store_access import StoreAccess
from keyscale.jobs.runtime.driver.attachment import Attachment
from keyscale.jobs.runtime.driver.job_run import JobRun
from keyscale.jobs.runtime.driver.rehearsal import Rehearsal
from keyscale.jobs.runtime.driver.spare_wait import SpareWait
from keyscale.jobs.runtime.errors import (
    AttemptOverError,
    ControlError,
    ControlRefusedError,
    ControlUnreachableError,
    DriverEnvironmentError,
)
from keyscale.jobs.runtime.executor.worker_stacks import NAME_VARIABLE
from keyscale.jobs.runtime.preparation.warm_up import WarmUp
from keyscale.jobs.spark_internals.jvm_end import end_jvm
from keyscale.log_lines import configure_logging, worker_variables
from keyscale.state.doors.objects import open_store
from keyscale.vocabulary import DriverState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.runtime.control.channel import ControlChannel

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1  # also when spark-submit has ended
EXIT_MISCONFIGURED = 2
EXIT_FENCED = 10

_WARM_UP_PARALLELISM = 2
_PARENT_POLL_SECONDS = 0.2
_leaves_parent = threading.Event()


@dataclass(frozen=True, slots=True)
class DriverEnvironment:
    """The driver's environment variables."""

    work_dir: Path
    local_root: Path
    control_url: str | None
    attempt_token: str
    attempt: str
    store_url: str
    assignment_file: Path | None
    artifact_file: Path | None
    ca_file: str | None
    libraries: frozenset[str]

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> DriverEnvironment:
        """Reads the variables that this module's docstring lists.

        Raises:
            DriverEnvironmentError: A variable is missing.
        """

        def required(name: str) -> str:
            if not variables.get(name):
                raise DriverEnvironmentError(f"the environment variable {name} is not set")
            return variables[name]

        work_dir = Path(required("KEYSCALE_WORK_DIR")).absolute()
        libraries = frozenset(filter(None, variables.get("KEYSCALE_LIBRARIES", "").split(",")))
        local_root = Path(variables.get("KEYSCALE_LOCAL_STATE_DIR") or work_dir / "state").absolute()
        if file := variables.get("KEYSCALE_ASSIGNMENT_FILE"):
            artifact = Path(required("KEYSCALE_ARTIFACT_FILE")).absolute()
            return cls(work_dir, local_root, None, "", "", "", Path(file).absolute(), artifact, None, libraries)
        url, token = required("KEYSCALE_CONTROL_URL"), required("KEYSCALE_ATTEMPT_TOKEN")
        attempt, store_url = required("KEYSCALE_ATTEMPT"), variables.get("KEYSCALE_JOB_STORE_URL", "")
        ca_file = variables.get("KEYSCALE_CA_FILE") or None
        return cls(work_dir, local_root, url, token, attempt, store_url, None, None, ca_file, libraries)

    def channel(self) -> ControlChannel:
        if self.assignment_file is not None and self.artifact_file is not None:
            return FileControl(self.assignment_file, self.artifact_file)
        search = None
        if self.store_url:
            search = ControlSearch(
                self.attempt, self.attempt_token, lambda: open_store(self.store_url), ca_file=self.ca_file
            )
        return HttpControl(self.control_url or "", self.attempt, self.attempt_token, search, self.ca_file)


def main() -> int:
    """Runs the process; returns its exit code."""
    faulthandler.register(signal.SIGUSR1)
    configure_driver_logging()
    end_with_parent()
    if os.environ.get(SPARE_VARIABLE):
        return run_spare()
    try:
        environment = DriverEnvironment.read(os.environ)
    except DriverEnvironmentError as error:
        logger.error("%s: %s (%s)", error.code, error, error.advice)  # noqa: TRY400 - a traceback would not help
        return EXIT_MISCONFIGURED
    environment.work_dir.mkdir(parents=True, exist_ok=True)
    spark = open_session()
    return run_driver(spark, environment, WarmUp(spark, environment.work_dir / "warm-up", _WARM_UP_PARALLELISM))


def run_spare() -> int:
    """Runs a spare driver and the run that it gets.

    Returns its exit code.
    """
    work_dir = Path(os.environ["KEYSCALE_WORK_DIR"]).absolute()
    wait = SpareWait(work_dir.parent)
    work_dir.mkdir(parents=True, exist_ok=True)
    spark = open_session()
    warm_up = Rehearsal(spark, work_dir / "warm-up", _WARM_UP_PARALLELISM, work_dir / "warm-up-state")
    variables = wait.variables(warm_up)
    if variables is None:
        return EXIT_OK
    os.environ.update(variables)
    configure_driver_logging()
    # Workers with other variables are other workers: the warm ones serve jobs without secrets.
    spark.sparkContext.environment.update(secrets_of(variables))
    return run_driver(spark, DriverEnvironment.read(os.environ), warm_up)


def open_session() -> SparkSession:
    """Opens the session.

    Its Python workers offer their stacks by a name of their own. The name stays: workers with other variables are other
    workers.
    """
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.environment[NAME_VARIABLE] = uuid.uuid4().hex
    return spark


def secrets_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with the secrets of a job."""
    return {name: value for name, value in variables.items() if name.startswith(JOB_SECRET_PREFIX)}


def configure_driver_logging() -> None:
    """Makes this process log as its environment says."""
    configure_logging(os.environ, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def run_driver(spark: SparkSession, environment: DriverEnvironment, warm_up: WarmUp) -> int:
    """Runs the driver of an attempt; returns its exit code."""
    if path := os.environ.get("KEYSCALE_EXECUTOR_PYTHONPATH"):
        # Spark puts it before the path that a worker inherits from its executor. As a setting for executors it would
        # replace that path, from which they import Keyscale.
        spark.sparkContext.environment["PYTHONPATH"] = path
    spark.sparkContext.environment.update(worker_variables(os.environ))
    with contextlib.closing(environment.channel()) as channel:
        access = StoreAccess.of(channel, os.environ)
        request = AttachRequest(pid=os.getpid(), host=platform.node(), spark_ui_url=spark.sparkContext.uiWebUrl)
        attachment = Attachment(channel, request, warm_up, on_assigned=lambda: renew(access))
        try:
            if access is not None:
                access.open()
            first = attachment.first(lambda: beat_ready(channel))
        except AttemptOverError:
            logger.info("the attempt was over before it began")
            return EXIT_FENCED
        except ControlRefusedError:
            logger.exception("the control plane refuses this driver")
            return EXIT_FAILED
        assignment = None if first is None else first.assignment or first.preview
        if first is None or assignment is None:
            return EXIT_OK
        outcome = JobRun(
            spark,
            channel,
            assignment,
            environment.work_dir,
            environment.local_root,
            libraries=environment.libraries,
            attachment=attachment if first.assignment is None else None,
            workers=spark.sparkContext.environment[NAME_VARIABLE],
            leave_spark=lambda: leave_spark(spark),
        ).run()
    return {DriverState.FAILED: EXIT_FAILED, DriverState.FENCED: EXIT_FENCED}.get(outcome, EXIT_OK)


def renew(access: StoreAccess | None) -> None:
    """Renews the store's credentials.

    The attempt may have been told to restore another job's snapshot.
    """
    if access is not None:
        with contextlib.suppress(ControlUnreachableError):
            access.renew()


def beat_ready(channel: ControlChannel) -> None:
    """Tells a control plane that gives no preview that Spark is warm."""
    with contextlib.suppress(ControlError):
        channel.heartbeat(Heartbeat(state=DriverState.STANDBY))


def leave_spark(spark: SparkSession) -> None:
    """Ends Spark and its JVM, but not this process."""
    _leaves_parent.set()
    end_jvm(spark)


def end_with_parent() -> None:
    """Ends this process, without clean-up, when its parent process ends.

    The JVM of spark-submit watches this process, and Python workers watch the JVM; without this function only the
    reverse direction would be missing.
    """
    parent = os.getppid()
    threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_PARENT_POLL_SECONDS)
    if _leaves_parent.is_set():
        return
    logger.error("spark-submit has ended, so the driver ends too")
    # sys.exit would wait for threads that wait for the ended JVM.
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    # Python puts a program's own directory first on the path: the user's modules may have the names of Keyscale's
    # modules.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    sys.exit(main())

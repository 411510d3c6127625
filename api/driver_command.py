"""The command line and the environment of a driver. Pure, but for the paths that it looks up."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from api.settings import LOOPBACK_HOSTS
from jobs.runtime.class_archive import ClassArchive
from jobs.runtime.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.settings import Settings
    from db.models import Attempt, Job

CHECKOUT = Path(__file__).resolve().parents[1]
STANDALONE_SCHEME = "spark://"
DRIVER_PROGRAM = CHECKOUT / "jobs" / "runtime" / "driver.py"
TASK_TRIES = 4
# What any program needs of its surroundings; everything else of the control plane's environment stays there. Sync points are
# named places in the code at which fault tests hold a process.
_INHERITED = (
    "HOME",
    "JAVA_HOME",
    "KEYSCALE_SYNC_DIRECTORY",
    "KEYSCALE_SYNC_POINT",
    "KEYSCALE_WARM_STATE_IDLE_MS",
    "LANG",
    "LC_ALL",
    "PATH",
    "TMPDIR",
    "TZ",
)

JOB_SECRETS = "KEYSCALE_JOB_SECRET_"  # as in jobs.secret, which is part of what users import


def master_of(settings: Settings, parallelism: int) -> str:
    """Returns the Spark master; `local` becomes one core a subtask and one for the source, with retries of tasks."""
    if settings.spark_master == "local":
        return f"local[{parallelism + 1},{TASK_TRIES}]"
    return settings.spark_master


def stays_on_loopback(master: str) -> bool:
    """Whether all of Spark is on this host: then nothing of a driver may listen beyond the loopback interface."""
    if not master.startswith(STANDALONE_SCHEME):
        return master.startswith("local")
    addresses = master.removeprefix(STANDALONE_SCHEME).split(",")
    return all(address.rpartition(":")[0] in LOOPBACK_HOSTS for address in addresses)


def driver_command(settings: Settings, job: Job, attempt: Attempt, work_directory: Path) -> list[str]:
    """Returns the command line of an attempt's driver. It holds no secret: other users may see it."""
    master = master_of(settings, attempt.parallelism)
    conf = {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **(LOCAL_SETTINGS if stays_on_loopback(master) else {}),
        **(share_of_cluster(attempt.parallelism) if master.startswith(STANDALONE_SCHEME) else {}),
        "spark.driver.memory": settings.driver_memory,
        **job.spark_conf,
        **REQUIRED_SETTINGS,
        "spark.app.name": f"keyscale-{job.name}-{attempt.number}",
        "spark.local.dir": str(work_directory / "spark"),
        "spark.sql.warehouse.dir": str(work_directory / "warehouse"),
    }
    options = [part for key, value in sorted(conf.items()) for part in ("--conf", f"{key}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", master, *options, str(DRIVER_PROGRAM)]


def driver_environment(settings: Settings, token: str, work_directory: Path, host: Mapping[str, str]) -> dict[str, str]:
    """Returns the whole environment of a driver: no address of the database, no token of a user.

    Args:
        settings: The control plane's.
        token: The attempt's own.
        work_directory: The attempt's own, ephemeral. Local state is beside all of the job's attempts: the next one finds files
            that it need not download, on this host and, at the same path, on any other one.
        host: The control plane's environment, of which only harmless variables and the secrets of jobs are passed on.
    """
    inherited = {name: host[name] for name in _INHERITED if name in host}
    secrets = {name: value for name, value in host.items() if name.startswith(JOB_SECRETS)}
    is_loopback = stays_on_loopback(settings.spark_master)
    return {
        "PATH": os.defpath,
        **inherited,
        **secrets,
        **settings.store_environment,
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_loopback else {}),
        "KEYSCALE_ATTEMPT_TOKEN": token,
        "KEYSCALE_CONTROL_URL": settings.control_url,
        "KEYSCALE_LOCAL_STATE_DIR": str(work_directory.parents[1] / "state"),
        "KEYSCALE_WORK_DIR": str(work_directory),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home()),
    }


def share_of_cluster(parallelism: int) -> dict[str, str]:
    """A core a subtask. A driver that takes all cores leaves none to other jobs, nor to the one that is to replace it.

    Subtasks stay where they are put first, so that waits until all executors are there, if they come soon: else the first one
    would be given all subtasks, for as long as the attempt lasts.
    """
    return {
        "spark.cores.max": str(parallelism),
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }


def spark_home() -> Path:
    """Returns where Spark is installed, without importing it.

    Raises:
        FileNotFoundError: It is not installed.
    """
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise FileNotFoundError("pyspark")
    return Path(package.origin).parent

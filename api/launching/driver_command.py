"""The command line and the environment of a driver.

Pure, except that it looks up paths of this installation.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.installation import DRIVER_PROGRAM, IMPORT_PATH, LOADER_PROGRAM
from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.protocol.spark_switches import SPARK_WITHOUT_VARIABLE, without_switched_off
from keyscale.log_lines import FORMAT_VARIABLE, JSON
from keyscale.vocabulary import RescaleMode

from ..job_spec import spec_of
from ..libraries.library_cache import PlacedLibraries
from ..settings import LOOPBACK_HOSTS
from .supervisor import DRIVER_USER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Attempt, Job, Revision
    from keyscale.jobs.protocol.specification import JobSpec

    from ..settings import Settings
    from .isolation import JobUser

STANDALONE_SCHEME = "spark://"
LEAF_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
SPARE_SUBTASKS_MIN = 8
"""A job with live rescales on a local master can be rescaled live to at least this parallelism."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
TASK_TRIES = 4
NO_LIBRARIES = PlacedLibraries()
LOADER_MEMORY = "1g"
SPARK_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - Spark's name for it; a setting could be seen by other users
# The variables that any program needs. Drivers inherit nothing else from the control plane. A sync point is a named
# place in the code where fault tests hold a process. `SPARK_SUBMIT_OPTS` is Spark's name for Java options of drivers.
_INHERITED = (
    "HOME",
    "JAVA_HOME",
    FORMAT_VARIABLE,
    SPARK_WITHOUT_VARIABLE,
    "KEYSCALE_FAILPOINT_DIRECTORY",
    "KEYSCALE_FAILPOINT",
    "KEYSCALE_WARM_STATE_IDLE_MS",
    "LANG",
    "LC_ALL",
    "PATH",
    "SPARK_SUBMIT_OPTS",
    "TZ",
)


_PLAIN_STORE_VARIABLES = (
    "AWS_CA_BUNDLE",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "KEYSCALE_S3_ENDPOINT",
)
"""Variables of the object store's client that hold no credentials, nor lead to any."""


def temporary_directory(work_directory: Path) -> Path:
    """Returns the directory for the temporary files of a run's processes.

    A killed process leaves its files there, and they are deleted with the run.
    """
    return work_directory.parent / "tmp"


def store_variables(settings: Settings, work_directory: Path, store_url: str) -> dict[str, str]:
    """Returns the variables by which a driver reaches the object store.

    The credentials are the control plane's, or narrower ones in a file that the driver keeps fresh. Other sources of
    credentials are disabled.
    """
    given = settings.store_environment
    if settings.store_role is None or not store_url.startswith("s3://"):
        return dict(given)
    return {
        **{name: given[name] for name in _PLAIN_STORE_VARIABLES if name in given},
        "AWS_CONFIG_FILE": str(work_directory / "store-access.ini"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "KEYSCALE_STORE_CREDENTIALS_RENEWED": "1",
    }


def master_of(settings: Settings, subtasks: int) -> str:
    """Returns the Spark master.

    `local` becomes one core per subtask and one for the source, with retries of tasks.
    """
    if settings.spark_master == "local":
        return f"local[{subtasks + 1},{TASK_TRIES}]"
    return settings.spark_master


def subtasks_at_once(settings: Settings, spec: JobSpec, parallelism: int) -> int:
    """Returns for how many subtasks of an operator a driver gets cores.

    A job with live rescales gets some to spare, as Spark cannot get more later. Idle threads of a local master cost
    nothing, whereas a cluster reserves the cores.
    """
    if spec.rescale_mode is RescaleMode.STANDBY:
        return parallelism
    spare = max(2 * parallelism, SPARE_SUBTASKS_MIN) if settings.spark_master == "local" else parallelism
    limit = min(spec.parallelism_limit or spare, spec.max_parallelism, settings.job_limits.parallelism_max)
    return max(parallelism, limit)


def stays_on_loopback(master: str) -> bool:
    """Returns whether all of Spark runs on this host.

    A driver then listens on the loopback interface only.
    """
    if not master.startswith(STANDALONE_SCHEME):
        return master.startswith("local")
    addresses = master.removeprefix(STANDALONE_SCHEME).split(",")
    return all(address.rpartition(":")[0] in LOOPBACK_HOSTS for address in addresses)


def driver_command(
    settings: Settings,
    job: Job,
    revision: Revision,
    attempt: Attempt,
    work_directory: Path,
    *,
    libraries: PlacedLibraries = NO_LIBRARIES,
) -> list[str]:
    """Returns the command line of an attempt's driver.

    It contains no secret, because other users can see it.
    """
    spec = spec_of(revision)
    subtasks = subtasks_at_once(settings, spec, attempt.parallelism)
    master = master_of(settings, subtasks)
    conf = {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **(LOCAL_SETTINGS if stays_on_loopback(master) else {}),
        **authentication(settings, master),
        **({"spark.log.structuredLogging.enabled": "true"} if settings.log_format == JSON else {}),
        **(share_of_cluster(subtasks) if master.startswith(STANDALONE_SCHEME) else {}),
        # By default, Spark splits files for all cores.
        **({LEAF_PARALLELISM: str(attempt.parallelism + 1)} if subtasks > attempt.parallelism else {}),
        "spark.driver.memory": settings.driver_memory,
        **spec.spark_conf,
        **REQUIRED_SETTINGS,
        "spark.app.name": f"keyscale-{job.name}-{attempt.number}",
        "spark.local.dir": str(work_directory / "spark"),
        "spark.sql.warehouse.dir": str(work_directory / "warehouse"),
        **library_settings(libraries, master),
    }
    return _spark_submit(master, conf, DRIVER_PROGRAM, work_directory)


def _spark_submit(master: str, conf: Mapping[str, str], program: Path, work_directory: Path) -> list[str]:
    own = {_JAVA_OPTIONS: f"{conf[_JAVA_OPTIONS]} {_temporary_files_of_java(work_directory)}"}
    options = [
        part
        for key, value in sorted(without_switched_off({**conf, **own}).items())
        for part in ("--conf", f"{key}={value}")
    ]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", master, *options, str(program)]


def _temporary_files_of_java(work_directory: Path) -> str:
    """Returns the option for Java's temporary files, quoted as Spark reads options."""
    path = str(temporary_directory(work_directory)).replace("\\", "\\\\").replace('"', '\\"')
    return f'-Djava.io.tmpdir="{path}"'


def driver_environment(
    settings: Settings,
    token: str,
    work_directory: Path,
    host: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    store_url: str = "",
    user: JobUser | None = None,
    libraries: PlacedLibraries = NO_LIBRARIES,
) -> dict[str, str]:
    """Returns the complete environment of a driver.

    It lacks the database's address and users' tokens.

    Args:
        settings: The control plane's settings.
        token: The attempt's token.
        work_directory: The attempt's directory, ephemeral. Local state is kept beside all of the job's attempts, so
            that the next attempt downloads less: on this host and, at the same path, on other hosts.
        host: The control plane's environment. Only harmless variables are passed on.
        secrets: Variables with the secrets that the job names.
        store_url: The job's store, if it differs from the settings.
        user: The job's own user, whom the supervisor makes the driver's; None: the control plane's user.
        libraries: The job's libraries, on this host.
    """
    inherited = {name: host[name] for name in _INHERITED if name in host}
    is_loopback = stays_on_loopback(settings.spark_master)
    return {
        "PATH": os.defpath,
        **inherited,
        **secrets,
        **store_variables(settings, work_directory, store_url or settings.store_url),
        **({} if user is None else {"HOME": str(work_directory), DRIVER_USER_VARIABLE: user.text}),
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_loopback else {}),
        **({SPARK_SECRET_VARIABLE: settings.spark_secret} if settings.spark_secret else {}),
        "KEYSCALE_ATTEMPT_TOKEN": token,
        "KEYSCALE_CONTROL_URL": settings.control_url,
        **({"KEYSCALE_CA_FILE": str(settings.ca_file)} if settings.ca_file else {}),
        **library_variables(libraries, settings.spark_master),
        "KEYSCALE_LOCAL_STATE_DIR": str(work_directory.parents[1] / "state"),
        "KEYSCALE_WORK_DIR": str(work_directory),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        # Libraries come before the environment's packages, and may not replace them: so a job gets its own version of a
        # package that only a development environment has.
        "PYTHONPATH": os.pathsep.join(map(str, (IMPORT_PATH, *libraries.python_path))),
        "PYTHONSAFEPATH": "1",  # else modules beside the driver's program could be imported by their bare names
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home()),
        "TMPDIR": str(temporary_directory(work_directory)),
    }


def library_settings(libraries: PlacedLibraries, master: str) -> dict[str, str]:
    """Returns the Spark settings for a job's jars and modules.

    Executors on other hosts get the modules.
    """
    archives = [] if master.startswith("local") else zip(libraries.archives, executor_path(libraries), strict=True)
    found = {
        "spark.jars": ",".join(map(str, libraries.jars)),
        "spark.archives": ",".join(f"{archive}#{name}" for archive, name in archives),
    }
    return {key: value for key, value in found.items() if value}


def library_variables(libraries: PlacedLibraries, master: str) -> dict[str, str]:
    """Returns the variables that tell a driver its libraries.

    They also tell where its executors have them.

    An executor unpacks archives into its working directory, from which its Python workers start.
    """
    path = [] if master.startswith("local") else executor_path(libraries)
    found = {"KEYSCALE_LIBRARIES": ",".join(libraries.sha256s), "KEYSCALE_EXECUTOR_PYTHONPATH": os.pathsep.join(path)}
    return {name: value for name, value in found.items() if value}


def executor_path(libraries: PlacedLibraries) -> list[str]:
    """Returns the directories into which executors unpack archives."""
    return [f"keyscale-library-{number}" for number, _ in enumerate(libraries.archives)]


def loader_command(
    settings: Settings, spark_conf: Mapping[str, str], work_directory: Path, libraries: PlacedLibraries = NO_LIBRARIES
) -> list[str]:
    """Returns the command line of a program loader.

    Spark runs on this host alone, whatever master jobs have.
    """
    master = f"local[1,{TASK_TRIES}]"
    conf = {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **LOCAL_SETTINGS,
        **authentication(settings, master),
        **spark_conf,
        **REQUIRED_SETTINGS,
        "spark.driver.memory": LOADER_MEMORY,
        "spark.app.name": "keyscale-plan",
        "spark.ui.enabled": "false",
        **library_settings(libraries, master),
        "spark.local.dir": str(work_directory / "spark"),
        "spark.sql.warehouse.dir": str(work_directory / "warehouse"),
    }
    return _spark_submit(master, conf, LOADER_PROGRAM, work_directory)


def loader_environment(
    work_directory: Path,
    host: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    user: JobUser | None = None,
    libraries: PlacedLibraries = NO_LIBRARIES,
) -> dict[str, str]:
    """Returns the complete environment of a program loader.

    It contains no token, no address, and no key of the object store.

    Arguments as for `driver_environment`.
    """
    return {
        "PATH": os.defpath,
        **{name: host[name] for name in _INHERITED if name in host},
        **secrets,
        "HOME": str(work_directory),
        **({} if user is None else {DRIVER_USER_VARIABLE: user.text}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "KEYSCALE_WORK_DIR": str(work_directory),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (IMPORT_PATH, *libraries.python_path))),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home()),
        "TMPDIR": str(temporary_directory(work_directory)),
    }


def authentication(settings: Settings, master: str) -> dict[str, str]:
    """Returns the settings by which Spark's processes accept only each other.

    In local mode Spark generates the secret. A cluster's operator gives the secret to the cluster's processes.
    """
    if master.startswith("local"):
        return {"spark.authenticate": "true"}
    return {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"} if settings.spark_secret else {}


def share_of_cluster(subtasks: int) -> dict[str, str]:
    """Returns the settings that limit a driver to one core per subtask.

    A driver that takes all cores leaves none for other jobs, nor for the driver that will replace it. Subtasks stay
    where they are first placed. So the job waits a short time until all executors have registered: otherwise the first
    executor would get all subtasks for as long as the attempt lasts.
    """
    return {
        "spark.cores.max": str(subtasks),
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

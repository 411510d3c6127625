"""Builds the archive of classes that drivers start with.

See `jobs/protocol/class_archive.py`. The build takes half a minute. As a program, which `build_if_missing` runs through
spark-submit, this is a driver without a job: it warms up and ends.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from keyscale.installation import IMPORT_PATH

from ...protocol.class_archive import QUIET
from ...protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from .warm_up import WarmUp

if TYPE_CHECKING:
    from ...protocol.class_archive import ClassArchive

logger = logging.getLogger(__name__)

_BUILD_SECONDS = 600.0


def build_if_missing(archive: ClassArchive, python: str = sys.executable) -> bool:
    """Builds the archive, unless it exists.

    Several processes may call this at once.

    Returns:
        Whether the archive exists now. A failure is logged: drivers then start without the archive, more slowly.
    """
    if archive.path.is_file():
        return True
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="class-archive-", dir=archive.path.parent) as scratch:
        built = Path(scratch) / "built.jsa"
        command = _command(Path(scratch), built, python)
        environment = {
            **os.environ,
            "PYTHONPATH": str(IMPORT_PATH),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        try:
            done = subprocess.run(  # noqa: S603 - the command is ours
                command, env=environment, cwd=scratch, capture_output=True, timeout=_BUILD_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("no class archive could be built: %s", error)
            return False
        if not built.is_file():
            logger.warning("no class archive could be built: %s", done.stderr.decode(errors="replace")[-2000:])
            return False
        built.replace(archive.path)
    return True


def _command(scratch: Path, archive: Path, python: str) -> list[str]:
    settings = {
        **DEFAULT_SETTINGS,
        **REQUIRED_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} {QUIET}",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    submit = str(Path(python).parent / "spark-submit")
    return [submit, "--master", "local[2,4]", *options, str(Path(__file__).resolve()), str(scratch / "warm-up")]


def main() -> None:
    """Loads the classes of a session and of a usual streaming job."""
    warm_up = WarmUp(SparkSession.builder.getOrCreate(), Path(sys.argv[1]), parallelism=2)
    warm_up.start()
    warm_up.wait()


if __name__ == "__main__":
    main()

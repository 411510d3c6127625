"""Makes drivers start in half the time: an archive of the JVM's loaded classes, made once, mapped by every JVM after it.

Measured with PySpark 4.3 on Java 17: starting a session and running the first streaming batch took 10.1 s of CPU time without
the archive and 6.1 s with it. The archive depends on the Java and the Spark that made it; another JVM ignores it.

    archive = ClassArchive.of_environment()
    archive.build_if_missing(python=sys.executable)     # about half a minute, once
    settings |= archive.settings()                      # empty as long as it is missing

As a program (run by `build_if_missing` through spark-submit) this is a driver without a job: it warms up and ends.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jobs.runtime.spark_settings import DEFAULT_SETTINGS, JAVA_OPTIONS, LOCAL_SETTINGS, REQUIRED_SETTINGS

_log = logging.getLogger(__name__)

_BUILD_SECONDS = 600.0
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for this machine's Java and Spark, whether it is there or not."""

    path: Path

    @classmethod
    def of_environment(cls) -> ClassArchive:
        """The archive that belongs to this Python environment, and goes with it."""
        return cls.at(Path(sys.prefix) / "cache" / "keyscale")

    @classmethod
    def at(cls, directory: Path) -> ClassArchive:
        """The archive in a cache directory; its name changes with Java's and Spark's versions."""
        java = shutil.which("java", path=_java_path()) or ""
        identity = f"{Path(java).resolve()} {_modified_ns(java)} {importlib.metadata.version('pyspark')}"
        return cls(directory / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa")

    def settings(self) -> dict[str, str]:
        """Spark settings for the JVMs of a job: `JAVA_OPTIONS`, and in the driver the archive, unless it is missing."""
        driver = JAVA_OPTIONS
        if self.path.is_file():
            driver += f" -XX:SharedArchiveFile={self.path} -Xshare:auto {_QUIET}"
        return {"spark.driver.extraJavaOptions": driver, "spark.executor.extraJavaOptions": JAVA_OPTIONS}

    def build_if_missing(self, python: str = sys.executable) -> bool:
        """Make the archive, unless it is there. Safe to be called by several processes at once.

        Returns:
            Whether it is there now. A failure is logged: drivers start without it, only slower.
        """
        if self.path.is_file():
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="class-archive-", dir=self.path.parent) as scratch:
            made = Path(scratch) / "made.jsa"
            command = _command(Path(scratch), made, python)
            environment = {
                **os.environ,
                "PYTHONPATH": str(_CHECKOUT),
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": python,
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            try:
                done = subprocess.run(  # noqa: S603 - the command is ours
                    command, env=environment, cwd=scratch, capture_output=True, timeout=_BUILD_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                _log.warning("no class archive could be made: %s", error)
                return False
            if not made.is_file():
                _log.warning("no class archive could be made: %s", done.stderr.decode(errors="replace")[-2000:])
                return False
            made.replace(self.path)
        return True


def _command(scratch: Path, archive: Path, python: str) -> list[str]:
    settings = {
        **DEFAULT_SETTINGS,
        **REQUIRED_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} {_QUIET}",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    submit = str(Path(python).parent / "spark-submit")
    return [submit, "--master", "local[2,4]", *options, str(Path(__file__).resolve()), str(scratch / "warm-up")]


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else os.environ.get("PATH", os.defpath)


def _modified_ns(file: str) -> int:
    return Path(file).stat().st_mtime_ns if file else 0


def main() -> None:
    """Load what a driver loads: a session, and a streaming job of the usual shape."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the launcher imports this module without Spark

    from jobs.runtime.warmth import WarmUp  # noqa: PLC0415 - as above

    warm_up = WarmUp(SparkSession.builder.getOrCreate(), Path(sys.argv[1]), parallelism=2)
    warm_up.start()
    warm_up.wait()


if __name__ == "__main__":
    main()

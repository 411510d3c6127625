"""Python environments for contenders that need their own.

Each is made at its first use from a lock with hashes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pyspark

BENCH = Path(__file__).resolve().parent
PARQUET_MODULE = "org.apache.flink:flink-sql-parquet:2.3.0"
PARQUET_FILE = "org.apache.flink_flink-sql-parquet-2.3.0.jar"
PARQUET_SHA256 = "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd"


class PackageError(RuntimeError):
    """A package could not be downloaded."""


class ParquetJarError(RuntimeError):
    """Flink's Parquet format is not the expected file."""


def flink_python(root: Path) -> Path:
    """Returns the interpreter of an environment with PyFlink.

    PyFlink includes a whole Flink.
    """
    folder = root / "flink"
    python = folder / "bin" / "python"
    lock = BENCH / "requirements-flink.lock"
    if not _is_made_from(folder, lock):
        venv.create(folder, with_pip=True, clear=True)
        _install(python, lock)
        _mark_made_from(folder, lock)
    return python


def flink_jars(root: Path) -> list[str]:
    """Returns the jars with which Flink reads and writes Parquet.

    They are Flink's own format, and the Hadoop classes that come with Spark.

    Raises:
        ParquetJarError: The downloaded file differs from the one this benchmark was written with.
    """
    jar = _package_jars(root / "ivy", PARQUET_MODULE) / PARQUET_FILE
    if hashlib.sha256(jar.read_bytes()).hexdigest() != PARQUET_SHA256:
        jar.unlink()
        raise ParquetJarError(f"{PARQUET_MODULE} is not the file it was")
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    return [str(jar), *sorted(str(path) for path in hadoop)]


def flink_options(root: Path) -> dict[str, Any]:
    """Returns the options of a contender that starts a Flink session."""
    return {"python": str(flink_python(root)), "jars": flink_jars(root)}


def kafka_connector_jars(root: Path) -> str:
    """Returns Spark's Kafka connector jars, comma separated; empty if missing.

    The list includes its dependencies, as in spark.jars.
    """
    return ",".join(sorted(str(path) for path in (root / "kafka-connector").glob("*.jar")))


def _package_jars(cache: Path, module: str) -> Path:
    """Returns the folder with a package and its dependencies.

    Spark's own resolver downloads it, so that a second resolver is unnecessary.

    Raises:
        PackageError: The package is unavailable; jars from elsewhere may be put into the folder.
    """
    jars = cache / "jars"
    if not jars.exists():
        command = [_spark_submit(), "--master", "local[1]", "--packages", module, "--conf", f"spark.jars.ivy={cache}"]
        try:
            _run([*command, "--conf", "spark.ui.enabled=false", str(BENCH / "nothing.py")])
        except subprocess.CalledProcessError as failure:
            message = f"{module} cannot be downloaded (see above); put it and its dependencies into {jars}"
            raise PackageError(message) from failure
    return jars


def transform_with_state_path(root: Path) -> str:
    """Returns a PYTHONPATH entry for Spark's transformWithState.

    It has the imports that our own environment lacks.
    """
    folder = root / "transform-with-state"
    lock = BENCH / "requirements-transform-with-state.lock"
    if not _is_made_from(folder, lock):
        _install(Path(sys.executable), lock, "--target", str(folder), "--upgrade")
        _mark_made_from(folder, lock)
    return str(folder)


def _install(python: Path, lock: Path, *options: str) -> None:
    hashed = ["--no-deps", "--require-hashes"]  # the lock is complete: pip resolves nothing, and so finds nothing newer
    _run([str(python), "-m", "pip", "install", "--quiet", *hashed, *options, "-r", str(lock)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, env={**os.environ, "PYSPARK_PYTHON": sys.executable})  # noqa: S603 - fixed programs


def _spark_submit() -> str:
    return str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


def _is_made_from(folder: Path, lock: Path) -> bool:
    marker = folder / "made-from.sha256"
    return marker.exists() and marker.read_text(encoding="ascii") == _digest(lock)


def _mark_made_from(folder: Path, lock: Path) -> None:
    (folder / "made-from.sha256").write_text(_digest(lock), encoding="ascii")


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()

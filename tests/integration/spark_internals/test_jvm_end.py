"""Relied on: the JVM of spark-submit exits by our code and leaves the Python driver alone.

A failure here means that jobs cannot sleep.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyscale.jobs.protocol.exit_codes import EXIT_ASLEEP
from tests.support.repository import ROOT

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

SCRIPT = """
import os
from pyspark.sql import SparkSession
from keyscale.jobs.spark_internals.jvm_end import end_jvm

parent = os.getppid()
end_jvm(SparkSession.builder.getOrCreate())
print("the driver goes on", os.getppid() != parent, flush=True)
"""


def test_the_driver_goes_on_and_writes_where_the_jvm_wrote(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]", str(script)]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    # The pipe ends with its last writer, the Python process.
    assert (ended.returncode, "the driver goes on True" in ended.stdout) == (EXIT_ASLEEP, True), ended.stderr

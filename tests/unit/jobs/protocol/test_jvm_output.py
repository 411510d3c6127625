"""A JVM's greeting stays away from a command's standard error, and its other lines do not."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from keyscale.jobs.protocol.jvm_output import without_greeting

if TYPE_CHECKING:
    import pytest

LINES = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/28 09:31:51 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
Setting Spark log level to "ERROR".
26/11/28 09:31:52 ERROR Executor: no space left
"""


def test_only_lines_that_say_something_reach_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with without_greeting() as passing:
        subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.stderr.write({LINES!r})"], check=True)
    passing.join()
    sys.stderr.write("ours\n")
    assert capfd.readouterr().err == "26/11/28 09:31:52 ERROR Executor: no space left\nours\n"

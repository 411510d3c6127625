"""A real Kafka broker for the latency benchmark, from the local stack.

It has its own folder and port.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.measure import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PORT = 59292
ADDRESS = f"127.0.0.1:{PORT}"
JARS = CHECKOUT / ".keyscale" / "stack" / "kafka-jars"  # the local stack's


@contextmanager
def broker(folder: Path) -> Iterator[Path]:
    """Runs a broker; yields the folder of its jars and tools."""
    _control(folder, "install")
    _control(folder, "start")
    try:
        yield JARS
    finally:
        _control(folder, "stop")


def create_topic(folder: Path, name: str, partitions: int) -> None:
    """Creates a topic on the running broker."""
    _control(folder, "create-topic", name, str(partitions))


def tool(jars: str, java_class: str, arguments: Sequence[str]) -> list[str]:
    """Returns the command line of one of Kafka's tools."""
    return ["java", "-Xmx256m", "-cp", f"{jars}/*", java_class, *arguments]


def _control(folder: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        "KEYSCALE_STACK_DIR": str(folder),
        "KEYSCALE_STACK_KAFKA_JARS": str(JARS),
        "KEYSCALE_STACK_KAFKA_PORT": str(PORT),
    }
    command = [str(CHECKOUT / "deploy" / "stack" / "kafka"), *arguments]
    subprocess.run(command, check=True, env=environment)  # noqa: S603 - our own script

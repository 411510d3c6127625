"""A host's clock that is moved does not hold up who reads or writes Kafka: its client waits until a time of day."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from threading import Thread
from typing import IO, TYPE_CHECKING

import pytest

from tests.support.readable_sources import readable
from tests.support.servers.host_clock import clock_library, clock_variables, set_clock, sleeping_modules
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

READER = """
import sys, time
from keyscale.jobs.sources.kafka_partition import FIXED, PartitionReader

servers, topic = sys.argv[1:]
for line in sys.stdin:
    if line == "clock\\n":
        print(time.time(), flush=True)
        continue
    start, end = map(int, line.split())
    if start == 0:
        reader = PartitionReader(topic, 0, {**FIXED, "bootstrap.servers": servers, "group.id": "clock"}, 60.0)
    print(sum(len(messages) for messages in reader.read(start, end)), flush=True)
"""
PLANNER = """
import sys, time
from keyscale.jobs.errors import SourceUnavailableError
from keyscale.jobs.sources.kafka import KafkaSource

servers, topic = sys.argv[1:]
source = KafkaSource(servers, topic, timeout_ms=5_000)
while True:
    try:
        source.latest(source.discover(()), None)
        print(time.time(), flush=True)
    except SourceUnavailableError:
        pass  # as a driver does, it asks again
"""
WRITER = """
import sys, time
from confluent_kafka import KafkaException
from keyscale.jobs.sinks import kafka_transactions
from keyscale.jobs.sinks.kafka_transactions import TransactionalTopic

kafka_transactions._SECONDS = 5.0
servers, topic = sys.argv[1:]
while True:
    try:
        opened = TransactionalTopic({"bootstrap.servers": servers}, topic, 60_000)
        opened.last_marker()
        while True:
            opened.write([{"topic": topic, "value": b"x"}], b"marker")
            print(time.time(), flush=True)
    except KafkaException:
        pass  # as a sink does, it opens another one
"""
HOUR_SECONDS = 3600
SECONDS = 90.0
LIBRARY = clock_library()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.skipif(LIBRARY is None, reason="needs Debian's faketime")
def test_a_reader_goes_on_after_the_clock_was_set_back_by_an_hour(kafka: Broker, tmp_path: Path) -> None:
    topic, clock = kafka.create_topic(), tmp_path / "clock"
    set_clock(clock, HOUR_SECONDS)
    kafka.send(topic, [str(number) for number in range(10)])
    with subprocess.Popen(
        [sys.executable, "-c", READER, kafka.servers, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=moved(clock),
    ) as reader:

        def answer(line: str) -> str:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write(f"{line}\n")
            reader.stdin.flush()
            assert readable([reader.stdout], SECONDS), f"no answer to: {line}"
            return reader.stdout.readline()

        try:
            assert float(answer("clock")) > time.time() + HOUR_SECONDS / 2
            assert answer("0 10") == "10\n"
            set_clock(clock, 0)
            wait_until(lambda: float(answer("clock")) < time.time() + HOUR_SECONDS / 2, what="the clock's move")
            kafka.send(topic, [str(number) for number in range(10)])
            assert answer("10 20") == "10\n"
        finally:
            reader.kill()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.skipif(LIBRARY is None, reason="needs Debian's faketime")
@pytest.mark.parametrize("program", [PLANNER, WRITER], ids=["planner", "writer"])
def test_offsets_are_planned_and_transactions_written_again_after_the_clock_was_set_back_by_an_hour(
    kafka: Broker, tmp_path: Path, program: str
) -> None:
    """While the clock is an hour on, faketime has each wait of the client last an hour, unless an answer ends it.

    So the broker is away meanwhile. On a real host only those waits last that begin before the clock is set back.
    """
    topic, clock = kafka.create_topic(), tmp_path / "clock"
    set_clock(clock, 0)
    with subprocess.Popen(
        [sys.executable, "-c", program, kafka.servers, topic],
        stdout=subprocess.PIPE,
        text=True,
        env=moved(clock),
    ) as child:
        said = Said(child)
        try:
            wait_until(lambda: said.lines > 3, SECONDS, what="its work to begin")
            set_clock(clock, HOUR_SECONDS)
            wait_until(
                lambda: said.clock_s > time.time() + HOUR_SECONDS / 2 or said.silent_seconds() > 3,
                SECONDS,
                what="the clock's move",
            )
            kafka.control("stop")
            wait_until(lambda: said.silent_seconds() > 3, SECONDS, what="a wait that stands")
            set_clock(clock, 0)
            kafka.control("start")
            before = said.lines
            wait_until(lambda: said.lines > before + 3, SECONDS, what="its work to go on")
        finally:
            child.kill()


def moved(clock: Path) -> dict[str, str]:
    """Returns the environment of a process whose clock the file moves."""
    assert LIBRARY is not None
    modules = sleeping_modules(clock.with_suffix(".modules"))
    python_path = f"{modules}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, **clock_variables(LIBRARY, clock), "PYTHONPATH": python_path}


class Said:
    """How many lines a process has said, when the last one, and what its clock was then."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines = 0
        self.clock_s = 0.0
        self._last_s = time.monotonic()
        Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def silent_seconds(self) -> float:
        return time.monotonic() - self._last_s

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self.lines += 1
            self.clock_s = float(line)
            self._last_s = time.monotonic()

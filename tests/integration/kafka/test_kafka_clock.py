"""A host's clock that is moved does not hold up a reader of Kafka: its client waits until a time of day."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.host_clock import clock_library, clock_variables, set_clock
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.kafka_broker import Broker

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
HOUR_SECONDS = 3600
SECONDS = 90.0
LIBRARY = clock_library()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.skipif(LIBRARY is None, reason="needs Debian's faketime")
def test_a_reader_goes_on_after_the_clock_was_set_back_by_an_hour(kafka: Broker, tmp_path: Path) -> None:
    assert LIBRARY is not None
    topic, clock = kafka.create_topic(), tmp_path / "clock"
    set_clock(clock, HOUR_SECONDS)
    kafka.send(topic, [str(number) for number in range(10)])
    with subprocess.Popen(
        [sys.executable, "-c", READER, kafka.servers, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock_variables(LIBRARY, clock)},
    ) as reader:

        def answer(line: str) -> str:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write(f"{line}\n")
            reader.stdin.flush()
            assert select.select([reader.stdout], [], [], SECONDS)[0], f"no answer to: {line}"
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

"""A job with a compiled wheel, a helper module, a jar and Spark's own Kafka source, brought by its user's commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import ROOT
from tests.support.servers.spark_cluster import running_spark_cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.command_line import CommandAnswer
    from tests.support.servers.kafka_broker import Broker

pytestmark = pytest.mark.real

JOB = ROOT / "tests" / "support" / "jobs" / "libraries_job.py"
WORDS = ["caf&eacute;", "tea", "caf&eacute;", "&amp;"]
SECONDS = 600.0


def fetch_jars(directory: Path, name: str, coordinate: str) -> None:
    command = [ROOT / "deploy" / "stack" / "spark-package", directory, name, coordinate]
    subprocess.run(command, check=True, env={**os.environ, "KEYSCALE_VENV": sys.prefix}, timeout=300)


def is_running(job: dict[str, Any], parallelism: int) -> bool:
    return (job["status"]["state"], job["spec"]["parallelism"]) == ("RUNNING", parallelism)


def is_asleep(job: dict[str, Any]) -> bool:
    """Whether a job sleeps: its driver counts the records of Spark's source."""
    assert job["status"]["failure"] is None, job["status"]["failure"]
    return bool(job["status"]["state"] == "SLEEPING")


@pytest.mark.exhaustive
@pytest.mark.parametrize("master", ["local", "standalone"])
def test_a_job_with_a_wheel_a_module_a_jar_and_sparks_kafka_source_is_exact_and_keeps_them_over_a_rescale(
    master: str, kafka: Broker, tmp_path: Path
) -> None:
    fetch_jars(tmp_path / "packages", "kafka", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0")
    fetch_jars(tmp_path / "jars", "jsoup", "org.jsoup:jsoup:1.21.1")
    [jar] = (tmp_path / "jars" / "jsoup").glob("jsoup-*.jar")
    helper = tmp_path / "counting_words.py"
    helper.write_text("def spelled(word):\n    return word.upper()\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("orjson\nnumpy\n")
    topic, output = kafka.create_topic(2), tmp_path / "out"
    settings = {"KEYSCALE_SPARK_JARS": str(tmp_path / "packages")}
    with ExitStack() as stack:
        if master == "standalone":
            cluster = stack.enter_context(running_spark_cluster(tmp_path / "stack", workers=2, cores=2, memory_mb=1024))
            settings["KEYSCALE_SPARK_MASTER"] = cluster.master
        platform = stack.enter_context(running_control_plane(settings))

        def run(*arguments: str) -> CommandAnswer:
            answer = keyscale(platform, *arguments)
            assert answer.exit_code == 0, answer.stderr
            return answer

        def rows() -> list[dict[str, Any]]:
            return [json.loads(row["json"]) for row in sink_rows(output)]

        def has_rows(count: int) -> bool:
            job = platform.api.get("/v1/jobs/words")
            assert job["status"]["failure"] is None, job["status"]["failure"]
            return len(rows()) == count

        parameters = {"servers": kafka.servers, "topic": topic, "output": str(output)}
        memory = ["--set", "spark_conf.spark.executor.memory=512m"] if master == "standalone" else []
        run(
            *("jobs", "create", "words", "--file", str(JOB), "--requirements", str(requirements)),
            *("--library", str(helper), "--library", str(jar), "--library", "package:kafka"),
            *(part for name, value in parameters.items() for part in ("--parameter", f"{name}={value}")),
            *memory,
            *("--set", "rescale_mode=STANDBY"),  # a new driver has to find the libraries, too
            "--start",
        )
        for partition in range(2):
            kafka.send(topic, WORDS, partition=partition)
        wait_until(lambda: has_rows(8), SECONDS, what="the first words")
        run("rescale", "words", "2", "--no-wait")
        wait_until(lambda: is_running(platform.api.get("/v1/jobs/words"), 2), SECONDS, what="the rescale")
        kafka.send(topic, WORDS, partition=0)
        wait_until(lambda: has_rows(12), SECONDS, what="all words")
        sent = 3
        if master == "local":
            sleeps = {"autoscaler.mode": "ACTIVE", "autoscaler.sleep_after_ms": 10_000}
            run(
                "jobs",
                "update",
                "words",
                *(part for each in sleeps.items() for part in ("--set", "{}={}".format(*each))),
            )
            wait_until(lambda: is_asleep(platform.api.get("/v1/jobs/words")), SECONDS, what="the sleep")
            kafka.send(topic, WORDS, partition=1)
            sent += 1
            wait_until(lambda: has_rows(16), SECONDS, what="the words after the wake")
        run("jobs", "cancel", "words")
    assert Counter(row["word"] for row in rows()) == {"CAFÉ": 2 * sent, "TEA": sent, "&": sent}
    assert sorted(row["count"] for row in rows() if row["word"] == "CAFÉ") == [*range(1, 2 * sent + 1)]

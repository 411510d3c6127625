"""A client of a Flink session, which stays warm between jobs.

It runs in the Flink environment. Each line of its input is a JSON object of settings for one more job.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyflink.common import Configuration  # type: ignore[import-not-found] # lives in the Flink environment
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]

from bench.peers.flink import file_tables
from bench.peers.flink_sql import QUERY

if TYPE_CHECKING:
    from collections.abc import Mapping

MONITOR_INTERVAL = "100 ms"


def main(work: str) -> None:
    """Submits a job for each line, and prints its id.

    The jobs have one compiled plan: another plan of the same query would not fit the savepoint of the first.
    """
    plan = f"'{work}/plan.json'"
    for line in sys.stdin:
        streams = _session(json.loads(line))
        tables = file_tables(streams, f"{work}/input", Path(work, "output"), monitor_interval=MONITOR_INTERVAL)
        tables.execute_sql(f"COMPILE PLAN {plan} IF NOT EXISTS FOR {QUERY}")
        print(tables.execute_sql(f"EXECUTE PLAN {plan}").get_job_client().get_job_id(), flush=True)


def _session(settings: Mapping[str, str]) -> StreamExecutionEnvironment:
    """Returns an environment whose jobs run in the session.

    Python's own function returns a local environment to a program that `flink run` has not started.
    """
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    gateway = get_gateway()
    java = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    address, port, jars = settings["rest.address"], int(settings["rest.port"]), gateway.new_array(gateway.jvm.String, 0)
    return StreamExecutionEnvironment(java.createRemoteEnvironment(address, port, configuration._j_configuration, jars))


if __name__ == "__main__":
    main(*sys.argv[1:])

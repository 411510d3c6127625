"""`./keyscale bench api`: steady reads of the API with long history."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from bench.control_plane import cpu_seconds, fill_database, started
from bench.measure import ContenderFailedError
from bench.table import Table, count, decimal
from keyscale.db.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.client.connection import Connection

SENDERS = 32
WARM_UP_S = 10
TIMEOUT_S = 30.0
TARGET_P99_MS = 50
READS = {
    "list of jobs, 50 a page": "/v1/jobs?limit=50",
    "list of jobs, a later page": "/v1/jobs?limit=50&after={cursor}",
    "a job": "/v1/jobs/job-{job}",
    "checkpoints of a job, 20 a page": "/v1/jobs/job-{job}/checkpoints?limit=20",
    "a checkpoint with its subtasks": "/v1/jobs/job-{job}/checkpoints/{checkpoint}",
}


@dataclass(frozen=True, slots=True)
class ApiSizes:
    """The size of the measurement.

    Attributes:
        jobs: Jobs in the database.
        checkpoints: Checkpoints in the database, shared out evenly.
        rate: Requests per second, in turn of each kind.
        seconds: The duration of the requests.
        replicas: Control planes on the one database, which get the requests in turn. Each is a Python process, which
            uses one core.
        cores: The cores of the machine for everything, including the sender.
    """

    jobs: int
    checkpoints: int
    rate: int
    seconds: int
    replicas: int
    cores: int


def run_api(sizes: ApiSizes, say: Callable[[str], None]) -> list[Table]:
    """Starts control planes on a filled embedded PostgreSQL, and reads steadily."""
    # Not below the benchmark's root: as root, PostgreSQL runs as another user, who may not enter private directories.
    with (
        tempfile.TemporaryDirectory(prefix="keyscale-bench-", ignore_cleanup_errors=True) as directory,
        ExitStack() as running,
    ):
        first = started(Path(directory) / "home-1", {}, running)
        shared = {
            "KEYSCALE_DATABASE_URL": EmbeddedPostgres(first.home / "postgres").url,
            "KEYSCALE_STORE_URL": (first.home / "store").as_uri(),
        }
        homes = [Path(directory) / f"home-{number}" for number in range(2, sizes.replicas + 1)]
        members = [first, *(started(home, shared, running) for home in homes)]
        say("filling the database")
        fill_database(first.home, jobs=sizes.jobs, checkpoints=sizes.checkpoints // sizes.jobs)
        connections = [member.connection for member in members]
        _send(
            connections, replace(sizes, seconds=WARM_UP_S)
        )  # the first requests open connections, and plan statements
        say(f"{sizes.rate} requests per second for {sizes.seconds} s")
        before = cpu_seconds(members)
        took = _send(connections, sizes)
        cpu = {name: seconds - before[name] for name, seconds in cpu_seconds(members).items()}
        return [_table(took, cpu, sizes)]


def _send(connections: Sequence[Connection], sizes: ApiSizes) -> dict[str, list[float]]:
    """Returns the milliseconds from each request's due time to its answer.

    They are grouped by kind. Its client is the simplest of the standard library, because it shares the server's cores.
    """
    own = threading.local()
    took: dict[str, list[float]] = {kind: [] for kind in READS}
    headers = [{"Authorization": f"Bearer {connection.token}"} for connection in connections]
    half = min(500, sizes.jobs // 2)
    listed = httpx.get(f"{connections[0].url}/v1/jobs?limit={half}", headers=headers[0], trust_env=False)
    cursor = listed.json()["next"]
    chance = random.Random(7)
    begin = time.monotonic() + 1

    def send(member: int, kind: str, path: str, due: float) -> None:
        if not hasattr(own, "kept"):
            own.kept = [HTTPConnection(urlsplit(each.url).netloc, timeout=TIMEOUT_S) for each in connections]
        time.sleep(max(0.0, due - time.monotonic()))
        own.kept[member].request("GET", path, headers=headers[member])
        answer = own.kept[member].getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ContenderFailedError(f"{path} was answered {answer.status}: {body!r}")
        took[kind].append(1000 * (time.monotonic() - due))

    with ThreadPoolExecutor(SENDERS) as senders:
        kinds = list(READS)
        sent = []
        for number in range(sizes.rate * sizes.seconds):
            kind = kinds[number % len(kinds)]
            each = sizes.checkpoints // sizes.jobs
            job, checkpoint = chance.randint(1, sizes.jobs), chance.randint(max(1, each - 50), each)
            path = READS[kind].format(cursor=cursor, job=job, checkpoint=checkpoint)
            member = number // len(kinds) % len(connections)  # each gets every kind
            sent.append(senders.submit(send, member, kind, path, begin + number / sizes.rate))
        for one in sent:
            one.result()
    return took


def _table(took: dict[str, list[float]], cpu_seconds: dict[str, float], sizes: ApiSizes) -> Table:
    title = (
        f"{sizes.rate} reads per second, {sizes.jobs:,} jobs and {sizes.checkpoints:,} checkpoints in the database,"
        f" {sizes.replicas} control planes"
    )
    table = Table(title, ("read", "requests", "p50 ms", "p99 ms", "worst ms"))
    everything = [one for values in took.values() for one in values]
    for kind, values in (*took.items(), ("all", everything)):
        cuts = statistics.quantiles(values, n=100)
        table.add(kind, count(len(values)), decimal(cuts[49]), decimal(cuts[98]), decimal(max(values)))
    table.notes.append(f"target: a p99 of at most {TARGET_P99_MS} ms")
    each = ", ".join(f"{name} {1000 * seconds / len(everything):.1f}" for name, seconds in cpu_seconds.items())
    table.notes.append(f"CPU milliseconds per request: {each}")
    table.notes.append(f"after {WARM_UP_S} s at the same rate")
    table.notes.append("from the moment when a request is due; the sender and PostgreSQL use the same cores")
    return table

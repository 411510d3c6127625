"""Stand-ins for the drivers of idle jobs, all in one process.

    python -m bench.idle_drivers URL JOBS

They begin when a line comes on the input. Each sends what a real driver sends while nothing happens, on connections
that it keeps.
"""

from __future__ import annotations

import asyncio
import sys
from hashlib import md5
from urllib.parse import urlsplit

from keyscale.clock import now_ms
from keyscale.jobs.protocol.messages import Commit, GraphNode, Heartbeat, OperatorMetrics, SubtaskMetrics
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.reporter import HEARTBEAT_INTERVAL_SECONDS, QUIET_SECONDS, WAIT_SECONDS
from keyscale.state.documents.job_counters import JobCounters
from keyscale.vocabulary import DriverState

ATTEMPT = 1
_SUBTASKS = 2
GONE, UNAVAILABLE = 410, 503


def job_id(number: int) -> str:
    """Returns the id of the job with a number."""
    return md5(f"job{number}".encode(), usedforsecurity=False).hexdigest()


def token(job: str) -> str:
    """Returns the token of a job's attempt."""
    return f"driver-{job}"


def idle_heartbeat() -> Heartbeat:
    """Returns the report of an idle driver with two operators."""
    status, at_ms = DriverStatus(), now_ms()
    uids = ("parsed", "totals")
    nodes = [("events", "SOURCE"), *((uid, "OPERATOR") for uid in uids), ("files", "SINK")]
    status.declared([GraphNode.model_validate({"uid": uid, "kind": kind}) for uid, kind in nodes])
    status.follows(3)
    status.restored(at_ms, JobCounters())
    subtasks = [SubtaskMetrics(index=index, read_records=1000) for index in range(_SUBTASKS)]
    status.committed(
        Commit(batch_id=0, at_ms=at_ms),
        counters=JobCounters(),
        input_records=1000,
        output_records=1000,
        duration_ms=250.0,
        operators=[OperatorMetrics(uid=uid, read_records=1000, subtasks=subtasks) for uid in uids],
    )
    status.waits_for_input(waits=True)
    status.enter(DriverState.RUNNING)
    return status.heartbeat()


async def _repeat(url: str, request: bytes, begin_s: float, pause_s: float) -> None:
    """Repeats a request of one driver until its attempt is over."""
    await asyncio.sleep(begin_s)
    host, port = urlsplit(url).netloc.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    while await _is_answered(reader, writer, request):  # noqa: ASYNC110 - it waits for no event
        await asyncio.sleep(pause_s)
    writer.close()


def _request(method: str, path: str, netloc: str, job: str, body: str = "") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {netloc}\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
        f"Connection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\nAuthorization: Bearer {token(job)}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


async def _is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bool:
    """Sends a request; returns False if the attempt is over.

    A control plane that is short of time may answer that it is unavailable; a driver then sends again later.

    Raises:
        ConnectionError: The control plane refuses the request.
    """
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    status = int(head.split()[1])
    if not 200 <= status < 300 and status not in {GONE, UNAVAILABLE}:
        raise ConnectionError(f"{head.splitlines()[0]}: {body.decode()}")
    return status != GONE


async def main(url: str, jobs: int) -> None:
    """Drives jobs until the process is ended; their heartbeats are spread evenly."""
    netloc, heartbeat = urlsplit(url).netloc, idle_heartbeat()
    body, call = heartbeat.model_dump_json(), f"/driver/call?revision={heartbeat.revision}&seconds={WAIT_SECONDS}"
    async with asyncio.TaskGroup() as drivers:
        for number in range(jobs):
            job, share = job_id(number + 1), number / jobs
            reports = _request("POST", "/driver/heartbeat", netloc, job, body)
            waits = _request("GET", call, netloc, job)
            drivers.create_task(_repeat(url, reports, QUIET_SECONDS * share, QUIET_SECONDS))
            drivers.create_task(_repeat(url, waits, QUIET_SECONDS * (1 + share), HEARTBEAT_INTERVAL_SECONDS))


if __name__ == "__main__":
    sys.stdin.readline()
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""The logs of executors are read where Spark's own cluster manager keeps them; others are named."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.runtime.diagnostics import executor_logs as executor_logs_module
from keyscale.jobs.runtime.diagnostics.executor_logs import LOG_BYTES, logs_of
from keyscale.jobs.spark_internals.live_executors import DRIVER, LiveExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

QUERY = "?appId=app-1&executorId=0&logType=stderr"


class SparkWorker(BaseHTTPRequestHandler):
    """Answers like the pages of a worker of a standalone cluster."""

    def do_GET(self) -> None:
        is_known = self.path == f"/log/{QUERY}&byteLength={LOG_BYTES}"
        self.send_response(200 if is_known else 404)
        self.end_headers()
        self.wfile.write(b"==== Bytes 0-4 of 4 of /spark/app-1/0/stderr ====\nlast")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SparkWorker) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def texts(executor: LiveExecutor) -> dict[str, str]:
    return {title: read() for title, read in logs_of(executor)}


def test_the_end_of_a_log_is_read_from_the_worker_that_keeps_it(url: str) -> None:
    found = texts(LiveExecutor("0", "host:1", {"stderr": f"{url}/logPage/{QUERY}"}))
    assert list(found) == ["executor 0 on host:1: stderr"]
    assert found["executor 0 on host:1: stderr"].endswith("\nlast")


def test_a_log_that_cannot_be_read_is_named(url: str) -> None:
    unknown = f"{url}/logPage/?appId=other"
    (found,) = texts(LiveExecutor("0", "host:1", {"stdout": unknown})).values()
    assert found.startswith(f"The log is at {unknown}, which the driver cannot read: ")
    (found,) = texts(LiveExecutor("0", "host:1", {"stdout": "https://yarn/logs/1"})).values()
    assert found == "The log is at https://yarn/logs/1"
    (found,) = texts(LiveExecutor("0", "host:1", {})).values()
    assert "gives no address" in found


def test_the_drivers_own_output_is_in_the_log_of_the_job() -> None:
    (found,) = texts(LiveExecutor(DRIVER, "host:1", {})).values()
    assert "The log of the job" in found


def test_the_logs_of_all_executors_are_listed_by_executor_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = [
        LiveExecutor("0", "away:7078", {"stderr": "http://a/x", "stdout": "http://a/y"}),
        LiveExecutor("1", "near:1", {}),
        LiveExecutor(DRIVER, "here:2", {"stderr": "http://a/z"}),
    ]
    monkeypatch.setattr(executor_logs_module, "live_executors", {"spark": executors}.__getitem__)
    found = executor_logs_module.executor_logs(cast("Any", "spark"))
    assert {title: read() for title, read in found.items()} == {
        "executor 0 on away:7078: stderr": "The log is at http://a/x",
        "executor 0 on away:7078: stdout": "The log is at http://a/y",
        "executor 1 on near:1": "The cluster manager gives no address of its log.",
        f"executor {DRIVER} on here:2": "The log of the job has the output of this process.",
    }

"""`./keyscale bench pages`: load time and size of the dashboard's pages.

It uses a real browser.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from playwright.sync_api import sync_playwright

from bench.control_plane import fill_database, started
from bench.measure import CHECKOUT, ContenderFailedError
from bench.table import Table, count, decimal
from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.dashboard.router import CHART_LIBRARY, TABS

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

    from keyscale.client.connection import Connection

TARGET_MS = 1000
TARGET_BYTES = 1_000_000
TIMEOUT_MS = 30_000
_IS_READY = """() => {
  const shown = [...document.querySelectorAll("h1, p, td, div, span")].filter((each) => each.checkVisibility());
  return document.querySelector("h1") !== null && !shown.some((each) => each.textContent.trim() === "Loading…");
}"""

_LARGEST_PAINT_MS = """() => new Promise((resolve) => new PerformanceObserver(
  (list) => resolve(list.getEntries().at(-1).startTime)
).observe({ type: "largest-contentful-paint", buffered: true }))"""


@dataclass(frozen=True, slots=True)
class PageSizes:
    """The size of the measurement.

    Attributes:
        jobs: Jobs in the database.
        checkpoints: Checkpoints of each job.
        rounds: The number of loads of each page.
        cores: The cores of the machine for everything, including the browser.
    """

    jobs: int
    checkpoints: int
    rounds: int
    cores: int


@dataclass(slots=True)
class Loads:
    """The loads of one page: milliseconds, and bytes over the network.

    Bytes are counted with and without the chart library.
    """

    first_ms: list[float] = field(default_factory=list)
    painted_ms: list[float] = field(default_factory=list)
    again_ms: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    library_bytes: int = 0


class Traffic:
    """The requests of a page from Chromium's events, with answers' bytes."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._bytes: dict[str, float] = {}

    def begin(self, event: dict[str, Any]) -> None:
        self._addresses[event["requestId"]] = event["request"]["url"]

    def receive(self, event: dict[str, Any]) -> None:
        """Counts a part of an answer.

        An event stream has only such counts, because it does not end.
        """
        self._bytes[event["requestId"]] = self._bytes.get(event["requestId"], 0) + event["encodedDataLength"]

    def end(self, event: dict[str, Any]) -> None:
        self._bytes[event["requestId"]] = event["encodedDataLength"]

    def bytes_of(self, ending: str) -> int:
        """Returns the bytes of the answers with addresses of this ending."""
        return int(sum(size for one, size in self._bytes.items() if self._addresses.get(one, "").endswith(ending)))


def run_pages(sizes: PageSizes, say: Callable[[str], None]) -> list[Table]:
    """Opens every page of a filled control plane's dashboard, in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="keyscale-bench-", ignore_cleanup_errors=True) as directory,
        ExitStack() as running,
    ):
        control_plane = started(Path(directory) / "home", {}, running)
        say("filling the database")
        fill_database(control_plane.home, jobs=sizes.jobs, checkpoints=sizes.checkpoints)
        pages = {
            "/ui/": Loads(),
            **{f"/ui/jobs/job-1/{tab}": Loads() for tab in TABS},
            f"/ui/jobs/job-1/checkpoints/{sizes.checkpoints}": Loads(),
            "/ui/artifacts": Loads(),
            "/ui/system": Loads(),
        }
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=_chromium(),
                args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            for number in range(1 + sizes.rounds):  # the first round warms the control plane up
                say(f"round {number} of {sizes.rounds}")
                for path, loads in pages.items():
                    _open(browser, control_plane.connection, path, loads if number else Loads())
            browser.close()
        return [_table(pages, sizes)]


def _chromium() -> str:
    program = CHECKOUT / "deploy" / "install-test-browser"
    found = subprocess.run([program], capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if found.returncode:
        raise ContenderFailedError(found.stderr)
    return found.stdout.strip()


def _open(browser: Browser, connection: Connection, path: str, loads: Loads) -> None:
    """Opens a page with an empty cache, and then once more."""
    signed_in = httpx.post(f"{connection.url}/ui/login", data={"token": connection.token}, trust_env=False)
    context = browser.new_context()
    context.add_cookies([{"name": SESSION_COOKIE, "value": signed_in.cookies[SESSION_COOKIE], "url": connection.url}])
    page = context.new_page()
    network = context.new_cdp_session(page)
    traffic = Traffic()
    network.on("Network.requestWillBeSent", traffic.begin)
    network.on("Network.dataReceived", traffic.receive)
    network.on("Network.loadingFinished", traffic.end)
    network.send("Network.enable")
    for times in (loads.first_ms, loads.again_ms):
        began = time.perf_counter()
        page.goto(connection.url + path, wait_until="commit")
        page.wait_for_function(_IS_READY, timeout=TIMEOUT_MS)
        times.append(1000 * (time.perf_counter() - began))
        if times is loads.first_ms:
            page.wait_for_timeout(500)  # requests that are still under way count
            loads.painted_ms.append(page.evaluate(_LARGEST_PAINT_MS))
            loads.library_bytes = traffic.bytes_of(CHART_LIBRARY)
            loads.sent_bytes = traffic.bytes_of("") - loads.library_bytes
    context.close()


def _table(pages: dict[str, Loads], sizes: PageSizes) -> Table:
    title = f"Pages, {sizes.jobs:,} jobs of {sizes.checkpoints:,} checkpoints each, {sizes.rounds} loads"
    table = Table(
        title,
        ("page", "first load ms", "worst ms", "largest paint ms", "again ms", "sent bytes", "of the chart library"),
    )
    for path, loads in pages.items():
        table.add(
            path,
            decimal(statistics.median(loads.first_ms)),
            decimal(max(loads.first_ms)),
            decimal(statistics.median(loads.painted_ms)),
            decimal(statistics.median(loads.again_ms)),
            count(loads.sent_bytes),
            count(loads.library_bytes),
        )
    table.notes.append(f"targets: {TARGET_MS} ms, and {TARGET_BYTES:,} bytes without the chart library")
    table.notes.append("first load: with an empty cache, until nothing says that it is loading; medians")
    table.notes.append("sent bytes: of the first load, without the chart library")
    return table

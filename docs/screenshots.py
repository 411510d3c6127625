"""Takes the pictures of the dashboard's pages in docs/screenshots: `./keyscale screenshots`.

It runs the demo's job with its kill and its rescales, so that the pages show a real history, starts the job again, and
lets another one fail. With --url it photographs a control plane that is running already.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin

import httpx
from playwright.sync_api import sync_playwright
from rich.console import Console

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.api.dashboard.router import TABS
from keyscale.client.connection import Connection
from keyscale.client.keyscale import Keyscale
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.course import JOB_NAME, Course
from keyscale.deploy.demo.feeder import FILES
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.deploy.demo.progress import ProgressDisplay
from keyscale.deploy.demo.reports import departure_reports
from keyscale.deploy.demo.scenario import RescaleScenario
from keyscale.deploy.demo.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

DIRECTORY = Path(__file__).parent / "screenshots"
DELIVERY_SECONDS = 2.0
SETTLE_MS = 1500
"""Time for moving parts of a page to settle."""
CHARTS_DRAWN = """() => [...document.querySelectorAll('.charts')].filter((charts) => charts.offsetParent).every(
    (charts) => charts.children.length
        && [...charts.querySelectorAll('.plot')].every((plot) => plot.querySelector('.xtick'))
)"""
"""Returns whether every visible chart has its axis."""
FAILING_JOB = "checkout"
# A user's function fails, so that the page has a traceback to show.
FAILING_SCRIPT = b"""
from keyscale import KeyedProcessFunction, StreamEnvironment
from keyscale import FileSink


class Totals(KeyedProcessFunction):
    def process_element(self, order, context):
        yield {"customer": context.current_key, "total": int(order.amount)}


env = StreamEnvironment.current()
orders = env.stream(env.spark.readStream.schema("customer string, amount string").json(env.parameters["input"]))
totals = orders.key_by("customer").process(Totals(), output={"customer": "string", "total": "bigint"}).uid("totals")
totals.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
"""


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a page: colour scheme and width."""

    scheme: Literal["light", "dark"]
    width: int
    height: int

    @property
    def name(self) -> str:
        return f"{self.scheme}-{'wide' if self.width > 600 else 'narrow'}"


LOOKS = tuple(Look(scheme, *size) for scheme in ("light", "dark") for size in ((1280, 800), (390, 780)))


def take_all(connection: Connection, job: str, failed_job: str) -> list[Path]:
    """Takes a picture of every page in all looks.

    Args:
        connection: A running control plane.
        job: The job with a history.
        failed_job: The job whose exceptions are shown.

    Returns:
        The pictures.
    """
    with Keyscale(connection=connection) as control_plane:
        savepoint = control_plane.get(job_path(job, "checkpoints"))["latest"]["savepoint"]["id"]
    pages = {
        "jobs": "",
        **{tab: f"jobs/{failed_job if tab == 'exceptions' else job}/{tab}" for tab in TABS},
        "checkpoint": f"jobs/{job}/checkpoints/{savepoint}",
        "artifacts": "artifacts",
        "system": "system",
        "sign-in": "login",
        "unknown-page": "nothing",
    }
    DIRECTORY.mkdir(exist_ok=True)
    cookie = httpx.post(f"{connection.url}/ui/login", data={"token": connection.token}).cookies[SESSION_COOKIE]
    with _browser() as browser:
        return [
            _take(browser, f"{connection.url}/ui/{path}", "" if name == "sign-in" else cookie, name, look)
            for name, path in pages.items()
            for look in LOOKS
        ]


def _take(browser: Browser, url: str, cookie: str, name: str, look: Look) -> Path:
    context = browser.new_context(color_scheme=look.scheme, viewport={"width": look.width, "height": look.height})
    if cookie:
        context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": urljoin(url, "/")}])
    page = context.new_page()
    page.goto(url)
    page.wait_for_function("() => !document.body.innerText.includes('Loading…')")
    page.wait_for_function(CHARTS_DRAWN)
    page.wait_for_timeout(SETTLE_MS)
    picture = DIRECTORY / f"{name}-{look.name}.png"
    page.screenshot(path=picture)
    context.close()
    return picture


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=os.environ["KEYSCALE_CHROMIUM"], args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@contextmanager
def _control_plane_with_history() -> Iterator[Connection]:
    """Runs a control plane with a job that has a history, and a failed job."""
    with tempfile.TemporaryDirectory(prefix="keyscale-screenshots-", ignore_cleanup_errors=True) as directory:
        home = Path(directory) / "home"
        home.mkdir()
        process = ControlPlaneProcess(home, free_port(), {"KEYSCALE_JOB_USERS": "off", "KEYSCALE_SPARE_DRIVERS": "0"})
        try:
            process.start()
            with Keyscale(connection=process.connection) as control_plane:
                _make_history(control_plane, home / "data")
                with _delivered_again(home / "data" / "input"):
                    wait_for(
                        "a batch",
                        lambda: control_plane.get(job_path(JOB_NAME))["status"]["attempt"]["first_commit_at_ms"],
                        lambda: control_plane.get(job_path(JOB_NAME)),
                        timeout_s=300,
                    )
                    yield process.connection
        finally:
            process.stop()
            end_processes(processes_of(home))


@contextmanager
def _delivered_again(source: Path) -> Iterator[None]:
    """Delivers files of reports again, one by one, to keep the job busy."""
    ended = threading.Event()

    def deliver() -> None:
        for number, file in enumerate(itertools.cycle(sorted(source.glob(FILES)))):
            copy = source / f".again-{number}"  # hidden from the job until it is whole
            shutil.copyfile(file, copy)
            copy.rename(source / f"again-{number}.json")
            if ended.wait(DELIVERY_SECONDS):
                return

    thread = threading.Thread(target=deliver, name="deliveries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _make_history(control_plane: Keyscale, data: Path) -> None:
    scenario = RescaleScenario(reports=40_000)
    reports = departure_reports(scenario.reports)
    totals = {"files delivered": scenario.files, "reports in the sink": len(reports)}
    with ProgressDisplay(Console(), totals) as display:
        course = Course(control_plane, scenario, data, len(reports), display)
        course.run()
        control_plane.post(job_path(JOB_NAME, "start"))
        orders = data / "orders"
        orders.mkdir()
        (orders / "1.json").write_text('{"customer": "ada", "amount": "twelve"}\n')
        artifact = control_plane.upload("/v1/artifacts", filename="checkout.py", content=FAILING_SCRIPT)
        control_plane.post(
            "/v1/jobs",
            {
                "name": FAILING_JOB,
                "labels": {"team": "shop"},
                "spec": {
                    "artifact_id": artifact["id"],
                    "parameters": {"input": str(orders), "output": str(data / "totals")},
                    "restart": {"type": "none"},
                },
            },
        )
        control_plane.post(job_path(FAILING_JOB, "start"))
        for name, status in ((FAILING_JOB, "FAILED"), (JOB_NAME, "RUNNING")):
            wait_for(
                f"{name} to be {status}",
                lambda name=name, status=status: control_plane.get(job_path(name))["status"]["state"] == status,
                lambda name=name: control_plane.get(job_path(name)),
                timeout_s=scenario.step_timeout_s,
            )


def main() -> None:
    """Takes the pictures and prints their sizes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", help="A control plane that is running already.")
    options.add_argument("--token", default="")
    options.add_argument("--job", default=JOB_NAME)
    options.add_argument("--failed-job", default=FAILING_JOB)
    chosen = options.parse_args()
    if chosen.url:
        pictures = take_all(Connection(chosen.url, chosen.token), chosen.job, chosen.failed_job)
    else:
        with _control_plane_with_history() as connection:
            pictures = take_all(connection, JOB_NAME, FAILING_JOB)
    for picture in pictures:
        print(f"{picture.stat().st_size:>8,} {picture}")


if __name__ == "__main__":
    main()

"""The pages in a real browser, with a real control plane."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import expect

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.dashboard.router import CHART_LIBRARY, TABS, router
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.schemas.change import ChangeFiguresAnswer
from keyscale.api.services import series
from keyscale.clock import now_ms
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.models import Change
from keyscale.db.repositories import jobs
from keyscale.db.repositories import series as series_points
from keyscale.db.statuses import AttemptStage, ChangeKind, ChangePhase, ChangeStatus, UpgradeMode
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.state.keys.key_groups import key_group_range
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.control_plane.snapshots import Snapshots
from tests.support.servers.browser import faults_of_access, new_page, running_browser, sign_in
from tests.support.servers.postgres import create_database
from tests.support.short_form import short_form
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Request, Route
    from sqlalchemy import Engine

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = pytest.mark.real

NONE = "\N{EN DASH}"
PAGES = [
    "/ui/",
    "/ui/artifacts",
    "/ui/system",
    "/ui/nothing",
    "/ui/login",
    "/ui/jobs/departures/checkpoints/7",
    *(f"/ui/jobs/departures/{tab}" for tab in TABS),
]
LEADING_ELSEWHERE = {"/ui/jobs/departures", "/ui/sign-in", "/ui/signed-in"}
HOSTILE_NAME = "<img src=x onerror=alert(1)><script>alert(2)</script>"
SCRIPT = b"from keyscale import StreamEnvironment\n\nStreamEnvironment.current().execute()\n"


COLOR_OF = """(node, name) => {
  node.append(Object.assign(document.createElement("i"), { style: `color: var(${name})` }));
  const { color } = getComputedStyle(node.lastChild);
  node.lastChild.remove();
  return color;
}"""
"""Gives a colour of the style sheet as the browser tells it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as chromium:
        yield chromium


@dataclass
class Platform:
    """A control plane with two jobs that have never run, one of them with a hostile name."""

    control_plane: RunningControlPlane
    engine: Engine
    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.control_plane.api.connection.url

    @property
    def token(self) -> str:
        return self.control_plane.api.connection.token

    def create_job(self, name: str, **labels: str) -> str:
        api = self.control_plane.api
        artifact = api.upload("/artifacts", filename="job.py", content=SCRIPT)
        body = {"name": name, "artifact_id": artifact["id"], "parallelism": 2, "labels": labels}
        self.jobs[name] = api.post("/jobs", body)["id"]
        return self.jobs[name]

    def note_figures(self, name: str, reports: Sequence[dict[str, Any]]) -> None:
        """Stores what a driver of a job has reported before it ended, in steps of the series up to now."""
        with session_factory(self.engine).begin() as session:
            job = jobs.lock(session, self.jobs[name])
            assert job is not None
            attempt = JobTransaction(session, job).create_attempt(job.revision, Cause.START, stage=AttemptStage.ENDED)
            attempt.reaped, attempt.totals_before = True, {"late_records": 100}
            for steps_ago, report in enumerate(reversed(reports)):
                metrics = DriverMetrics.model_validate(report)
                series.sample(session, attempt, metrics, now_ms() - steps_ago * series.SAMPLE_MS)
            attempt.metrics = DriverMetrics.model_validate(reports[-1]).model_dump(mode="json")

    def snapshots_of(self, name: str) -> Snapshots:
        """Returns what makes checkpoints of a job that never ran."""
        return Snapshots(session_factory(self.engine), self.jobs[name])


@pytest.fixture(scope="module")
def platform(postgres_server: str) -> Iterator[Platform]:
    database = create_database(postgres_server, "dashboard")
    with running_control_plane({"KEYSCALE_DATABASE_URL": database}) as control_plane:
        platform = Platform(control_plane, open_engine(database))
        platform.create_job("departures")
        hostile = platform.create_job("hostile")
        # The API would refuse such a name, but other programs can write to the database.
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE jobs SET name = %s WHERE id = %s", (HOSTILE_NAME, hostile))
        yield platform
        platform.engine.dispose()


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """A page of a browser that is not signed in."""
    with new_page(browser) as page:
        yield page


@pytest.fixture
def page(visitor: Page, platform: Platform) -> Page:
    """A page of a browser that is signed in."""
    sign_in(visitor, platform.control_plane.api.connection)
    return visitor


def open_page(page: Page, platform: Platform, path: str) -> None:
    """Opens a page and waits until it shows what it has to show."""
    page.goto(platform.url + path)
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Loading…")
    expect(page.get_by_text("Loading…").filter(visible=True)).to_have_count(0)


# --- signing in -----------------------------------------------------------------------------------------------------


def test_a_token_leads_to_the_requested_page(visitor: Page, platform: Platform) -> None:
    visitor.goto(f"{platform.url}/ui/jobs/departures")
    expect(visitor).to_have_url(re.compile(r"/ui/login\?next="))
    visitor.get_by_label("Token").fill("not-the-token")
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor.get_by_role("alert")).to_contain_text("not valid")

    visitor.get_by_label("Token").fill(f"  {platform.token}\n")
    visitor.keyboard.press("Enter")
    expect(visitor).to_have_url(f"{platform.url}/ui/jobs/departures/overview")
    expect(visitor.get_by_role("heading", level=1)).to_have_text("departures")

    (cookie,) = visitor.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (SESSION_COOKIE, True, "Strict")
    visitor.get_by_role("button", name="Sign out").click()
    expect(visitor).to_have_url(f"{platform.url}/ui/login")
    assert visitor.context.cookies() == []


def test_a_link_may_carry_the_token_in_its_fragment_which_no_server_sees(visitor: Page, platform: Platform) -> None:
    visitor.goto(f"{platform.url}/ui/login#token={platform.token}")
    expect(visitor).to_have_url(f"{platform.url}/ui/login")
    visitor.keyboard.press("Enter")
    expect(visitor.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_the_root_leads_to_the_jobs(page: Page, platform: Platform) -> None:
    page.goto(platform.url)
    expect(page).to_have_url(f"{platform.url}/ui/")


def test_a_session_that_is_no_longer_valid_leads_to_the_login_form(visitor: Page, platform: Platform) -> None:
    visitor.context.add_cookies([{"name": SESSION_COOKIE, "value": "revoked", "url": platform.url}])
    visitor.goto(f"{platform.url}/ui/")
    expect(visitor).to_have_url(f"{platform.url}/ui/login?next=%2Fui%2F")


def test_the_cookie_alone_changes_nothing(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    send = "async (headers) => (await fetch('/jobs/departures/start', {method: 'POST', headers})).status"
    assert page.evaluate(send, {}) == 403
    assert platform.control_plane.api.get("/jobs/departures")["status"] == "CREATED"


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_and_a_hostile_name_is_only_text(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    table = page.get_by_role("table")
    row = table.get_by_role("row").filter(has_text="departures")
    expect(row.get_by_role("cell")).to_have_text(["Created", "2", NONE, NONE, NONE, NONE, NONE, "0", NONE])
    expect(table.get_by_role("rowheader", name=HOSTILE_NAME)).to_have_text(HOSTILE_NAME)
    assert page.locator("#jobs img, #jobs script").count() == 0

    table.get_by_role("link", name=HOSTILE_NAME).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_NAME)
    assert page.locator("main img, main script").count() == 0


def test_the_rates_and_the_last_checkpoint_of_a_job_are_in_the_table(page: Page, platform: Platform) -> None:
    def add_figures(route: Route) -> None:
        answer = route.fetch()
        (job,) = [one for one in answer.json()["jobs"] if one["name"] == "departures"]
        job["figures"] |= {"input_rate": 64.0, "processed_rate": 930.0}
        size = {"checkpointed_size": 2048, "state_size": 4096, "end_to_end_duration": 1500}
        job["latest_checkpoint"] = {"id": 7, "completed_at_ms": now_ms() - 65_000, **size}
        route.fulfill(response=answer, json={"jobs": [job], "next": None})

    page.route("**/jobs?limit=*", add_figures)
    page.goto(f"{platform.url}/ui/")
    row = page.get_by_role("table").get_by_role("row").filter(has_text="departures")
    expect(row.locator("[data-column='Input']")).to_have_text("64/scould process 930/s")
    expect(row.locator("[data-column='Last checkpoint']")).to_have_text(
        re.compile(r"^1 min \d+ s agoin 1.5 s, wrote 2 KiB$")
    )
    assert faults_of_access(page) == []
    page.unroute_all(behavior="wait")


def test_the_rate_that_a_job_could_process_is_drawn_over_time(page: Page, platform: Platform) -> None:
    platform.create_job("drawn")
    with session_factory(platform.engine).begin() as session:
        for steps_ago, processed_rate in enumerate((930.0, 800.0)):
            at_ms = now_ms() - steps_ago * series.SAMPLE_MS
            series_points.store(session, platform.jobs["drawn"], at_ms, {"processed_rate": processed_rate})
    open_page(page, platform, "/ui/jobs/drawn/overview")
    chart = page.get_by_role("figure").filter(has_text="Records it could process")
    expect(chart.get_by_role("img", name="Could process: from 800/s to 930/s, last 930/s")).to_be_visible()
    expect(chart.locator("figcaption")).to_have_text("Records it could process")  # the job does not run
    platform.control_plane.api.delete("/jobs/drawn")


def test_values_that_hold_are_joined_across_gaps_and_a_lone_point_is_seen(page: Page, platform: Platform) -> None:
    platform.create_job("sparse")
    with session_factory(platform.engine).begin() as session:
        for steps_ago, values in (
            (20, {"state_size": 4096.0}),
            (9, {}),
            (4, {"state_size": 8192.0, "lag_records": 7.0}),
        ):
            at_ms = now_ms() - steps_ago * series.SAMPLE_MS
            series_points.store(session, platform.jobs["sparse"], at_ms, {"busy_ratio": 0.5, **values})
    open_page(page, platform, "/ui/jobs/sparse/overview")
    state = page.get_by_role("figure").filter(has_text="State")
    expect(state.locator("figcaption")).to_have_text("State8 KiB")
    expect(state.locator(".lines path")).to_have_attribute("d", re.compile(r"^M[^M]+[LHV][^M]+$"))
    waiting = page.get_by_role("figure").filter(has_text="Records waiting")
    point = waiting.locator(".points path").last.bounding_box()
    assert point is not None
    assert point["width"] > 3
    platform.control_plane.api.delete("/jobs/sparse")


def test_a_chart_says_the_values_of_now_and_one_late_report_is_no_gap(page: Page, platform: Platform) -> None:
    platform.create_job("late")
    now_at_ms = now_ms()
    with session_factory(platform.engine).begin() as session:
        for steps_ago in (6, 5, 3, 2):
            at_ms = now_at_ms - steps_ago * series.SAMPLE_MS
            series_points.store(session, platform.jobs["late"], at_ms, {"lag_records": 7.0, "state_size": 4096.0})

    def run(route: Route) -> None:
        answer = route.fetch()
        figures = {"input_rate": 5.0, "lag_records": 9, "state_size": 9216}
        route.fulfill(response=answer, json=answer.json() | {"figures": answer.json()["figures"] | figures})

    page.route("**/jobs/late", run)
    page.route("**/jobs/late/stream", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/late/overview")
    waiting = page.get_by_role("figure").filter(has_text="Records waiting")
    expect(waiting.locator("figcaption")).to_have_text("Records waiting9")
    expect(page.get_by_role("figure").filter(has_text="State").locator("figcaption")).to_have_text("State9 KiB")
    expect(waiting.locator(".lines path")).to_have_attribute("d", re.compile(r"^M[^M]+L[^M]+$"))
    page.unroute_all(behavior="wait")
    platform.control_plane.api.delete("/jobs/late")


def test_charts_keep_their_order_and_none_stays_of_another_span(page: Page, platform: Platform) -> None:
    platform.create_job("mixed")
    days_ago_ms = now_ms() - 3 * 24 * 3_600_000
    with session_factory(platform.engine).begin() as session:
        for at_ms, values in (
            (days_ago_ms, {"lag_records": 7.0, "state_size": 1024.0}),
            (now_ms(), {"state_size": 4096.0, "processed_rate": 5.0}),
        ):
            series_points.store(session, platform.jobs["mixed"], at_ms, values)
    open_page(page, platform, "/ui/jobs/mixed/overview")
    titles = page.locator("#charts figure figcaption strong").filter(visible=True)
    expect(titles).to_have_text(["Records it could process", "State"])
    page.get_by_role("button", name="7 days").click()
    expect(titles).to_have_text(["Records it could process", "Records waiting", "State"])
    page.get_by_role("button", name="15 min").click()
    expect(titles).to_have_text(["Records it could process", "State"])
    platform.control_plane.api.delete("/jobs/mixed")


def test_the_graph_shows_a_rate_only_where_it_is_known_and_says_what_is_of_now(page: Page, platform: Platform) -> None:
    graph = [
        {"uid": "views", "kind": "SOURCE", "inputs": []},
        {"uid": "counts", "kind": "OPERATOR", "inputs": ["views"]},
        {"uid": "windows", "kind": "OPERATOR", "inputs": ["views"]},
        {"uid": "count-files", "kind": "SINK", "inputs": ["counts"]},
        {"uid": "dead-files", "kind": "SINK", "inputs": ["counts"]},
        {"uid": "window-files", "kind": "SINK", "inputs": ["windows"]},
    ]
    subtask = {"index": 0, "read_records": 200, "write_records": 198, "busy_ratio": 0.4}
    operators = [
        {
            "uid": uid,
            "read_records_per_second": 200,
            "write_records_per_second": 180,
            "event_time_lag_ms": 84_000,
            "subtasks": [subtask],
        }
        for uid in ("counts", "windows")
    ]
    platform.create_job("fanned")
    platform.note_figures("fanned", [{"batches": 3, "graph": graph, "operators": operators, "input_records": 1000}])
    shown: dict[str, Any] = {"input_rate": 200.0, "metrics": {}}

    def run(route: Route) -> None:
        answer = route.fetch()
        job = answer.json()
        job["attempt"]["last_commit_at_ms"] = now_ms()
        job["attempt"]["metrics"] |= shown["metrics"]
        job["figures"]["input_rate"] = shown["input_rate"]
        route.fulfill(response=answer, json=job)

    page.route("**/jobs/fanned", run)
    page.route("**/jobs/fanned/stream", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/fanned/overview")
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text(f"Records waiting{NONE}the sources do not say")
    nodes = page.get_by_role("group", name="Graph of the operators").get_by_role("listitem")
    expect(nodes.filter(has_text="windows").first).to_contain_text("In, out200/s, 180/sBehind events1 min 24 s")
    for sink in ("count-files", "dead-files"):
        expect(nodes.filter(has_text=sink)).to_contain_text(f"Arriving{NONE}Systemanswers")
    expect(nodes.filter(has_text="window-files")).to_contain_text("Arriving180/s")
    expect(page.locator(".graph-edges text")).to_have_text(["200/s", "200/s", "", "", "180/s"])
    for node in nodes.all():  # what is in a box stays in it, one below the other
        name, *rest = node.locator("> *").all()
        edges = [each.bounding_box() for each in (name, *rest, node)]
        tops = [(box["y"], box["y"] + box["height"]) for box in edges if box is not None]
        assert all(upper[1] <= lower[0] + 1 for upper, lower in pairwise(tops[:-1]))
        assert tops[-1][0] < tops[0][0] < tops[-2][1] < tops[-1][1]
    assert faults_of_access(page) == []

    shown["metrics"] = {"graph": [], "operators": []}
    expect(nodes.filter(has_text="windows").first).to_contain_text("no batch yet")
    shown |= {"input_rate": None, "metrics": {}}
    expect(nodes.filter(has_text="window-files")).to_contain_text(f"Arriving{NONE}System{NONE}")
    expect(nodes.filter(has_text="windows").first).to_contain_text(f"Busiest subtask{NONE}")
    page.unroute_all(behavior="wait")
    platform.control_plane.api.delete("/jobs/fanned")


def test_a_page_is_usable_by_keyboard(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    link = page.get_by_role("link", name="departures")
    expect(link).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        if reached[-1] == "departures":
            break
    assert reached[-1] == "departures", reached
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")


@pytest.mark.parametrize("width", [320, 700, 1280])
def test_a_narrow_window_never_scrolls_sideways(page: Page, platform: Platform, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    for path in PAGES:
        open_page(page, platform, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_long_name_hides_nothing_of_the_artifacts_in_a_narrow_window(page: Page, platform: Platform) -> None:
    long = platform.create_job("n" * 100)
    page.set_viewport_size({"width": 390, "height": 800})
    open_page(page, platform, "/ui/artifacts")
    expect(page.get_by_role("link", name="n" * 100)).to_be_visible()
    table = page.get_by_role("group", name="Table of artifacts")
    assert table.evaluate("table => table.scrollWidth - table.clientWidth") == 0
    platform.control_plane.api.delete(f"/jobs/{long}")


@pytest.mark.parametrize("width", short_form([360, 1280], [1280]))
def test_axe_finds_nothing_on_any_page_in_either_theme(page: Page, platform: Platform, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in PAGES:
        open_page(page, platform, path)
        assert faults_of_access(page) == [], path


def test_no_page_sends_a_megabyte_besides_the_chart_library(browser: Browser, platform: Platform) -> None:
    for path in PAGES:
        assert 1000 < bytes_sent(browser, platform, path) < 1_000_000, path


def bytes_sent(browser: Browser, platform: Platform, path: str) -> int:
    """Opens a page with an empty cache; returns the bytes of the answers that have ended, without the chart library."""
    ended: list[Request] = []

    def end(request: Request) -> None:
        ended.append(request)

    with new_page(browser) as page:
        page.on("requestfinished", end)
        sign_in(page, platform.control_plane.api.connection)
        open_page(page, platform, path)
        return sum(each.sizes()["responseBodySize"] for each in ended if not each.url.endswith(CHART_LIBRARY))


def test_the_pages_of_these_tests_are_all_that_there_are() -> None:
    pages = {route.path for route in router.routes if isinstance(route, APIRoute) and "GET" in route.methods}
    parts = {"{job}": "departures", "{checkpoint}": "7", "{path:path}": "nothing"}
    shown = {reduce(lambda path, part: path.replace(*part), parts.items(), page) for page in pages}
    assert shown - {"/ui/static/{name:path}", *LEADING_ELSEWHERE} == {
        *(set(PAGES) - {f"/ui/jobs/departures/{tab}" for tab in TABS}),
        "/ui/jobs/departures/{tab}",
    }


def test_jobs_are_filtered_and_sorted_as_the_address_says(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/?q=depart&sort=-Name")
    rows = page.locator("#jobs tr")
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Name or label")).to_have_value("depart")
    page.get_by_label("Name or label").fill("")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("departures")
    page.get_by_role("button", name="Name").click()
    expect(rows.first).to_contain_text(HOSTILE_NAME)
    expect(page).to_have_url(f"{platform.url}/ui/?sort=Name")
    expect(page.get_by_label("Sort by")).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 700})  # where the heads of columns are out of sight
    expect(page.get_by_label("Sort by")).to_have_value("Name")
    page.get_by_label("Sort by").select_option("Name, descending")
    expect(rows.first).to_contain_text("departures")
    expect(page).to_have_url(f"{platform.url}/ui/?sort=-Name")
    page.get_by_label("Status").select_option("RUNNING")
    expect(rows).to_have_count(0)
    expect(page.locator("#filtered")).to_have_text("0 jobs shown")


def test_a_viewer_sees_no_buttons_that_would_be_refused(visitor: Page, platform: Platform) -> None:
    api = platform.control_plane.api
    made = api.post("/tokens", {"name": "watcher", "role": "VIEWER"})
    sign_in(visitor, replace(api.connection, token=made["token"]))
    open_page(visitor, platform, "/ui/jobs/departures/rescale")
    expect(visitor.locator("#viewer")).to_have_text("watcher · Viewer")
    expect(visitor.get_by_role("button")).to_have_text(["Sign out"])
    for path in ("/ui/", "/ui/artifacts", "/ui/system"):
        open_page(visitor, platform, path)
        shown = visitor.get_by_role("button").filter(visible=True).all_inner_texts()
        assert not {"New job", "Upload a file", "Make a token", "Delete…", "Revoke…"} & set(shown)


def test_a_program_is_uploaded_and_becomes_a_job_on_the_page(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    form.get_by_label("Program").set_input_files({"name": "my_job.py", "mimeType": "text/x-python", "buffer": SCRIPT})
    expect(form.get_by_label("Name", exact=True)).to_have_value("my-job")
    form.get_by_label("Parameters").fill("input")
    form.get_by_label("Start it at once").uncheck()
    problem = form.get_by_text("“input” is not NAME=VALUE.")
    expect(problem).to_be_visible()
    form.get_by_label("Parameters").fill("input=/data/in\nquery=a=b")
    expect(problem).to_be_hidden()
    form.get_by_role("button", name="Create the job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("my-job")

    page.get_by_role("link", name="Configuration").click()
    expect(page.get_by_role("row", name="query a=b")).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete the job").click()
    expect(page).to_have_url(f"{platform.url}/ui/")
    expect(page.get_by_role("link", name="my-job")).to_have_count(0)


def test_the_form_of_a_new_job_keeps_nothing_of_what_was_corrected(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 1280, "height": 500})  # lower than the form
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    expect(form).to_contain_text("a .zip with a main.py at its top")
    name, refusal = form.get_by_label("Name", exact=True), form.get_by_role("alert")
    for file, expected in (("bad.txt.py", "bad.txt"), ("departures.py", "departures")):
        form.get_by_label("Program").set_input_files({"name": file, "mimeType": "text/x-python", "buffer": SCRIPT})
        expect(name).to_have_value(expected)
    form.get_by_label("Program").set_input_files({"name": "read.md", "mimeType": "text/markdown", "buffer": SCRIPT})
    expect(form.get_by_text("A program is a .py or a .zip file.")).to_be_visible()
    form.get_by_label("Program").set_input_files({"name": "departures.py", "mimeType": "text/x", "buffer": SCRIPT})
    expect(form.get_by_text("A program is a .py or a .zip file.")).to_be_hidden()
    form.get_by_role("button", name="Create the job").click()
    expect(refusal).to_have_text(re.compile(r"there is a job called departures\. [A-Z].*\.$"))
    expect(refusal).to_be_in_viewport(ratio=1)
    name.fill("arrivals")
    expect(refusal).to_have_count(0)
    form.get_by_label("Program").set_input_files({"name": "more.py", "mimeType": "text/x-python", "buffer": SCRIPT})
    expect(name).to_have_value("arrivals")  # the user's own


UNUSABLE = [
    (
        "/ui/?",
        "Name",
        "-job",
        "Only letters, digits, dots, dashes and underscores, please; the first is a letter or a digit.",
    ),
    ("/ui/?", "Max parallelism", "40000", "A whole number from 1 to 32,768, please."),
    ("/ui/?", "Max parallelism", "-1", "A whole number from 1 to 32,768, please."),
    ("/ui/?", "Labels", "team=web, trial", "“trial” is not NAME=VALUE."),
    ("/ui/?", "Labels", "team=web, team=ops", "“team” is there twice."),
    ("/ui/system", "Days", "0", "A whole number from 1 to 3,650, please."),
    ("/ui/jobs/departures/key-groups", "Ranges at parallelism", "129", "A whole number from 1 to 128, please."),
    ("/ui/jobs/departures/revisions?edit=yes", "Parallelism", "1.5", "A whole number from 1 to 128, please."),
    ("/ui/jobs/departures/revisions?edit=yes", "Checkpoint every", "0", "A number of at least 0.1, please."),
    ("/ui/jobs/departures/revisions?edit=yes", "Spark settings", "spark.x", "“spark.x” is not NAME=VALUE."),
]


def test_a_field_that_cannot_be_used_says_why_before_it_is_sent(page: Page, platform: Platform) -> None:
    for path, label, text, problem in UNUSABLE:
        open_page(page, platform, path)
        if path == "/ui/?":
            page.get_by_role("button", name="New job").click()
        field = page.get_by_role("dialog" if path == "/ui/?" else "main").get_by_label(label, exact=True)
        before = field.input_value()
        field.fill(text)
        said = page.get_by_text(problem)
        expect(said).to_be_visible()
        expect(field).to_have_attribute("aria-invalid", "true")
        field.fill(before)
        expect(said).to_be_hidden()
    field.fill(text)
    expect(said).to_be_visible()
    assert faults_of_access(page) == []


def test_an_administrator_makes_and_revokes_a_token_on_the_page(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/system")
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Role").select_option("OPERATOR")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#token-made")).to_contain_text("The token nightly is shown this once")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="nightly"))
    row.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke the token").click()
    expect(row).to_contain_text("revoked")


# --- a job ----------------------------------------------------------------------------------------------------------


def test_a_job_that_does_not_run_can_be_started_and_not_rescaled(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    expect(page.locator("#status")).to_have_text("Created")
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    expect(page.get_by_role("button", name="Stop…")).to_be_hidden()
    expect(page.get_by_role("button", name="Rescale")).to_be_disabled()
    page.get_by_label("Parallelism", exact=True).fill("4")
    expect(page.get_by_label("Parallelism", exact=True)).to_have_accessible_description(
        "From 1 to 128; now 2. Only a running job can be rescaled."
        " The parallelism of this one is set on its page Revisions."
    )
    page.get_by_label("Parallelism", exact=True).fill("129")
    expect(page.locator("#parallelism-hint")).to_contain_text("A whole number from 1 to 128, please.")
    page.get_by_role("link", name="Checkpoints").click()
    expect(page.get_by_text("No checkpoint yet.")).to_be_visible()


def test_faults_of_a_running_job_are_shown_on_top(page: Page, platform: Platform) -> None:
    item = {
        "code": "STATE_RETENTION_BLOCKED",
        "message": "old checkpoints are not deleted: <b>chk-2</b> cannot be read",
        "since_ms": 1_795_000_000_000,
        "advice": "Repair the manifest.",
    }

    def add_item(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "health": [item]})

    page.route("**/jobs/departures/stream", lambda route: route.abort())  # it asks again and again, and sees the item
    page.goto(f"{platform.url}/ui/jobs/departures")
    health = page.get_by_label("Faults")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    expect(health).to_be_hidden()
    page.route("**/jobs/departures", add_item)
    expect(health).to_contain_text("old checkpoints are not deleted: <b>chk-2</b> cannot be read")
    expect(health).to_contain_text("STATE_RETENTION_BLOCKED")
    expect(health).to_contain_text("Repair the manifest.")
    page.unroute("**/jobs/departures")
    expect(health).to_be_hidden()


def test_late_records_and_dead_letters_are_shown_as_numbers_in_the_graph_and_over_time(
    page: Page, platform: Platform
) -> None:
    platform.create_job("refused")
    graph = [
        {"uid": "clicks", "kind": "SOURCE"},
        {"uid": "checked", "kind": "OPERATOR", "inputs": ["clicks"]},
        {"uid": "table", "kind": "SINK", "inputs": ["checked"]},
        {"uid": "files", "kind": "SINK", "inputs": ["checked"]},
    ]
    platform.note_figures(
        "refused",
        [
            {
                "batches": batches,
                "graph": graph,
                "operators": [{"uid": "checked", "late_records": 1100 * batches, "dead_letters": 7 * batches}],
                "sinks": [{"uid": "table", "dead_letters": 600 * batches}],
            }
            for batches in (1, 2)
        ],
    )
    open_page(page, platform, "/ui/jobs/refused")
    now = page.get_by_role("region", name="Now")
    for name, value in (("Late", "2,300"), ("Dead letters", "1,214"), ("Lost by sources", "0")):
        term = now.locator("dl > div").filter(has=page.get_by_text(name, exact=True))
        expect(term.get_by_role("definition").first).to_have_text(value)
    nodes = page.get_by_role("group", name="Graph of the operators").get_by_role("listitem")
    expect(nodes.filter(has_text="checked")).to_contain_text("since the driver startedLate2,200Dead letters14")
    expect(nodes.filter(has_text="table")).to_contain_text(f"System{NONE}since the driver startedDead letters1,200")
    expect(nodes.filter(has_text="files")).not_to_contain_text("Dead letters")
    chart = page.get_by_role("figure").filter(has_text="Late, dead-letter and lost records")
    expect(chart).to_contain_text("late 2,300, dead letters 1,214, lost 0")
    expect(chart.get_by_role("img", name="Dead letters: from 607 to 1,214, last 1,214")).to_be_visible()
    legend = chart.locator(".legendtext")  # drawn once the library of the charts is there
    expect(legend).to_have_text(["Late", "Dead letters", "Lost"])
    assert faults_of_access(page) == []
    platform.control_plane.api.delete("/jobs/refused")


def test_a_job_that_does_not_exist_is_reported(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/nobody")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such job")


def test_the_preview_shows_the_key_groups_of_each_subtask(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    expect(page.get_by_text("Now: 2 subtasks own 64 of 128 key groups each")).to_be_visible()
    page.get_by_label("Parallelism", exact=True).fill("3")
    expect(page.get_by_text("Then: 3 subtasks own 42 or 43 of 128 key groups each")).to_be_visible()
    titles = page.locator("#ranges span").evaluate_all("spans => spans.map((span) => span.title)")
    assert titles == [
        "subtask 0: key groups 0\N{EN DASH}42",
        "subtask 1: key groups 43\N{EN DASH}85",
        "subtask 2: key groups 86\N{EN DASH}127",
    ]


def test_the_preview_assigns_key_groups_exactly_as_the_runtime_does(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    ask = "async ([most, p]) => (await import('/ui/static/key_group_ranges.js')).keyGroupRanges(most, p)"
    for most, parallelism in [(128, 1), (128, 2), (128, 3), (128, 127), (128, 128), (200, 7), (32768, 5000)]:
        ours = [key_group_range(most, parallelism, index) for index in range(parallelism)]
        assert page.evaluate(ask, [most, parallelism]) == [[one.start, one.end] for one in ours]


def test_the_slider_says_its_parallelism_and_each_key_moves_it(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/jobs/departures/rescale")
    slider = page.get_by_label("Parallelism, by slider")
    expect(slider).to_have_attribute("aria-valuetext", "2")
    slider.press("Home")
    for expected in ("2", "3", "4"):
        slider.press("ArrowRight")
        expect(slider).to_have_attribute("aria-valuetext", expected)
        expect(page.get_by_label("Parallelism", exact=True)).to_have_value(expected)
    slider.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "128")
    page.get_by_label("Parallelism", exact=True).fill("97")
    expect(slider).to_have_attribute("aria-valuetext", "97")


def test_a_rescale_is_shown_phase_by_phase(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    ask = "async (rescale) => (await import('/ui/static/change_timeline.js')).phaseRows(rescale, 5000)"

    def phase(name: str, start: int, end: int | None) -> dict[str, Any]:
        took = None if end is None else end - start
        return {"phase": name, "started_at_ms": start, "ended_at_ms": end, "duration_ms": took}

    begun = [phase("REQUESTED", 1000, 4000), phase("SAVEPOINT", 4000, None)]
    rows = page.evaluate(ask, {"status": "IN_PROGRESS", "phases": begun})
    assert [(row["phase"], row["state"], row["ms"]) for row in rows] == [
        ("REQUESTED", "done", 3000),
        ("SAVEPOINT", "running", 1000),
        ("STOP", "waiting", None),
        ("RESTORE", "waiting", None),
        ("VERIFY", "waiting", None),
    ]
    back = [phase("REQUESTED", 0, 10), phase("SAVEPOINT", 10, 20), phase("ROLL_BACK", 20, 90)]
    rows = page.evaluate(ask, {"status": "ROLLED_BACK", "phases": back})
    assert [(row["phase"], row["state"]) for row in rows] == [
        ("REQUESTED", "done"),
        ("SAVEPOINT", "failed"),
        ("ROLL_BACK", "done"),
    ]
    for code, state in (("CHANGE_CANCELLED", "cancelled"), ("SAVEPOINT_FAILED", "failed")):
        given_up = {"status": "ROLLED_BACK", "phases": back[:2], "failure": {"code": code}}
        rows = page.evaluate(ask, given_up)
        assert [(row["phase"], row["state"]) for row in rows] == [("REQUESTED", "done"), ("SAVEPOINT", state)]
    rows = page.evaluate(ask, {"status": "COMPLETED", "phases": [*back[:2], phase("VERIFY", 20, 30)]})
    assert {row["state"] for row in rows} == {"done"}


def test_a_rescale_that_was_rolled_back_says_why_and_one_in_progress_can_be_cancelled(
    page: Page, platform: Platform
) -> None:
    platform.create_job("returned")
    begun = {"REQUESTED": 1000, "SAVEPOINT": 3000, "STOP": 4000, "RESTORE": 4500, "ROLL_BACK": 9000}
    ended = [*list(begun.values())[1:], 12_000]
    times = zip(begun.items(), ended, strict=True)
    phases = [{"phase": phase, "started_at_ms": at, "ended_at_ms": end} for (phase, at), end in times]
    with session_factory(platform.engine).begin() as session:
        session.add(
            Change(
                id="there-and-back", job_id=platform.jobs["returned"], kind=ChangeKind.RESCALE,
                status=ChangeStatus.ROLLED_BACK, phase=ChangePhase.ROLL_BACK, phases=phases,
                from_revision=1, to_revision=2,
                from_parallelism=2, to_parallelism=4, upgrade_mode=UpgradeMode.SAVEPOINT, old_attempt=1,
                requested_at_ms=1000, ended_at_ms=12_000, stopped_at_ms=3500, resumed_at_ms=11_500,
                failure={"code": "USER_CODE_FAILED", "message": f"ValueError: {HOSTILE_NAME}"},
            )
        )  # fmt: skip
    open_page(page, platform, "/ui/jobs/returned/rescale")
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 Rolled back")
    expect(page.locator("#change-summary")).to_contain_text(f"from the same savepoint. ValueError: {HOSTILE_NAME}")
    steps = page.get_by_role("list", name="Phases of the change").get_by_role("listitem")
    expect(steps.filter(has_text="failed")).to_have_text(["Have the state restored failed4.5 s"])
    expect(steps.last).to_have_text("Roll back done3 s")
    past = page.get_by_role("table", name="Past rescales").get_by_role("row").nth(1)
    expect(past).to_contain_text("2 → 4")
    expect(past).to_contain_text(f"ValueError: {HOSTILE_NAME}")
    assert faults_of_access(page) == []

    def go_on(route: Route) -> None:
        answer = route.fetch()
        (change,) = answer.json()["rescales"]
        change |= {"status": "IN_PROGRESS", "phase": "RESTORE", "ended_at_ms": None, "can_cancel": True}
        change |= {"phases": change["phases"][:-1], "failure": None}
        route.fulfill(response=answer, json={"rescales": [change], "next": None})

    page.route(f"{platform.url}/jobs/returned/rescales?*", go_on)
    open_page(page, platform, "/ui/jobs/returned/rescale")
    page.get_by_role("button", name="Cancel it…").click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("No record is lost.")
    page.route("**/changes/there-and-back/cancel", lambda route: route.fulfill(status=202, json={}))
    with page.expect_request("**/jobs/returned/changes/there-and-back/cancel"):
        question.get_by_role("button", name="Cancel the change").click()
    expect(page.locator("#message")).to_have_text("The change is being cancelled.")
    page.unroute_all(behavior="wait")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 Rolled back")
    expect(page.locator("#message")).to_be_hidden()
    platform.control_plane.api.delete("/jobs/returned")


def test_subtasks_that_took_conspicuously_long_are_stragglers(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/checkpoints/7")
    ask = "async (durations) => (await import('/ui/static/pages/checkpoint.js')).stragglersOf(durations)"
    assert page.evaluate(ask, [100, 110, 400, 90]) == [2]
    assert page.evaluate(ask, [100, 149, 100]) == []  # below 1.5 times the median
    assert page.evaluate(ask, [0] * 18 + [60, 70]) == [19]  # of many, only the slowest twentieth
    assert page.evaluate(ask, [500]) == []


def test_a_rescale_that_was_cancelled_before_it_stopped_the_job_shows_no_downtime_and_no_savepoint(
    page: Page, platform: Platform
) -> None:
    platform.create_job("untouched")
    base = {
        "job_id": platform.jobs["untouched"], "kind": ChangeKind.RESCALE, "status": ChangeStatus.ROLLED_BACK,
        "phase": ChangePhase.REQUESTED, "from_revision": 1, "to_revision": 2, "from_parallelism": 3,
        "to_parallelism": 5, "upgrade_mode": UpgradeMode.SAVEPOINT, "old_attempt": 1,
        "figures_before": {**dict.fromkeys(ChangeFiguresAnswer.model_fields), "processed_rate": 130.0},
        "failure": {"code": "CHANGE_CANCELLED", "message": "a user has cancelled the rescale"},
    }  # fmt: skip
    begun = {"phase": "REQUESTED", "started_at_ms": 1000, "ended_at_ms": 12_300}
    failed = {"phase": "SAVEPOINT", "started_at_ms": 12_300, "ended_at_ms": 13_000}
    with session_factory(platform.engine).begin() as session:
        session.add(Change(id="unstopped", phases=[begun], requested_at_ms=1000, ended_at_ms=12_300, **base))
    open_page(page, platform, "/ui/jobs/untouched/rescale")
    summary = page.locator("#change-summary")
    expect(summary).to_contain_text("The job runs as before: the change had not stopped it. a user has cancelled")
    expect(summary).not_to_contain_text("savepoint")
    expect(summary).to_contain_text("Downtimenone")
    past = page.get_by_role("table", name="Past rescales").get_by_role("row").nth(1).get_by_role("cell")
    expect(past).to_have_text(["3 → 5", re.compile("Cancelled"), "none", "11.3 s", "130/s", "none"])
    with session_factory(platform.engine).begin() as session:
        session.get_one(Change, "unstopped").phases = [begun, failed]
    open_page(page, platform, "/ui/jobs/untouched/rescale")
    expect(summary).to_contain_text("The job runs as before: no savepoint was taken. a user has cancelled")
    expect(past.last).to_have_text(NONE)


def test_a_log_is_searched_and_downloaded(page: Page, platform: Platform, tmp_path: Path) -> None:
    log = "".join(f"line {number} of the driver: é\n" for number in range(40_000)).encode()

    def show(route: Route) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        begin = int(asked.get("offset", max(0, len(log) - int(asked.get("tail_bytes", 0)))))
        begin = log.rfind(b"\n", 0, begin) + 1
        end = min(len(log), begin + int(asked.get("limit_bytes", len(log))))
        end = log.rfind(b"\n", 0, end) + 1
        answer: dict[str, Any] = {"attempt": 3, "text": log[begin:end].decode(), "offset": begin, "next_offset": end}
        if "search" in asked:
            found = [(each.start(), each[0].decode()) for each in re.finditer(rb".*line 39999.*", log)]
            answer |= {
                "text": "",
                "next_offset": len(log),
                "matches": [{"offset": at, "text": line} for at, line in found],
            }
        route.fulfill(json={**answer, "size_bytes": len(log), "truncated": False})

    page.route(f"{platform.url}/jobs/departures/logs?*", show)
    open_page(page, platform, "/ui/jobs/departures/logs?search=39999")
    expect(page.get_by_role("list", name="Lines found").get_by_role("link")).to_have_text(
        ["line 39999 of the driver: é"]
    )
    shown = page.get_by_role("region", name="Log", exact=True)
    expect(shown).to_contain_text("line 39999 of the driver: é")
    from_end = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    assert shown.evaluate("log => log.scrollHeight > log.clientHeight")
    assert shown.evaluate(from_end) < 2
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "departures-3.log"
    download.value.save_as(tmp_path / "saved.log")
    assert (tmp_path / "saved.log").read_bytes() == log
    page.get_by_label("Follow").uncheck()  # the page asks for nothing by itself
    page.unroute_all(behavior="wait")
    page.route(f"{platform.url}/jobs/departures/logs?*", lambda route: route.abort())
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator("#message")).to_contain_text("The control plane does not answer.")


def test_the_log_of_the_driver_that_runs_the_job_is_chosen_and_marked(page: Page, platform: Platform) -> None:
    stages = [(6, "rescale", "ENDED"), (5, "recover", "ACTIVE"), (4, "start", "ENDED")]
    attempts = [{"number": number, "cause": cause, "stage": stage} for number, cause, stage in stages]
    answer = {"attempt": 5, "text": "from 5\n", "offset": 0, "next_offset": 7, "size_bytes": 7, "truncated": False}
    page.route(f"{platform.url}/jobs/departures/attempts?*", lambda route: route.fulfill(json={"attempts": attempts}))
    page.route(f"{platform.url}/jobs/departures/logs?*", lambda route: route.fulfill(json=answer))
    open_page(page, platform, "/ui/jobs/departures/logs")
    chosen = page.get_by_label("Attempt")
    expect(chosen.get_by_role("option")).to_have_text(["6: rescale", "5: recover, runs the job", "4: start"])
    expect(chosen).to_have_value("5")
    page.unroute_all(behavior="wait")


def test_numbers_read_as_people_write_them(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    ask = "async ([name, value]) => (await import('/ui/static/format.js'))[name](value)"
    assert [page.evaluate(ask, ["bytes", value]) for value in (None, 0, 1023, 1024, 1536, 1048575, 5 << 40)] == [
        NONE, "0 B", "1,023 B", "1 KiB", "1.5 KiB", "1 MiB", "5 TiB",
    ]  # fmt: skip
    assert [page.evaluate(ask, ["duration", value]) for value in (None, 0, 999, 1000, 59_999, 185_000, 7_800_000)] == [
        NONE, "0 ms", "999 ms", "1 s", "1 min", "3 min 5 s", "2 h 10 min",
    ]  # fmt: skip
    assert page.evaluate(ask, ["rate", 4.25]) == "4.3/s"
    assert page.evaluate(ask, ["rate", 18234.5]) == "18,235/s"


def test_a_time_has_its_date_in_the_viewers_zone_and_its_utc_on_hover(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.goto(f"{platform.url}/ui/login")
    ask = "async (at) => (await import('/ui/static/dom.js')).when(at).outerHTML"
    at_ms = now_ms() - 1000  # today, too
    shown = datetime.fromtimestamp(at_ms / 1000, timezone(timedelta(hours=5, minutes=30)))
    utc = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{at_ms % 1000:03d} UTC"
    found = page.evaluate(ask, at_ms)
    assert found.endswith(f'title="{utc}">{shown:%Y-%m-%d %H:%M:%S}</time>')
    context.close()


def test_a_job_is_changed_by_a_plan_and_taken_back_on_the_page(page: Page, platform: Platform) -> None:
    platform.create_job("revised")
    open_page(page, platform, "/ui/jobs/revised/revisions")
    page.get_by_role("button", name="Change the job…").click()
    expect(page).to_have_url(re.compile(r"\?edit=yes$"))
    form = page.get_by_role("region", name="Change the job")
    form.get_by_role("button", name="Show the plan").click()
    expect(form.get_by_role("alert")).to_have_text("Nothing differs from the job as it is now.")
    form.get_by_label("Parallelism").fill("3")
    expect(form.get_by_role("alert")).to_have_text("")
    form.get_by_label("Checkpoint every").fill("2.5")
    form.get_by_label("Why").fill("more of it")
    form.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("This change can be made.")
    settings = plan.get_by_role("group", name="Settings that change").get_by_role("row")
    expect(settings).to_contain_text(["Setting", "parallelism", "checkpoints.interval_ms10 s2.5 s"])
    form.get_by_role("button", name="Change…").click()
    page.get_by_role("dialog").get_by_role("button", name="Change the job").click()

    history = page.get_by_role("region", name="Revisions").get_by_role("row")
    expect(history).to_have_count(3)
    expect(history.nth(1)).to_contain_text("more of it")
    expect(form).to_be_hidden()
    differing = page.locator("#differences tr").filter(has=page.locator(".added"))
    expect(differing).to_contain_text(["parallelism", "checkpoints.interval_ms"])
    expect(differing.first.get_by_role("cell")).to_have_text(["2", "3"])
    job = platform.control_plane.api.get("/jobs/revised")
    assert (job["parallelism"], job["checkpoints"]["interval_ms"]) == (3, 2500)

    history.nth(2).get_by_role("button", name="Go to revision 1…").click()
    question = page.get_by_role("dialog")
    question.get_by_label("As it is now").check()
    question.get_by_role("button", name="Roll back to revision 1").click()
    expect(history.nth(2)).to_contain_text("now")
    assert platform.control_plane.api.get("/jobs/revised")["parallelism"] == 2
    platform.control_plane.api.delete("/jobs/revised")


def test_a_revision_in_use_is_not_called_cancelled_and_is_compared_with_the_one_before_it(
    page: Page, platform: Platform
) -> None:
    platform.create_job("third")
    api = platform.control_plane.api
    for number in (2, 3):
        api.patch("/jobs/third", {"parallelism": number + 1}, if_match=str(number - 1))
    with session_factory(platform.engine).begin() as session:
        session.add(
            Change(
                id="not-third", job_id=platform.jobs["third"], kind=ChangeKind.UPGRADE, status=ChangeStatus.ROLLED_BACK,
                phase=ChangePhase.REQUESTED, phases=[], from_revision=1, to_revision=3, from_parallelism=2,
                to_parallelism=4, upgrade_mode=UpgradeMode.SAVEPOINT, old_attempt=1, requested_at_ms=1000,
                ended_at_ms=12_000, failure={"code": "CHANGE_CANCELLED", "message": "a user has cancelled it"},
            )
        )  # fmt: skip
    open_page(page, platform, "/ui/jobs/third/revisions")
    outcomes = page.get_by_role("table", name="Revisions, the newest first").locator("tbody tr td:nth-of-type(5)")
    expect(outcomes).to_have_text([NONE, NONE, NONE])
    expect(page.locator("#differences tr").first.get_by_role("cell")).to_have_text(["2", "4"])
    api.post("/jobs/third/rollback", {"revision": 2, "state": "current"})
    expect(outcomes).to_have_text(["Cancelled", NONE, NONE])
    api.delete("/jobs/third")


def test_no_plan_is_made_before_the_chosen_file_is_uploaded(page: Page, platform: Platform) -> None:
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    page.route("**/artifacts", hold)
    open_page(page, platform, "/ui/jobs/departures/revisions?edit=yes")
    make_plan = page.get_by_role("button", name="Show the plan")
    program = {"name": "departures-2.py", "mimeType": "text/x-python", "buffer": SCRIPT + b"# 2\n"}
    page.get_by_label("or upload another one:").set_input_files(program)
    expect(make_plan).to_be_disabled()
    expect(make_plan).to_have_attribute("title", "The file is being uploaded.")
    wait_until(lambda: page.title() and waiting, what="the upload")  # asking the page lets its events come in
    for route in waiting:
        route.continue_()
    expect(make_plan).to_be_enabled()
    expect(page.get_by_label("Program", exact=True).locator("option:checked")).to_have_text("departures-2, version 1")
    page.unroute_all(behavior="wait")


def test_a_checkpoint_is_verified_compared_and_deleted_on_its_page(page: Page, platform: Platform) -> None:
    platform.create_job("careful")
    made = platform.snapshots_of("careful")
    actions = page.get_by_role("group", name="Actions on this checkpoint")
    shared = made.layout.shared
    made.take(1, {f"{shared}a": b"a" * 2048, f"{shared}b": b"b" * 1024})
    made.take(2, {f"{shared}b": b"b" * 1024, f"{shared}c": b"c" * 4096})
    made.take(3, {f"{shared}c": b"c" * 4096}, operator_uid=HOSTILE_NAME)

    open_page(page, platform, "/ui/jobs/careful/checkpoints/1")
    verdict = page.locator("#restorable")
    expect(verdict).to_contain_text("was not verified yet")
    actions.get_by_role("button", name="Verify").click()
    expect(verdict).to_contain_text("2 files (3 KiB) were read, and have the right hashes.")
    expect(page.locator("#message")).to_be_hidden()
    expect(verdict).to_contain_text("The sources were not asked for the records after it: it holds no positions of")
    made.store.put(f"{shared}a", b"x" * 2048)
    actions.get_by_role("button", name="Verify").click()
    expect(verdict).to_contain_text("No job can start from it.")
    expect(verdict).to_contain_text("shared/a")

    comparison = page.get_by_role("region", name="Compared with another one")
    comparison.get_by_label("with checkpoint or savepoint").fill("2")
    comparison.get_by_role("button", name="Compare").click()
    cells = ["5 KiB", "3 KiB", "2", "1", "1 KiB in 1 file", "4 KiB in 1 file", "2 KiB in 1 file"]
    expect(comparison.get_by_role("row").nth(1).get_by_role("cell")).to_have_text(cells)
    expect(page).to_have_url(re.compile(r"/checkpoints/1\?with=2$"))
    assert faults_of_access(page) == []
    open_page(page, platform, "/ui/jobs/careful/checkpoints/1?with=3")
    expect(comparison.get_by_role("rowheader", name=HOSTILE_NAME)).to_have_text(HOSTILE_NAME)
    open_page(page, platform, "/ui/jobs/careful/checkpoints/1?with=9")
    expect(comparison).to_contain_text("the job has no checkpoint 9")

    actions.get_by_role("button", name="Delete…").click()
    question = page.get_by_role("dialog", name="Delete checkpoint 1?")
    expect(question).to_contain_text(re.compile(r"frees 2\.\d KiB in 2 objects, its list of files included; 1 KiB"))
    expect(question).to_contain_text("This cannot be undone.")
    question.get_by_role("button", name="Keep it").click()
    assert platform.control_plane.api.get("/jobs/careful/checkpoints/1")["status"] == "COMPLETED"
    actions.get_by_role("button", name="Delete…").click()
    question.get_by_role("button", name="Delete the checkpoint").click()
    expect(verdict).to_have_text("No job can start from it: it was deleted. Its files are deleted later.")
    for name in ("Verify", "Delete…", "Start a job from it…"):
        expect(actions.get_by_role("button", name=name)).to_be_disabled()
    wait_until(lambda: "shared/a" not in made.paths(), 30, what="the deletion of its files")
    assert made.paths() >= {"shared/b", "shared/c"}

    open_page(page, platform, "/ui/jobs/careful/checkpoints/3")
    actions.get_by_role("button", name="Delete…").click()
    expect(page.locator("#message")).to_contain_text("cannot be deleted: it is the newest one of the job careful")
    platform.control_plane.api.delete("/jobs/careful")


def test_a_form_of_a_checkpoint_forgets_what_was_said_of_an_earlier_entry(page: Page, platform: Platform) -> None:
    platform.create_job("branched")
    made = platform.snapshots_of("branched")
    made.take(1, {})
    made.take(2, {})
    open_page(page, platform, "/ui/jobs/branched/checkpoints/1?with=2")
    comparison = page.get_by_role("region", name="Compared with another one")
    expect(comparison.get_by_role("table")).to_be_visible()
    comparison.get_by_label("with checkpoint or savepoint").fill("1")
    comparison.get_by_role("button", name="Compare").click()
    expect(comparison).to_contain_text("This is the one that is shown; another one, please.")
    comparison.get_by_label("with checkpoint or savepoint").fill("0")
    expect(comparison.get_by_role("table")).to_be_hidden()
    expect(comparison.locator("#compare-note")).to_have_text(re.compile("^Enter the number of another one"))

    page.get_by_role("button", name="Start a job from it…").click()
    form = page.get_by_role("dialog", name="Start a job from it")
    button = form.get_by_role("radio").first.bounding_box()
    assert button is not None
    assert button["width"] == button["height"] < 20
    form.get_by_label("Name", exact=True).fill("departures")
    form.get_by_role("button", name="Start it").click()
    expect(form.get_by_role("alert")).to_contain_text("there is a job called departures. ")
    form.get_by_label("Name", exact=True).fill("departures-2")
    expect(form.get_by_role("alert")).to_have_count(0)
    platform.control_plane.api.delete("/jobs/branched")


def test_jobs_are_found_by_a_label_as_the_form_takes_it(page: Page, platform: Platform) -> None:
    platform.create_job("labelled", team="web")
    open_page(page, platform, "/ui/?q=team%3Dweb")
    expect(page.locator("#jobs").get_by_role("link")).to_have_text(["labelled"])
    page.get_by_label("Name or label").fill("team=mobile")
    expect(page.get_by_text("No job has this name or label")).to_be_visible()
    expect(page.get_by_role("table")).to_be_hidden()
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.get_by_role("link", name="labelled")).to_be_visible()
    expect(page).to_have_url(f"{platform.url}/ui/")
    platform.control_plane.api.delete("/jobs/labelled")


def test_a_parallelism_above_the_max_parallelism_is_refused_at_once(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    form.get_by_label("Parallelism", exact=True).fill("129")
    expect(form).to_contain_text("A whole number from 1 to 128, please.")
    form.get_by_label("Max parallelism").fill("200")
    expect(form).not_to_contain_text("please.")
    form.get_by_label("Max parallelism").fill("8")
    expect(form).to_contain_text("A whole number from 1 to 8, please.")


def test_a_dialog_higher_than_the_window_keeps_its_buttons_in_sight(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 900, "height": 600})
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    expect(form.get_by_role("button", name="Create the job")).to_be_in_viewport(ratio=1)
    expect(form.get_by_label("Labels")).not_to_be_in_viewport()
    form.get_by_label("Parameters").fill("no value")
    field, button = (each.bounding_box() for each in (form.get_by_label("Parameters"), form.get_by_role("button").last))
    assert field is not None
    assert button is not None
    assert field["y"] + field["height"] < button["y"]
    expect(form.get_by_label("Parameters")).to_have_css("border-color", form.evaluate(COLOR_OF, "--bad"))
    assert faults_of_access(page) == []


def test_advice_for_other_clients_is_not_shown_on_a_page(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    ask = "async (problem) => new (await import('/ui/static/api.js')).ApiError(problem).text"
    for advice, shown in (
        ("GET /jobs lists them. Use the id or the name of a job.", "Use the id or the name of a job."),
        ("Over HTTP: POST /jobs/{id}/start.", ""),
        ("Wait for it. Or run ./keyscale jobs stop.", "Wait for it."),
    ):
        text = page.evaluate(ask, {"detail": "there is no such job", "advice": advice})
        assert text == f"there is no such job{'.' if shown else ''} {shown}".strip()


@pytest.mark.parametrize("at_ms", [2**53 - 1, -(2**53), 10**20])
def test_a_driver_whose_clock_is_wrong_by_any_number_leaves_the_page_whole(
    page: Page, platform: Platform, at_ms: int
) -> None:
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(str(error)))
    platform.create_job("skewed")

    def skew(route: Route) -> None:
        answer = route.fetch()
        fault = {"code": "STORE_UNAVAILABLE", "message": "it is away", "since_ms": at_ms, "advice": None}
        route.fulfill(response=answer, json=answer.json() | {"health": [fault]})

    page.route("**/jobs/skewed", skew)
    open_page(page, platform, "/ui/jobs/skewed/overview")
    expect(page.get_by_role("region", name="Now")).to_be_visible()
    expect(page.locator("#health")).to_have_text(f"Since {NONE}: it is away STORE_UNAVAILABLE")
    assert thrown == []
    page.unroute_all(behavior="wait")
    platform.control_plane.api.delete("/jobs/skewed")


def test_a_job_that_runs_and_fails_again_and_again_says_so_among_the_others(page: Page, platform: Platform) -> None:
    platform.create_job("failing")
    page.goto(f"{platform.url}/ui/?q=failing")

    def fail(route: Route) -> None:
        answer = route.fetch()
        listed = answer.json()
        for job in listed["jobs"]:
            job |= {"status": "RUNNING", "failure": {"code": "USER_CODE_FAILED", "message": "KeyError: 'u9'"}}
        route.fulfill(response=answer, json=listed)

    page.route("**/jobs?*", fail)
    page.reload()
    status = page.get_by_role("row").filter(has_text="failing").get_by_role("cell").first
    expect(status).to_have_text("RunningKeyError: 'u9'")
    page.unroute_all(behavior="wait")
    platform.control_plane.api.delete("/jobs/failing")


def test_a_checkpoint_that_no_job_has_is_no_fault_of_the_control_planes(page: Page, platform: Platform) -> None:
    for number in (0, 77, 10**20):
        page.goto(f"{platform.url}/ui/jobs/departures/checkpoints/{number}")
        expect(page.locator("#checkpoint-status")).to_have_text(re.compile("There is no such checkpoint"))
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.get_by_role("group", name="Actions on this checkpoint").get_by_role("button")).to_have_count(0)


def test_a_long_name_and_labels_leave_the_values_of_all_jobs_in_sight(page: Page, platform: Platform) -> None:
    platform.create_job("n" * 100, team="t" * 63, stage="s" * 63)
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        open_page(page, platform, "/ui/")
        table = page.get_by_role("table")
        assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth"), width
    platform.control_plane.api.delete(f"/jobs/{'n' * 100}")


def test_key_groups_are_shown_now_and_over_time(page: Page, platform: Platform) -> None:
    platform.create_job("uneven")
    made = platform.snapshots_of("uneven")
    for number in (1, 2, 3):
        made.take(number, {}, key_group_bytes=[1024 * number if group == 77 else 10 for group in range(128)])
    open_page(page, platform, "/ui/jobs/uneven/key-groups")
    over_time = page.get_by_role("region", name="Over time")
    history = over_time.get_by_role("img", name="Key groups over time, 3 checkpoints. Largest now: Group 77 with 3 KiB")
    expect(history).to_be_visible()
    history.hover(position={"x": 1, "y": 77 * 2 + 1})
    expect(over_time.get_by_role("status")).to_contain_text(re.compile("Group 77 at .*: 1 KiB"))
    largest = page.get_by_role("region", name="Largest key groups").get_by_role("row").nth(1)
    expect(largest).to_contain_text("77")
    expect(largest.get_by_role("cell")).to_have_text(["1", "3 KiB", "3,072", "71 %"])
    subtasks = page.get_by_role("list", name="Subtasks and their key groups").get_by_role("listitem")
    expect(subtasks).to_contain_text([f"groups {start}{NONE}{start + 63}" for start in (0, 64)])
    expect(page.get_by_role("region", name="Key groups", exact=True)).to_contain_text("Estimates: what a file holds")
    page.get_by_label("Ranges at parallelism").fill("4")
    expect(subtasks).to_contain_text([f"groups {start}{NONE}{start + 31}" for start in range(0, 128, 32)])
    page.get_by_role("group", name="Measure").get_by_role("button", name="Entries").click()
    expect(subtasks.nth(2)).to_contain_text("3,382")
    expect(page).to_have_url(re.compile(r"\?parallelism=4&measure=entries$"))
    assert faults_of_access(page) == []
    head = page.get_by_role("region", name="Key groups", exact=True)
    expect(head).to_contain_text("At checkpoint #3")
    made.take(4, {}, "latest", key_group_bytes=[10] * 128)
    open_page(page, platform, "/ui/jobs/uneven/key-groups")
    expect(head).to_contain_text("At savepoint #4")  # as the job's state size is that of either
    platform.control_plane.api.delete("/jobs/uneven")


# --- hidden pages and outages ---------------------------------------------------------------------------------------


def test_a_hidden_page_sends_no_requests(page: Page, platform: Platform) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{platform.url}/ui/")
    expect(page.get_by_role("link", name="departures")).to_be_visible()
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});
          window.look = (away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); };
          window.look(true);
        }"""
    )
    with page.expect_event("request", timeout=5000):
        page.evaluate("window.look(false)")  # a page that is shown again is refreshed at once
    page.evaluate("window.look(true)")
    rest = "start => performance.now() - start > 2500"  # longer than the time between two polls
    page.wait_for_function(rest, arg=page.evaluate("performance.now()"))
    before = len(asked)
    page.wait_for_function(rest, arg=page.evaluate("performance.now()"))
    assert len(asked) == before


def test_a_page_follows_the_stream_and_asks_again_and_again_while_there_is_none(page: Page, platform: Platform) -> None:
    platform.create_job("followed")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/jobs/followed") else None)
    with page.expect_request("**/jobs/followed/stream"):
        open_page(page, platform, "/ui/jobs/followed/rescale")
    rest = "start => performance.now() - start > 3000"
    page.wait_for_function(rest, arg=page.evaluate("performance.now()"))  # the first message names all topics
    before = len(asked)
    page.wait_for_function(rest, arg=page.evaluate("performance.now()"))
    assert len(asked) == before
    platform.control_plane.api.patch("/jobs/followed", {"parallelism": 5}, if_match='"1"')
    expect(page.locator("#parallelism-hint")).to_have_text("From 1 to 128; now 5.")

    page.route("**/jobs/followed/stream", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/followed/rescale")
    before = len(asked)
    page.wait_for_function(rest, arg=page.evaluate("performance.now()"))
    assert len(asked) > before
    platform.control_plane.api.delete("/jobs/followed")


def test_a_page_reads_when_its_stream_has_begun_and_waits_for_that_for_a_moment_only(
    page: Page, platform: Platform
) -> None:
    """The stream's first message names all topics: a page that had read before would read everything twice."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(days=1))
    open_page(page, platform, "/ui/jobs/departures/rescale")
    assert asked.index("/jobs/departures/stream") < asked.index("/whoami")

    page.route("**/jobs/departures/stream", lambda _: None)
    with page.expect_request("**/jobs/departures/stream"):
        page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    page.clock.run_for(1000)
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")


def test_a_page_that_is_left_ends_its_stream_and_follows_again_when_it_comes_back(
    page: Page, platform: Platform
) -> None:
    """A browser has six connections per host with HTTP/1.1, and may keep a page that was left."""
    change = "([kind, persisted]) => { dispatchEvent(new PageTransitionEvent(kind, {persisted})); }"
    with page.expect_request("**/jobs/departures/stream"):
        open_page(page, platform, "/ui/jobs/departures/rescale")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/jobs/departures/stream")):
        page.evaluate(change, ["pagehide", True])
    with page.expect_request("**/jobs/departures/stream"):
        page.evaluate(change, ["pageshow", True])


def test_the_system_page_lists_the_replicas(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/system")
    row = page.get_by_role("region", name="Replicas").get_by_role("row").nth(1)
    expect(row.get_by_role("rowheader")).to_have_text(platform.url)
    expect(row.get_by_role("cell").first).to_have_text("Leads")
    assert faults_of_access(page) == []


def test_the_events_of_the_system_name_their_job(page: Page, platform: Platform) -> None:
    platform.create_job("gone")
    platform.control_plane.api.delete("/jobs/gone")
    named = platform.create_job("named")
    with session_factory(platform.engine).begin() as session:
        job = jobs.lock(session, named)
        assert job is not None
        job.name = f"{HOSTILE_NAME} 2"
    open_page(page, platform, "/ui/system")
    created = page.locator("#events li").filter(has_text="Job created")
    link = created.get_by_role("link", name=f"{HOSTILE_NAME} 2", exact=True)
    expect(link).to_have_attribute("href", f"/ui/jobs/{named}/overview")
    expect(created.filter(has_text=platform.jobs["gone"]).locator(".mono")).to_have_text(platform.jobs["gone"])
    assert page.locator("#events img, #events script").count() == 0
    platform.control_plane.api.delete(f"/jobs/{named}")


def test_a_specification_is_readable_in_a_narrow_window(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_page(page, platform, "/ui/jobs/departures/revisions")
    expect(page.get_by_role("row", name="checkpoints.tolerable_failed_checkpoints 10", exact=True)).to_be_visible()
    assert page.locator("#difference-scroll").evaluate("box => box.scrollWidth - box.clientWidth") == 0


ACTING = {
    "/ui/": ["Create the job"],
    "/ui/artifacts": ["Upload a file"],
    "/ui/system": ["Make a token"],
    "/ui/jobs/departures/overview": ["Start", "Delete…", "Sign out"],
    "/ui/jobs/departures/revisions?edit=yes": ["Show the plan"],
    "/ui/jobs/departures/logs": ["Download"],
}
"""Buttons that need the control plane, by page."""


def test_every_button_that_acts_is_refused_while_the_control_plane_is_away(page: Page, platform: Platform) -> None:
    for path, names in ACTING.items():
        open_page(page, platform, path)
        if path == "/ui/":
            page.get_by_role("button", name="New job").click()
        buttons = [page.get_by_role("button", name=name, exact=True) for name in names]
        page.context.set_offline(True)
        for _ in range(2):  # one lost request is not worth a message
            with page.expect_event("requestfailed", lambda request: request.resource_type == "fetch"):
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("#connection")).to_contain_text("does not answer")
        for button in buttons:
            expect(button).to_be_disabled()
            expect(button).to_have_attribute("title", "The control plane is away.")
        if path == "/ui/":
            expect(page.locator("#new")).to_be_disabled()
        page.context.set_offline(False)
    made_while_away = """async () => {
      const { actionButton, setAway } = await import('/ui/static/dom.js');
      setAway(true);
      return actionButton('Cancel it', () => {}).disabled;
    }"""
    assert page.evaluate(made_while_away)


@pytest.mark.exhaustive  # it waits for the whole time that a page gives an answer
def test_a_control_plane_that_hangs_is_noticed_by_the_first_request_without_an_answer(
    page: Page, platform: Platform
) -> None:
    open_page(page, platform, "/ui/jobs/departures/overview")
    kept: list[Route] = []

    def keep(route: Route) -> None:
        kept.append(route)

    page.route(f"{platform.url}/jobs/departures", keep)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#connection")).to_contain_text("The control plane does not answer.")
    assert len(kept) == 1
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.unroute_all(behavior="ignoreErrors")
    expect(page.locator("#connection")).to_be_hidden()


def test_a_page_reports_that_the_control_plane_does_not_answer_and_recovers(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    platform.control_plane.kill()
    notice = page.locator("#connection")
    expect(notice).to_contain_text("The control plane does not answer.")
    start = page.get_by_role("button", name="Start")
    expect(start).to_be_disabled()
    expect(start).to_have_attribute("title", "The control plane is away.")
    said = "Stop: The control plane does not answer. It may have been done all the same."
    page.evaluate("async (text) => (await import('/ui/static/dom.js')).tell(text)", said)  # as a request under way does
    platform.control_plane.start_again()
    expect(notice).to_be_hidden()
    expect(start).to_be_enabled()
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    expect(page.locator("#message")).to_be_hidden()  # the page shows what became of it

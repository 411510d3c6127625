"""What every page must do: fit any window, be usable by everybody, and be light."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import expect

from keyscale.api.dashboard.router import CHART_LIBRARY, TABS, router
from keyscale.client.request_paths import job_path
from tests.pages.opening import open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access, new_page, sign_in
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Request

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real

OF_NO_JOB = ["/ui/", "/ui/artifacts", "/ui/system", "/ui/nothing", "/ui/login"]
OF_A_JOB = ["checkpoints/{checkpoint}", *TABS]
LEADING_ELSEWHERE = {"/ui/jobs/{job}", "/ui/sign-in", "/ui/signed-in"}
PAGES = [
    *OF_NO_JOB,
    *(f"/ui/jobs/{journey.RUNNING}/{rest}" for rest in OF_A_JOB),
    *(f"/ui/jobs/{journey.FAILED}/{tab}" for tab in ("overview", "exceptions")),
]
ALIKE = {f"/ui/jobs/{journey.FAILED}/overview", f"/ui/jobs/{journey.RUNNING}/exceptions"}
"""Pages whose parts are on another job's page, too."""
EMPTY_PAGES = [f"/ui/jobs/departures/{rest}" for rest in OF_A_JOB]
"""The pages of a job that has never run; other tests open most of them."""
OF_THE_DEFAULT_TIER = [path for path in PAGES if path not in ALIKE]


@dataclass
class Opened:
    """A page that was opened with an empty cache, and the requests of it that have ended."""

    page: Page
    ended: list[Request] = field(default_factory=list)

    def note(self, request: Request) -> None:
        self.ended.append(request)


@pytest.fixture(scope="module", params=short_form([*PAGES, *EMPTY_PAGES], OF_THE_DEFAULT_TIER))
def opened(request: pytest.FixtureRequest, browser: Browser, platform: Platform) -> Iterator[Opened]:
    platform.beat()
    savepoint = platform.api.get(job_path(journey.RUNNING, "checkpoints"))["latest"]["savepoint"]["id"]
    with new_page(browser) as page:
        opened = Opened(page)
        page.on("requestfinished", opened.note)
        page.set_viewport_size({"width": 1280, "height": 800})
        if request.param != "/ui/login":
            sign_in(page, platform.connection)
        open_page(page, platform, request.param.format(checkpoint=savepoint))
        yield opened


def test_no_page_sends_a_megabyte_besides_the_chart_library(opened: Opened) -> None:
    sizes = [each.sizes()["responseBodySize"] for each in opened.ended if not each.url.endswith(CHART_LIBRARY)]
    assert 1000 < sum(sizes) < 1_000_000


def test_axe_finds_nothing_on_any_page_in_either_theme(opened: Opened) -> None:
    assert faults_of_access(opened.page) == []


@pytest.mark.exhaustive
def test_axe_finds_nothing_on_any_page_in_a_narrow_window(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 360, "height": 800})
    assert faults_of_access(opened.page) == []


def test_no_window_scrolls_sideways(opened: Opened) -> None:
    for width in (1280, 700, 320):
        opened.page.set_viewport_size({"width": width, "height": 700})
        fits = "width => innerWidth === width && document.documentElement.scrollWidth <= width"
        opened.page.wait_for_function(fits, arg=width)  # charts are drawn again


def test_the_pages_of_these_tests_are_all_that_there_are() -> None:
    pages = {route.path for route in router.routes if isinstance(route, APIRoute) and "GET" in route.methods}
    known = {path.replace("nothing", "{path:path}") for path in OF_NO_JOB}
    known |= {f"/ui/jobs/{{job}}/{'{tab}' if rest in TABS else rest}" for rest in OF_A_JOB}
    assert pages - {"/ui/static/{name:path}", *LEADING_ELSEWHERE} == known


UNUSABLE = {
    "/ui/": [
        (
            "Name",
            "-job",
            "Use only letters, digits, dots, dashes and underscores; begin with a letter or a digit.",
        ),
        ("Max parallelism", "40000", "Enter a whole number from 1 to 32,768."),
        ("Max parallelism", "-1", "Enter a whole number from 1 to 32,768."),
        ("Labels", "team=web, trial", "“trial” is not NAME=VALUE."),
        ("Labels", "team=web, team=ops", "“team” occurs twice."),
    ],
    "/ui/system": [("Days", "0", "Enter a whole number from 1 to 3,650.")],
    "/ui/jobs/departures/key-groups": [("Ranges at parallelism", "129", "Enter a whole number from 1 to 128.")],
    "/ui/jobs/departures/revisions?edit=yes": [
        ("Parallelism", "1.5", "Enter a whole number from 1 to 128."),
        ("Checkpoints: interval (ms)", "0", "Enter a whole number from 100 to 31,536,000,000."),
        ("Spark configuration", "spark.x", "“spark.x” is not NAME=VALUE."),
    ],
}
"""Fields that cannot be used, by page: the label, the text, and what the page says of it."""


@pytest.mark.parametrize("path", UNUSABLE)
def test_a_field_that_cannot_be_used_says_why_before_it_is_sent(page: Page, platform: Platform, path: str) -> None:
    open_page(page, platform, path)
    if path == "/ui/":
        page.get_by_role("button", name="New job").click()
    for more in page.get_by_text("More settings").all():
        more.click()
    form = page.get_by_role("dialog" if path == "/ui/" else "main")
    for label, text, problem in UNUSABLE[path]:
        field, said = form.get_by_label(label, exact=True), page.get_by_text(problem)
        before = field.input_value()
        field.fill(text)
        expect(said).to_be_visible()
        expect(field).to_have_attribute("aria-invalid", "true")
        field.fill(before)
        expect(said).to_be_hidden()
    field.fill(text)
    expect(said).to_be_visible()
    if path in {"/ui/", "/ui/jobs/departures/revisions?edit=yes"}:  # with the most kinds of fields
        assert faults_of_access(page) == []


ACTING = {
    "/ui/": ["Create the job"],
    "/ui/artifacts": ["Upload a file"],
    "/ui/system": ["Create a token"],
    "/ui/jobs/departures/overview": ["Start", "Delete…", "Sign out"],
    "/ui/jobs/departures/revisions?edit=yes": ["Show the plan"],
    "/ui/jobs/departures/logs": ["Download"],
}
"""Buttons that need the control plane, by page."""


@pytest.mark.parametrize("path", ACTING)
def test_every_button_that_acts_is_refused_while_the_control_plane_is_away(
    page: Page, platform: Platform, path: str
) -> None:
    open_page(page, platform, path)
    if path == "/ui/":
        page.get_by_role("button", name="New job").click()
    buttons = [page.get_by_role("button", name=name, exact=True) for name in ACTING[path]]
    page.context.set_offline(True)
    for _ in range(2):  # one lost request is not worth a message
        with page.expect_event("requestfailed", lambda request: request.resource_type == "fetch"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#connection")).to_contain_text("does not answer")
    for button in buttons:
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", "The control plane does not answer.")
    if path == "/ui/":
        expect(page.locator("#new")).to_be_disabled()

"""How pages follow the control plane, and what they show while it is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.pages.opening import open_page
from tests.support.servers.browser import sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


LONG_MS = 14_000
"""Longer than the time between two refreshes without a stream, and shorter than with one."""


@pytest.fixture
def page(visitor: Page, platform: Platform) -> Page:
    """A page whose clock and connections are of no other page: these tests stop, cut and count them."""
    sign_in(visitor, platform.connection)
    return visitor


def freeze(page: Page) -> None:
    """Stops the clock of the pages that are opened next; `page.clock.run_for` lets it go on."""
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(days=1))


def test_a_hidden_page_sends_no_requests(page: Page, platform: Platform) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    freeze(page)
    open_page(page, platform, "/ui/")
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});
          window.look = (away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); };
        }"""
    )
    before = len(asked)
    page.evaluate("window.look(true)")
    page.clock.run_for(10 * LONG_MS)
    assert len(asked) == before
    with page.expect_request("**/jobs?*"):
        page.evaluate("window.look(false)")  # a page that is shown again is refreshed at once


def test_a_page_follows_the_stream_and_asks_again_and_again_while_there_is_none(page: Page, platform: Platform) -> None:
    platform.create_job("followed")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/v1/jobs/followed") else None)
    freeze(page)
    open_page(page, platform, "/ui/jobs/followed/rescale")
    for revision in (1, 2):  # the second change comes after all that the stream says at its beginning
        change = {"spec": {"parallelism": 4 + revision}}
        platform.api.patch("/v1/jobs/followed", change, if_match=f'"{revision}"')
        expect(page.locator("#parallelism-hint")).to_have_text(f"From 1 to 128; now {4 + revision}.")
    before = len(asked)
    page.clock.run_for(LONG_MS)
    assert len(asked) == before
    with page.expect_request("**/jobs/followed"):
        page.clock.run_for(LONG_MS)  # a page with a stream asks now and then, to be sure

    page.route("**/jobs/followed/stream", lambda route: route.abort())
    page.clock.resume()
    open_page(page, platform, "/ui/jobs/followed/rescale")
    for _ in range(2):
        with page.expect_request("**/jobs/followed"):
            pass
    platform.api.delete("/v1/jobs/followed")


def test_a_page_reads_when_its_stream_has_begun_and_waits_for_that_for_a_moment_only(
    page: Page, platform: Platform
) -> None:
    """The stream's first message names all topics: a page that had read before would read everything twice."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    freeze(page)
    open_page(page, platform, "/ui/jobs/departures/rescale")
    assert asked.index("/v1/jobs/departures/stream") < asked.index("/v1/whoami")

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
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/jobs/departures/stream")):
        page.evaluate(change, ["pagehide", True])
    with page.expect_request("**/jobs/departures/stream"):
        page.evaluate(change, ["pageshow", True])


def test_a_page_says_at_once_that_its_job_was_deleted(page: Page, platform: Platform) -> None:
    platform.create_job("short-lived")
    open_page(page, platform, "/ui/jobs/short-lived/configuration")
    platform.api.delete("/v1/jobs/short-lived")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job not found")
    for name in ("#body", "#actions", "#status", "#tabs", "#connection"):
        expect(page.locator(name)).to_be_hidden()


@pytest.mark.exhaustive  # it waits for the whole time that a page gives an answer
def test_a_control_plane_that_hangs_is_noticed_by_the_first_request_without_an_answer(
    page: Page, platform: Platform
) -> None:
    open_page(page, platform, "/ui/jobs/departures/overview")
    kept: list[Route] = []

    def keep(route: Route) -> None:
        kept.append(route)

    page.route(f"{platform.url}/v1/jobs/departures", keep)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#connection")).to_contain_text("The control plane does not answer.")
    assert len(kept) == 1
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.unroute_all(behavior="ignoreErrors")
    expect(page.locator("#connection")).to_be_hidden()


def test_a_page_reports_that_the_control_plane_does_not_answer_and_recovers(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    platform.stop()
    notice = page.locator("#connection")
    expect(notice).to_contain_text("The control plane does not answer.")
    start = page.get_by_role("button", name="Start")
    expect(start).to_be_disabled()
    expect(start).to_have_attribute("title", "The control plane does not answer.")
    said = "Stop: The control plane does not answer. It may have been done all the same."
    page.evaluate("async (text) => (await import('/ui/static/dom.js')).tell(text)", said)  # as a request under way does
    platform.start()
    expect(notice).to_be_hidden()
    expect(start).to_be_enabled()
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    expect(page.locator("#message")).to_be_hidden()  # the page shows what became of it

"""The actions on a job, and the page of its exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.pages.opening import open_page
from tests.support.recordings import journey

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_job_is_stopped_or_cancelled_only_if_its_user_agrees(page: Page, platform: Platform) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    going_on: dict[str, Any] = {"id": "end", "status": "IN_PROGRESS"}
    page.route("**/stop", lambda route: route.fulfill(status=202, json=going_on))
    page.route("**/v1/operations/end", lambda route: route.fulfill(json=going_on))
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/configuration")
    question = page.get_by_role("dialog")
    page.get_by_role("button", name="Cancel…").click()
    expect(question).to_contain_text(f"Cancel {journey.RUNNING} without a savepoint?")
    question.get_by_role("button", name="Keep running").click()
    expect(question).to_have_count(0)
    page.get_by_role("button", name="Stop…").click()
    question.get_by_role("button", name="Stop with savepoint").click()
    message = page.locator("#message")
    expect(message).to_have_text("Stop with savepoint: accepted.")
    assert asked == [f"{platform.url}/v1/jobs/{platform.api.get(f'/v1/jobs/{journey.RUNNING}')['name']}/stop"]
    going_on |= {"status": "FAILED", "failure": {"message": "the store is <b>full</b>"}}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(message).to_have_text("Stop with savepoint: the store is <b>full</b>")
    expect(message).to_have_attribute("data-tone", "bad")


def test_the_end_of_a_savepoint_leads_to_its_page(page: Page, platform: Platform) -> None:
    [operation] = platform.api.get(f"/v1/jobs/{journey.RUNNING}/operations?kind=SAVEPOINT")["operations"]
    number, accepted = operation["result"]["checkpoint_id"], {"id": operation["id"]}
    page.route("**/savepoint", lambda route: route.fulfill(status=202, json=accepted))
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/configuration")
    page.get_by_role("button", name="Savepoint", exact=True).click()
    expect(page.locator("#message")).to_contain_text("Savepoint: completed.")
    link = page.locator("#message").get_by_role("link")
    expect(link).to_have_text(f"#{number}")
    link.click()
    expect(page.get_by_role("heading", name=f"Savepoint {number}")).to_be_visible()


def test_the_exception_of_a_failed_job_names_its_place(page: Page, platform: Platform) -> None:
    open_page(page, platform, f"/ui/jobs/{journey.FAILED}/exceptions")
    expect(page.locator("#status")).to_have_text("Failed")
    newest = page.get_by_role("list").filter(has_text="ValueError").first
    expect(newest).to_contain_text("no such page: /broken")
    expect(newest).to_contain_text("(operator views-by-page, subtask 0)")
    expect(newest.get_by_role("link", name="1", exact=True)).to_have_attribute("href", "logs?attempt=1")
    expect(page.locator("#failure")).to_contain_text("The job failed. ")
    expect(newest).to_contain_text("in process_element")

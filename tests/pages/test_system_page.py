"""The pages of artifacts and of the system."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from keyscale.api.web.app import deliveries_of
from keyscale.clock import now_ms
from keyscale.db.repositories import jobs
from keyscale.vocabulary import HTTP_CHANNELS
from tests.pages.opening import HOSTILE_NAME, NONE, open_page
from tests.support.control_plane.driverless_platform import SCRIPT
from tests.support.servers.browser import faults_of_access
from tests.support.servers.webhook_receiver import webhook_receiver

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_long_name_hides_nothing_of_the_artifacts_in_a_narrow_window(page: Page, platform: Platform) -> None:
    long = platform.create_job("n" * 100)
    page.set_viewport_size({"width": 390, "height": 800})
    open_page(page, platform, "/ui/artifacts")
    expect(page.get_by_role("link", name="n" * 100)).to_be_visible()
    used = page.locator("#artifacts tr").filter(has=page.get_by_role("link", name="n" * 100))
    expect(used.get_by_role("button", name="Delete…")).to_be_disabled()
    expect(used.get_by_role("button", name="Delete…")).to_have_attribute("title", "A job uses it.")
    table = page.get_by_role("group", name="Table of artifacts")
    assert table.evaluate("table => table.scrollWidth - table.clientWidth") == 0
    platform.api.delete(f"/v1/jobs/{long}")


def test_a_file_is_uploaded_and_deleted_on_the_page(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/artifacts")
    page.route("**/v1/artifacts", lambda route: route.fulfill(status=413, json={"detail": "it is <b>too large</b>"}))
    file, message = page.locator("#file"), page.locator("#message")
    spare: FilePayload = {"name": "spare.py", "mimeType": "text/x-python", "buffer": SCRIPT + b"# spare\n"}
    file.set_input_files(spare)
    expect(message).to_have_text("it is <b>too large</b>")
    page.unroute("**/v1/artifacts")
    file.set_input_files(spare)
    expect(message).to_have_text("spare.py: uploaded.")
    row = page.locator("#artifacts tr").filter(has_text="spare.py")
    expect(row.locator("[data-column='Version']")).to_have_text("1")
    expect(row.locator("[data-column='Size']")).to_have_text(f"{len(spare['buffer'])} B")
    expect(row.locator("[data-column='Used by']")).to_have_text(NONE)
    row.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the artifact").click()
    expect(message).to_have_text("spare, version 1: deleted.")
    expect(row).to_have_count(0)


def test_the_system_page_lists_the_replicas_and_the_secrets(page: Page, platform: Platform) -> None:
    platform.lead()
    platform.api.put("/v1/secrets/BILLS/labels", {"labels": {"team": "billing"}})
    open_page(page, platform, "/ui/system")
    row = page.get_by_role("region", name="Replicas").get_by_role("row").nth(1)
    expect(row.get_by_role("rowheader")).to_have_text(platform.url)
    expect(row.get_by_role("cell").first).to_have_text("Leads")
    health, parts = page.locator("#health"), page.locator("#parts")

    def fail(route: Route) -> None:
        refusal = {"code": "STORE_UNAVAILABLE", "version": "9.9", "database": "ok", "store": "no_answer"}
        route.fulfill(status=503, json=refusal)

    page.route("**/health", fail)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(health).to_have_text("Store unavailable")
    expect(health).to_have_attribute("data-tone", "bad")
    expect(parts).to_contain_text("DatabaseWorksObject storeNo answer")
    page.unroute("**/health")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(parts).to_contain_text("DatabaseWorksObject storeWorks")
    expect(health).not_to_have_text("Store unavailable")
    secret = page.get_by_role("region", name="Secrets").get_by_role("row").nth(1)
    expect(secret).to_have_text("BILLSteam: billingNo")
    assert faults_of_access(page) == []


def test_the_events_of_the_system_name_their_job(page: Page, platform: Platform) -> None:
    platform.create_job("gone")
    platform.api.delete("/v1/jobs/gone")
    named = platform.create_job("named")
    with platform.sessions.begin() as session:
        job = jobs.lock(session, named)
        assert job is not None
        job.name = f"{HOSTILE_NAME} 2"
    open_page(page, platform, "/ui/system")
    created = page.locator("#events li").filter(has_text="Job created")
    link = created.get_by_role("link", name=f"{HOSTILE_NAME} 2", exact=True)
    expect(link).to_have_attribute("href", f"/ui/jobs/{named}/overview")
    expect(created.filter(has_text=platform.jobs["gone"]).locator(".mono")).to_have_text(platform.jobs["gone"])
    assert page.locator("#events img, #events script").count() == 0
    page.get_by_label("Kind").fill("job deleted")
    page.get_by_label("Time").select_option("Last 7 days")
    page.route("**/v1/events?*", lambda route: route.fulfill(json=route.fetch().json() | {"next": "5"}))
    with page.expect_request("**/v1/events?*") as read:
        page.get_by_role("button", name="Filter").click()
    asked = parse_qs(urlsplit(read.value.url).query)
    assert asked["kind"] == ["JOB_DELETED"]
    assert now_ms() - int(asked["from_ms"][0]) == pytest.approx(7 * 24 * 3_600_000, abs=60_000)
    older = page.get_by_role("link", name="Older")
    expect(older).to_have_attribute("href", re.compile(r"\?kind=job\+deleted&.*days=7&after=5$"))
    page.unroute_all(behavior="wait")
    expect(page.locator("#events li").first).to_contain_text("Job deleted")
    expect(page.locator("#events li").filter(has_not_text="Job deleted")).to_have_count(0)
    expect(page.get_by_label("Kind")).to_have_value("job deleted")
    page.get_by_role("link", name="All events").click()
    expect(created.first).to_be_visible()
    platform.api.delete(f"/v1/jobs/{named}")


def test_an_administrator_makes_and_revokes_a_token_on_the_page(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/system")
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Role").select_option("OPERATOR")
    page.get_by_label("Days").fill("30")
    page.get_by_role("button", name="Create a token").click()
    expect(page.locator("#token-made")).to_contain_text("The token nightly is shown this once")
    [token] = [each for each in platform.api.get("/v1/tokens")["tokens"] if each["name"] == "nightly"]
    assert (token["role"], token["expires_at_ms"] - token["created_at_ms"]) == ("OPERATOR", 30 * 24 * 3_600_000)
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="nightly"))
    row.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke the token").click()
    expect(row).to_contain_text("revoked")


def test_an_operator_subscribes_and_tests_the_subscription_on_the_page(page: Page, platform: Platform) -> None:
    leadership = platform.lead()
    open_page(page, platform, "/ui/system")
    with webhook_receiver() as receiver, ThreadPoolExecutor(1) as outbox:
        receiver.statuses = [404]
        page.get_by_label("Target").fill(f"{receiver.url}/hidden")
        page.get_by_role("button", name="Subscribe").click()
        shown = page.locator("#subscription-made")
        expect(shown).to_contain_text("The secret of the webhook is shown this once: whsec_")
        row = page.get_by_role("region", name="Notifications").get_by_role("row").nth(1)
        expect(row).to_contain_text(f"{receiver.url}/…")
        row.get_by_role("button", name="Test").click()
        expect(shown).to_contain_text("is being sent")
        outbox.submit(deliveries_of(platform.context, HTTP_CHANNELS).work, leadership).result()
        expect(shown).to_contain_text("was not delivered: 127.0.0.1 answered 404")
    row.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete the subscription").click()
    expect(page.locator("#no-subscriptions")).to_be_visible()
    assert faults_of_access(page) == []

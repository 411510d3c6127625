"""Signing in and out, and what a session may do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.settings import OpenIdSettings, Settings
from keyscale.vocabulary import Role
from tests.pages.opening import open_page
from tests.support.control_plane.driverless_platform import driverless_platform
from tests.support.servers.browser import faults_of_access, sign_in
from tests.support.servers.issuer_process import running_issuer
from tests.support.servers.openid_issuer import CLIENT_ID, CLIENT_SECRET
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


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
    send = "async (headers) => (await fetch('/v1/jobs/departures/start', {method: 'POST', headers})).status"
    assert page.evaluate(send, {}) == 403
    assert platform.api.get("/v1/jobs/departures")["status"]["state"] == "CREATED"


def test_a_viewer_sees_no_buttons_that_would_be_refused(visitor: Page, platform: Platform) -> None:
    api = platform.api
    made = api.post("/v1/tokens", {"name": "watcher", "role": "VIEWER"})
    sign_in(visitor, replace(api.connection, token=made["token"]))
    open_page(visitor, platform, "/ui/jobs/departures/rescale")
    expect(visitor.locator("#viewer")).to_have_text("watcher · Viewer")
    expect(visitor.get_by_role("button")).to_have_text(["Sign out"])
    for path in ("/ui/", "/ui/artifacts", "/ui/system"):
        open_page(visitor, platform, path)
        shown = visitor.get_by_role("button").filter(visible=True).all_inner_texts()
        assert not {"New job", "Upload a file", "Create a token", "Delete…", "Revoke…"} & set(shown)


def test_the_pages_on_the_way_through_an_issuer_have_no_fault_of_access(
    visitor: Page, postgres_server: str, migrated_template: str, tmp_path: Path
) -> None:
    page, database = visitor, create_database(postgres_server, "pages_of_an_issuer", migrated_template)
    with running_issuer() as issuer:
        openid = OpenIdSettings(issuer.url, CLIENT_ID, CLIENT_SECRET, audience=CLIENT_ID, roles={"*": Role.OPERATOR})
        with driverless_platform(Settings(home=tmp_path, database_url=database, openid=openid)) as platform:
            page.goto(f"{platform.url}/ui/login?next=/ui/artifacts")
            assert faults_of_access(page) == []
            page.route("**/ui/artifacts", lambda route: route.abort("aborted"))  # so that the page in between stays
            page.get_by_role("link", name="Sign in with").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("You are signed in")
            assert page.url.startswith(f"{platform.url}/ui/signed-in?")
            assert faults_of_access(page) == []
            page.unroute_all()
            page.get_by_role("link", name="Continue").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Artifacts")

"""A real browser for tests of the pages, and what it must never see."""

from __future__ import annotations

import subprocess
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import expect, sync_playwright

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

    from keyscale.client.connection import Connection

# How fast a page is, `./keyscale bench pages` says: a test on a busy machine waits for what will be there in the end.
TIMEOUT_SECONDS = 60.0
expect.set_options(timeout=1000 * TIMEOUT_SECONDS)

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
ColorScheme = Literal["light", "dark"]
RULES: dict[ColorScheme, dict[str, list[str]]] = {
    "dark": {"runOnly": ["color-contrast", "link-in-text-block"]},  # the themes differ in their colours alone
    "light": {},
}


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Starts Chromium without a window, after making sure that there is one."""
    found = subprocess.run([ROOT / "deploy" / "install-test-browser"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=found.stdout.strip(),
            timeout=5 * 1000 * TIMEOUT_SECONDS,
            args=["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def new_page(browser: Browser, *, timezone_id: str | None = None) -> Iterator[Page]:
    """Opens a page that shares nothing with others; fails afterwards if it did what no page of ours should."""
    with closing(new_context(browser, timezone_id=timezone_id)) as context, page_of(context) as page:
        yield page


def new_context(browser: Browser, *, timezone_id: str | None = None) -> BrowserContext:
    """Returns cookies and a cache of their own, for pages on which nothing turns: each picture takes a processor."""
    context = browser.new_context(timezone_id=timezone_id, reduced_motion="reduce")
    context.set_default_timeout(1000 * TIMEOUT_SECONDS)
    return context


@contextmanager
def page_of(context: BrowserContext) -> Iterator[Page]:
    """Opens a page that shares cookies and cache with others; fails afterwards as `new_page` does."""
    complaints = Complaints()
    with closing(context.new_page()) as page:
        complaints.watch(page)
        yield page
    assert complaints.seen == []


def sign_in(page: Page, connection: Connection) -> None:
    """Gives the page's browser the cookie that the login form gives it."""
    url, form = f"{connection.url}/ui/login", {"token": connection.token}
    answer = httpx.post(url, data=form, timeout=TIMEOUT_SECONDS, trust_env=False)
    cookie = answer.cookies[SESSION_COOKIE]
    page.context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": connection.url}])


def faults_of_access(page: Page) -> list[str]:
    """Returns what axe finds in both themes that people with a keyboard, a screen reader or bad eyes could not use."""
    page.evaluate(AXE)
    faults = []
    for scheme, rules in RULES.items():
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate("rules => axe.run(document, {resultTypes: ['violations'], ...rules})", rules)[
            "violations"
        ]
        faults += [
            f"{scheme}: {rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]
    return faults


@dataclass
class Complaints:
    """The faults of a page: errors, dialogs, requests that leave this machine."""

    seen: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("console", self._on_console)
        page.on("request", self._on_request)
        page.on("dialog", self._on_dialog)

    def _on_console(self, message: ConsoleMessage) -> None:
        # A refused or lost request is logged by the browser itself; what the page makes of it is tested.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.seen.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).hostname != "127.0.0.1":
            self.seen.append(f"request: {request.url}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

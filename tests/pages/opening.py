"""How tests of the pages open one, and what they all know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.control_plane.driverless_platform import Platform

NONE = "\N{EN DASH}"
"""What a page shows for a value that is not known."""
HOSTILE_NAME = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def open_page(page: Page, platform: Platform, path: str) -> None:
    """Opens a page and waits until it shows what it has to show."""
    page.goto(platform.url + path)
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Loading…")
    expect(page.get_by_text("Loading…").filter(visible=True)).to_have_count(0)

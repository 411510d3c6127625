"""One browser, and one control plane without drivers, for all tests of the pages.

The pages show what a real journey left in the database (`tests/support/recordings/journey.py`), and what tests store.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from keyscale.api.settings import Settings
from keyscale.db.models import Job
from tests.pages.opening import HOSTILE_NAME
from tests.support.control_plane.driverless_platform import driverless_platform
from tests.support.recordings import journey
from tests.support.recordings.recorded_rows import play
from tests.support.servers.browser import new_context, new_page, page_of, running_browser, sign_in
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.support.control_plane.driverless_platform import Platform


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser, which ends with these tests: while it is there, no other test can run an event loop."""
    with running_browser() as chromium:
        yield chromium


@pytest.fixture(scope="package")
def platform(
    postgres_server: str, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A control plane with the jobs of the journey, and two that have never run, one of them with a hostile name."""
    database = create_database(postgres_server, "pages", migrated_template)
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, database_url=database, store_url=(home / "store").as_uri())
    with driverless_platform(settings) as platform:
        platform.create_job("departures")
        hostile = platform.create_job("hostile")
        with platform.sessions.begin() as session:
            play(session, journey.FILE)
            # The API would refuse such a name, but other programs can write to the database.
            session.get_one(Job, hostile).name = HOSTILE_NAME
        yield platform


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """A page of a browser that is not signed in."""
    with new_page(browser) as page:
        yield page


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the pages of signed-in users share: the cookies, and the cache with the chart library."""
    with closing(new_context(browser)) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext, platform: Platform) -> Iterator[Page]:
    """A page of a browser that is signed in."""
    with page_of(context) as page:
        sign_in(page, platform.connection)
        yield page
    context.set_offline(False)

"""The rescale button, on a running job."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from keyscale.api.dashboard.router import TABS
from tests.support.servers.browser import faults_of_access, new_page, running_browser, sign_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

TIMEOUT_MS = 120_000
SCRIPT = b"""
import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, view, context):
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield {"page": context.current_key, "seen": seen}


env = StreamEnvironment.current()
views = env.stream(env.spark.readStream.schema("page string").json(env.parameters["input"]))
counts = views.key_by("page").process(Count(), output={"page": "string", "seen": "bigint"}).uid("views-by-page")
counts.sink_to(FileSink(env.parameters["output"], format="parquet")).uid("files")
env.execute()
"""


def test_a_job_is_rescaled_with_one_click(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    views = tmp_path / "views"
    views.mkdir()
    write_views(views, "first")
    api = control_plane.api
    artifact = api.upload("/artifacts", filename="page_views.py", content=SCRIPT)
    job = api.post(
        "/jobs",
        {
            "name": "page-views",
            "artifact_id": artifact["id"],
            "parallelism": 1,
            "parameters": {"input": views.as_uri(), "output": (tmp_path / "out").as_uri()},
            "checkpoints": {"interval_ms": 1000},
        },
    )
    with running_browser() as browser, new_page(browser) as page:
        sign_in(page, api.connection)
        tabs = f"{api.connection.url}/ui/jobs/{job['id']}"
        page.goto(tabs)
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#status")).to_have_text("Running", timeout=TIMEOUT_MS)

        # A checkpoint with the details of its subtask.
        page.get_by_role("link", name="Checkpoints").click()
        completed = page.locator("#history tr").filter(has_text="Completed").first
        expect(completed).to_be_visible(timeout=TIMEOUT_MS)
        expect(page.get_by_role("img", name="Duration. Duration: from")).to_be_visible(timeout=TIMEOUT_MS)
        completed.get_by_role("link").click()
        operator = page.get_by_role("region", name="views-by-page")
        expect(operator.get_by_role("row").nth(1)).to_contain_text("Completed")

        page.get_by_role("link", name="Rescale").click()
        field = page.get_by_label("Parallelism", exact=True)
        field.fill("2")
        page.get_by_role("button", name="Rescale to 2").click()
        phases = page.get_by_role("list", name="Phases of the rescale").get_by_role("listitem")
        expect(phases).to_have_count(5, timeout=TIMEOUT_MS)
        expect(page.locator("#rescale-live")).to_contain_text("Rescale to 2: ")
        control_plane.kill()  # in the middle: the page says so, the rescale goes on
        expect(page.locator("#connection")).to_contain_text("does not answer", timeout=TIMEOUT_MS)
        control_plane.start_again()
        expect(page.locator("#connection")).to_be_hidden(timeout=TIMEOUT_MS)
        write_views(views, "second")

        expect(page.locator("#rescale-title")).to_have_text("Rescale 1 → 2 Completed", timeout=TIMEOUT_MS)
        for index in range(5):
            expect(phases.nth(index)).to_have_text(re.compile(r"done\s*[\d,.]+ (ms|s|min)"))
        expect(page.get_by_role("table", name="Past rescales").get_by_role("row")).to_have_count(2)
        expect(page.locator("#status")).to_have_text("Running")
        assert api.get(f"/jobs/{job['id']}")["parallelism"] == 2
        expect(field).to_have_value("2")

        page.get_by_role("button", name="Savepoint", exact=True).click()
        expect(page.locator("#message")).to_contain_text("Savepoint: completed.", timeout=TIMEOUT_MS)
        for tab in TABS:
            page.goto(f"{tabs}/{tab}")
            expect(page.locator("#body")).to_be_visible(timeout=TIMEOUT_MS)
            assert faults_of_access(page) == [], tab
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_role("button", name="Keep running").click()
        page.get_by_role("button", name="Stop…").click()
        page.get_by_role("button", name="Stop with savepoint").click()
        expect(page.locator("#status")).to_have_text("Stopped", timeout=TIMEOUT_MS)


def write_views(directory: Path, name: str) -> None:
    """Adds a file of views atomically."""
    lines = (json.dumps({"page": f"/page/{number % 50}"}) for number in range(500))
    unfinished = directory / f".{name}"
    unfinished.write_text("\n".join(lines))
    unfinished.rename(directory / f"{name}.json")

"""The page of key groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.pages.opening import NONE, open_page
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


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
    expect(page.get_by_role("region", name="Largest key groups").get_by_role("row")).to_have_count(1 + 10)
    subtasks = page.get_by_role("list", name="Subtasks and their key groups").get_by_role("listitem")
    expect(subtasks).to_contain_text([f"groups {start}{NONE}{start + 63}" for start in (0, 64)])
    expect(subtasks).to_contain_text(["640 B 15 %", "3.6 KiB 85 %"])
    expect(page.locator("#legend")).to_contain_text("The largest subtask has 171 % of the average.")
    expect(page.get_by_role("region", name="Key groups", exact=True)).to_contain_text(
        "estimates: the content of a file"
    )
    page.get_by_label("Ranges at parallelism").fill("4")
    expect(subtasks).to_contain_text([f"groups {start}{NONE}{start + 31}" for start in range(0, 128, 32)])
    page.get_by_role("group", name="Measure").get_by_role("button", name="Entries").click()
    expect(subtasks.nth(2)).to_contain_text("3,382")
    expect(over_time.get_by_role("img", name="Largest now: Group 77 with 3,072")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?parallelism=4&measure=entries$"))
    assert faults_of_access(page) == []
    head = page.get_by_role("region", name="Key groups", exact=True)
    expect(head).to_contain_text("At checkpoint #3")
    draw = """async (operators) => {
        const { drawHistory } = await import('/ui/static/key_group_history.js');
        for (const operator of operators) drawHistory(operator, "bytes", 1, [{ key_group: 1 }]);
        return document.getElementById("history").getAttribute("aria-label");
    }"""
    series = [{"uid": uid, "at_ms": [1, 2], "bytes": [[1, size]] * 2} for uid, size in (("totals", 5), ("counts", 7))]
    assert page.evaluate(draw, series).endswith("Largest now: Group 1 with 7 B"), "the operator that was chosen last"
    made.take(4, {}, "latest", key_group_bytes=[10] * 128)
    open_page(page, platform, "/ui/jobs/uneven/key-groups")
    expect(head).to_contain_text("At savepoint #4")  # as the job's state size is that of either
    made.take(5, {}, key_group_bytes=[3000 if group == 77 else 10 for group in range(128)], largest={77: 2048})
    expect(head).to_contain_text("At checkpoint #5")
    expect(largest.get_by_role("cell")).to_have_text(["1", "at least 2 KiB", NONE, "at least 48 %"])
    made.take(6, {}, key_group_bytes=[10] * 128, largest={})
    expect(page.get_by_role("region", name="Largest key groups")).to_contain_text("Unknown: subtasks with more than")
    expect(over_time.get_by_role("figure")).to_be_hidden()
    assert faults_of_access(page) == []
    platform.api.delete("/v1/jobs/uneven")


def test_ranges_are_drawn_as_the_newest_checkpoint_has_them(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/jobs/departures/rescale")
    ask = "async ([parts, p]) => (await import('/ui/static/key_group_ranges.js')).rangesOf(parts, 128, p)"
    parts = [{"key_group_start": 0, "key_group_end": 0}, {"key_group_start": 1, "key_group_end": 127}]
    assert page.evaluate(ask, [parts, 2]) == [[0, 0], [1, 127]]
    assert page.evaluate(ask, [parts, 1]) == [[0, 127]]
    owner = "async (ranges) => (await import('/ui/static/key_group_ranges.js')).ownerOf(1, ranges)"
    assert page.evaluate(owner, [[0, 0], [1, 127]]) == 1

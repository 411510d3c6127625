"""The page of a checkpoint: verified, compared, deleted, and a source of other jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from keyscale.api.maintenance.snapshot_removal import SnapshotRemoval
from tests.pages.opening import HOSTILE_NAME, open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_checkpoint_is_verified_compared_and_deleted_on_its_page(page: Page, platform: Platform) -> None:
    platform.create_job("careful")
    made = platform.snapshots_of("careful")
    actions = page.get_by_role("group", name="Actions on this checkpoint")
    shared = made.layout.shared
    made.take(1, {f"{shared}a": b"a" * 2048, f"{shared}b": b"b" * 1024})
    made.take(2, {f"{shared}b": b"b" * 1024, f"{shared}c": b"c" * 4096})
    made.take(3, {f"{shared}c": b"c" * 4096}, operator_uid=HOSTILE_NAME)

    open_page(page, platform, "/ui/jobs/careful/checkpoints/1")
    verdict = page.locator("#restorable")
    expect(verdict).to_contain_text("were not verified yet")
    actions.get_by_role("button", name="Verify").click()
    expect(verdict).to_contain_text("2 files (3 KiB) were read, and have the right hashes.")
    expect(page.locator("#message")).to_be_hidden()
    expect(verdict).to_contain_text("The sources were not asked for the records after it: it holds no positions of")
    made.store.put(f"{shared}a", b"x" * 2048)
    actions.get_by_role("button", name="Verify").click()
    expect(verdict).to_contain_text("No job can start from it.")
    expect(verdict).to_contain_text("shared/a")

    comparison = page.get_by_role("region", name="Comparison")
    comparison.get_by_label("with checkpoint or savepoint").fill("2")
    comparison.get_by_role("button", name="Compare").click()
    cells = ["5 KiB", "3 KiB", "2", "1", "1 KiB in 1 file", "4 KiB in 1 file", "2 KiB in 1 file"]
    expect(comparison.get_by_role("row").nth(1).get_by_role("cell")).to_have_text(cells)
    expect(page).to_have_url(re.compile(r"/checkpoints/1\?with=2$"))
    assert faults_of_access(page) == []
    open_page(page, platform, "/ui/jobs/careful/checkpoints/1?with=3")
    expect(comparison.get_by_role("rowheader", name=HOSTILE_NAME)).to_have_text(HOSTILE_NAME)
    open_page(page, platform, "/ui/jobs/careful/checkpoints/1?with=9")
    expect(comparison).to_contain_text("the job has no checkpoint 9")

    actions.get_by_role("button", name="Delete…").click()
    question = page.get_by_role("dialog", name="Delete checkpoint 1?")
    expect(question).to_contain_text(re.compile(r"frees 2\.\d KiB in 2 objects, its list of files included; 1 KiB"))
    expect(question).to_contain_text("This cannot be undone.")
    question.get_by_role("button", name="Keep it").click()
    assert platform.api.get("/v1/jobs/careful/checkpoints/1")["status"] == "COMPLETED"
    actions.get_by_role("button", name="Delete…").click()
    question.get_by_role("button", name="Delete the checkpoint").click()
    expect(verdict).to_have_text("No job can start from it: it was deleted. Its files are deleted later.")
    for name in ("Verify", "Delete…", "Start a job from it…"):
        expect(actions.get_by_role("button", name=name)).to_be_disabled()
    assert "shared/a" in made.paths()
    assert SnapshotRemoval(platform.sessions, platform.context.pulse).work(platform.lead())
    assert made.paths() & {"shared/a", "shared/b", "shared/c"} == {"shared/b", "shared/c"}

    open_page(page, platform, "/ui/jobs/careful/checkpoints/3")
    actions.get_by_role("button", name="Delete…").click()
    expect(page.locator("#message")).to_contain_text("cannot be deleted: it is the newest snapshot of the job careful")
    platform.api.delete("/v1/jobs/careful")


def test_a_form_of_a_checkpoint_forgets_what_was_said_of_an_earlier_entry(page: Page, platform: Platform) -> None:
    platform.create_job("branched")
    made = platform.snapshots_of("branched")
    made.take(1, {})
    made.take(2, {})
    open_page(page, platform, "/ui/jobs/branched/checkpoints/1?with=2")
    comparison = page.get_by_role("region", name="Comparison")
    expect(comparison.get_by_role("table")).to_be_visible()
    comparison.get_by_label("with checkpoint or savepoint").fill("1")
    comparison.get_by_role("button", name="Compare").click()
    expect(comparison).to_contain_text("Choose a different checkpoint.")
    comparison.get_by_label("with checkpoint or savepoint").fill("0")
    expect(comparison.get_by_role("table")).to_be_hidden()
    expect(comparison.locator("#compare-note")).to_have_text(re.compile("^Enter the number of another checkpoint"))

    page.get_by_role("button", name="Start a job from it…").click()
    form = page.get_by_role("dialog", name="Start a job from it")
    button = form.get_by_role("radio").first.bounding_box()
    assert button is not None
    assert button["width"] == button["height"] < 20
    form.get_by_label("Name", exact=True).fill("departures")
    form.get_by_role("button", name="Start it").click()
    expect(form.get_by_role("alert")).to_contain_text("a job called departures already exists. ")
    form.get_by_label("Name", exact=True).fill("departures-2")
    expect(form.get_by_role("alert")).to_have_count(0)
    platform.api.delete("/v1/jobs/branched")


def test_a_checkpoint_that_no_job_has_is_no_fault_of_the_control_planes(page: Page, platform: Platform) -> None:
    for number in (0, 77, 10**20):
        page.goto(f"{platform.url}/ui/jobs/departures/checkpoints/{number}")
        expect(page.locator("#checkpoint-status")).to_have_text(re.compile("Checkpoint not found"))
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.get_by_role("group", name="Actions on this checkpoint").get_by_role("button")).to_have_count(0)


def test_the_history_leads_to_the_parts_of_a_checkpoint(page: Page, platform: Platform) -> None:
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/checkpoints")
    expect(page.get_by_role("img", name="Duration. Duration: from")).to_be_visible()
    page.locator("#history tr").filter(has_text="Completed").first.get_by_role("link").click()
    operator = page.get_by_role("region", name="views-by-page")
    expect(operator.get_by_role("row").nth(1)).to_contain_text("Completed")
    expect(page.locator("#restorable")).to_contain_text("A job can start from it.")


def test_a_job_is_started_from_a_savepoint_with_its_own_parameters(page: Page, platform: Platform) -> None:
    savepoint = platform.api.get(f"/v1/jobs/{journey.RUNNING}/checkpoints")["latest"]["savepoint"]["id"]
    made = platform.api.get("/v1/jobs/departures")
    page.route(f"**/jobs/{journey.RUNNING}/clone", lambda route: route.fulfill(status=201, json=made))
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/checkpoints/{savepoint}")
    expect(page.get_by_role("heading", name=f"Savepoint {savepoint}")).to_be_visible()
    page.get_by_role("button", name="Start a job from it…").click()
    form = page.get_by_role("dialog", name="Start a job from it")
    expect(form.get_by_label("Name")).to_have_value(f"{journey.RUNNING}-from-{savepoint}")
    form.get_by_label("Parameters").fill("input=/data/in\noutput=/data/copy")
    with page.expect_request("**/clone") as sent:
        form.get_by_role("button", name="Start it").click()
    body = sent.value.post_data_json
    assert body["name"] == f"{journey.RUNNING}-from-{savepoint}"
    assert body["spec"]["parameters"] == {"input": "/data/in", "output": "/data/copy"}
    assert body["start"]
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")

"""The page of a checkpoint: verified, compared, deleted, and a source of other jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from keyscale.api.maintenance.snapshot_removal import SnapshotRemoval
from keyscale.clock import now_ms
from tests.pages.opening import HOSTILE_NAME, NONE, open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

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
    page.route("**/compare?*", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/branched/checkpoints/1?with=2")
    comparison = page.get_by_role("region", name="Comparison")
    expect(comparison.locator("#compare-note")).to_have_text("The control plane does not answer.")
    page.unroute("**/compare?*")
    expect(comparison.get_by_role("table")).to_be_visible()  # after an outage the page compares by itself
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
    form.get_by_role("radio", name=re.compile("^This job")).check()
    expect(form.get_by_label("Name", exact=True)).to_be_hidden()
    refusal = {"detail": "the job is being <b>stopped</b>"}
    page.route("**/jobs/branched/start", lambda route: route.fulfill(status=409, json=refusal))
    with page.expect_request("**/jobs/branched/start") as sent:
        form.get_by_role("button", name="Start it").click()
    assert sent.value.post_data_json == {"restore_from": {"checkpoint_id": 1}}
    expect(form.get_by_role("alert")).to_have_text("the job is being <b>stopped</b>")
    page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/branched")


def test_a_checkpoint_that_no_job_has_is_no_fault_of_the_control_planes(page: Page, platform: Platform) -> None:
    for number in (0, 77, 10**20):
        page.goto(f"{platform.url}/ui/jobs/departures/checkpoints/{number}")
        expect(page.locator("#checkpoint-status")).to_have_text(re.compile("Checkpoint not found"))
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.get_by_role("group", name="Actions on this checkpoint").get_by_role("button")).to_have_count(0)


def test_a_verification_says_how_far_it_is_and_what_it_has_found(page: Page, platform: Platform) -> None:
    platform.create_job("verified")
    platform.snapshots_of("verified").take(1, {})
    found: dict[str, Any] = {
        "hashes": False,
        "files": 1200,
        "files_checked": 7,
        "bytes_read": 0,
        "ended_at_ms": now_ms(),
    }
    found |= {"status": "IN_PROGRESS", "restorable": None, "sources_checked": True, "sources_unchecked": None}
    found |= {"problems": ["<b>a</b> is gone"], "problem_count": 1300}
    page.route("**/checkpoints/1/verification", lambda route: route.fulfill(json=found))
    verdict, verify = page.locator("#restorable"), page.get_by_role("button", name="Verify")
    open_page(page, platform, "/ui/jobs/verified/checkpoints/1")
    expect(verdict).to_contain_text("Being verified: 7 of 1,200 files so far.")
    expect(verify).to_have_attribute("title", "The verification is in progress.")
    found |= {"status": "FAILED"}
    look_again(page)
    expect(verdict).to_contain_text("It could not be verified. Checked")
    expect(verdict).to_contain_text("<b>a</b> is goneand 1,299 more")
    expect(verify).to_be_enabled()
    found |= {"status": "COMPLETED", "restorable": True, "problems": [], "problem_count": 0}
    look_again(page)
    expect(verdict).to_contain_text("A job can start from it. 1,200 files are there, with the right sizes.")
    expect(verdict).to_contain_text("The sources still have the records after it.")
    page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/verified")


def look_again(page: Page) -> None:
    """Makes a page read again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


SPREAD = ("min", "avg", "p50", "p90", "p95", "p99", "p999", "max")


def test_the_history_leads_to_the_parts_of_a_checkpoint(page: Page, platform: Platform) -> None:
    def add_failure(route: Route) -> None:
        answer = route.fetch()
        listed = answer.json()
        failed = {**listed["history"][0], "id": 99, "status": "FAILED", "end_to_end_duration": 36_000_000}
        failed |= {"failure_timestamp": now_ms() - 65_000, "failure_message": "the disk is <b>full</b>"}
        listed["history"].insert(0, failed)
        listed["latest"] |= {"failed": failed, "restored": {"id": 0, "restore_timestamp": 1, "is_savepoint": True}}
        listed["counts"] |= {"completed": 5, "failed": 2, "in_progress": 1, "restored": 4}
        listed["summary"]["end_to_end_duration"] = {name: 1000 * at for at, name in enumerate(SPREAD, 1)}
        route.fulfill(response=answer, json=listed)

    page.route(f"{platform.url}/v1/jobs/{journey.RUNNING}/checkpoints?*", add_failure)
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/checkpoints")
    duration = re.compile(r"^Duration\. Duration: from [\d.]+ m?s to [\d.]+ m?s, last [\d.]+ m?s$")
    expect(page.get_by_role("img", name=duration)).to_be_visible()  # a failed one has no duration
    expect(page.locator("#counts")).to_have_text("5 completed, 2 failed, 1 in progress, 4 restored")
    latest = page.locator("#latest > div")
    expect(latest.nth(1)).to_have_text(re.compile(r"^Latest failed#99, 1 min \d+ s agothe disk is <b>full</b>$"))
    expect(latest.nth(3)).to_contain_text("from a savepoint that is not in this job's history")
    spread = page.locator("#summary tr").first.get_by_role("cell")
    expect(spread).to_have_text([f"{seconds} s" for seconds in range(1, 9)])
    page.locator("#history tr").filter(has_text="Completed").first.get_by_role("link").click()
    operator = page.get_by_role("region", name="views-by-page")
    expect(operator.get_by_role("row").nth(1)).to_contain_text("Completed")
    expect(page.locator("#restorable")).to_contain_text("A job can start from it.")


def test_a_job_is_started_from_a_savepoint_with_its_own_parameters(page: Page, platform: Platform) -> None:
    savepoint = platform.api.get(f"/v1/jobs/{journey.RUNNING}/checkpoints")["latest"]["savepoint"]["id"]
    made = platform.api.get("/v1/jobs/departures")
    page.route(f"**/jobs/{journey.RUNNING}/clone", lambda route: route.fulfill(status=201, json=made))
    path = f"{platform.url}/v1/jobs/{journey.RUNNING}"

    def change(route: Route) -> None:
        answer = route.fetch()
        one = answer.json() | {"owner": "PLATFORM"}
        part = {"end_to_end_duration": 1500, "start_delay": 20, "checkpoint": {"sync": 3, "async": 400}}
        part |= {"checkpointed_size": 2048, "state_size": 4096, "entries": 12_000, "files": 6}
        one["operators"][0]["subtasks"][0] |= part
        route.fulfill(response=answer, json=one)

    page.route(f"{path}/checkpoints/{savepoint}", change)
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/checkpoints/{savepoint}")
    expect(page.get_by_role("heading", name=f"Savepoint {savepoint}")).to_be_visible()
    cells = page.locator("#by-operator tbody tr").first.get_by_role("cell")
    values = ["1.5 s", "20 ms", "3 ms", "400 ms", "2 KiB", "4 KiB", "12,000", "6"]
    expect(cells).to_have_text(["Completed", f"0{NONE}63", *values])

    page.route(f"{path}/savepoints/*/keep", lambda route: route.fulfill(json={}))
    with page.expect_request(f"{path}/savepoints/*/keep"):
        page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("#message")).to_have_text("The savepoint is yours. The platform does not delete it.")

    rows = [["/a", None], ["<b>c</b>", {"n": 0}]]
    columns = [{"name": "key"}, {"name": "value"}]
    answers: list[dict[str, Any]] = [{"status": 200, "json": {"columns": columns, "rows": rows, "is_truncated": True}}]
    answers.append({"status": 422, "json": {"detail": "there is no table d"}})
    page.route(f"{path}/checkpoints/{savepoint}/sql", lambda route: route.fulfill(**answers.pop(0)))
    page.get_by_label("Statement", exact=True).fill("SELECT * FROM c")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#sql-note")).to_have_text("2 rows; there are more.")
    expect(page.locator("#sql-rows tr")).to_have_text([f"/a{NONE}", '<b>c</b>{"n":0}'])
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#sql-note")).to_have_text("there is no table d")
    expect(page.locator("#sql-rows")).to_be_hidden()
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

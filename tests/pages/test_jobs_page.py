"""The page of all jobs, with the form of a new job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.clock import now_ms
from keyscale.db.models import Job
from keyscale.db.repositories import jobs
from keyscale.vocabulary import DesiredState, DriverState, JobStatus
from tests.pages.opening import HOSTILE_NAME, NONE, open_page
from tests.support.control_plane.driverless_platform import SCRIPT
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_jobs_are_listed_and_a_hostile_name_is_only_text(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    table = page.get_by_role("table")
    row = table.get_by_role("row").filter(has_text="departures")
    expect(row.get_by_role("cell")).to_have_text(["Created", "2", NONE, NONE, NONE, NONE, NONE, "0", NONE])
    expect(table.get_by_role("rowheader", name=HOSTILE_NAME)).to_have_text(HOSTILE_NAME)
    assert page.locator("#jobs img, #jobs script").count() == 0

    table.get_by_role("link", name=HOSTILE_NAME).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_NAME)
    assert page.locator("main img, main script").count() == 0


def test_a_sleeping_job_says_since_when_it_sleeps_and_what_wakes_it(page: Page, platform: Platform) -> None:
    job_id = platform.create_job("dozing")
    with platform.sessions.begin() as session:
        job = jobs.lock(session, job_id)
        assert job is not None
        job.status, job.desired = JobStatus.SLEEPING, DesiredState.RUNNING
        attempt = JobTransaction(session, job).create_attempt(job.revision, Cause.START)
        attempt.driver_state, attempt.fell_asleep_at_ms = DriverState.SLEEPING, now_ms()
        attempt.heartbeat_at_ms = now_ms() + 600_000
    page.goto(f"{platform.url}/ui/")
    row = page.get_by_role("table").get_by_role("row").filter(has_text="dozing")
    expect(row.get_by_role("cell").first).to_have_text(re.compile(r"^Sleepingsince "))
    open_page(page, platform, "/ui/jobs/dozing/overview")
    wakes = page.locator("#sleep")
    expect(wakes).to_have_text(
        re.compile(r"^Since .*: the job sleeps; it wakes when its sources have records, and for an operation\.$")
    )
    expect(page.get_by_role("button", name="Savepoint")).to_be_enabled()
    page.get_by_role("button", name="Stop…").click()
    expect(page.get_by_role("dialog")).to_contain_text("continues from its last checkpoint")
    page.get_by_role("button", name="Let it sleep").click()
    assert faults_of_access(page) == []
    open_page(page, platform, "/ui/jobs/dozing/checkpoints")
    expect(page.get_by_role("button", name="Checkpoint")).to_be_enabled()
    with platform.sessions.begin() as session:
        session.delete(session.get_one(Job, job_id))


def test_the_rates_and_the_last_checkpoint_of_a_job_are_in_the_table(page: Page, platform: Platform) -> None:
    def add_figures(route: Route) -> None:
        answer = route.fetch()
        (job,) = [one for one in answer.json()["jobs"] if one["name"] == "departures"]
        job["status"]["state"] = "RESCALING"
        job["metrics"] |= {"input_rate": 64.0, "processed_rate": 930.0}
        size = {"checkpointed_size": 2048, "state_size": 4096, "end_to_end_duration": 1500}
        job["status"]["latest_checkpoint"] = {"id": 7, "completed_at_ms": now_ms() - 65_000, **size}
        route.fulfill(response=answer, json={"jobs": [job], "next": None})

    page.route("**/jobs?limit=*", add_figures)
    page.goto(f"{platform.url}/ui/")
    row = page.get_by_role("table").get_by_role("row").filter(has_text="departures")
    expect(page.locator("#summary")).to_have_text("1 of 1 running")
    expect(row.locator("[data-column='Input']")).to_have_text("64/scould process 930/s")
    expect(row.locator("[data-column='Last checkpoint']")).to_have_text(
        re.compile(r"^1 min \d+ s agoin 1.5 s, wrote 2 KiB$")
    )
    assert faults_of_access(page) == []
    page.unroute_all(behavior="wait")


def test_a_page_is_usable_by_keyboard(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    link = page.get_by_role("link", name="departures")
    expect(link).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        if reached[-1] == "departures":
            break
    assert reached[-1] == "departures", reached
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")


def test_jobs_are_filtered_and_sorted_as_the_address_says(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/?q=depart&sort=-Name")
    rows = page.locator("#jobs tr")
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Name or label")).to_have_value("depart")
    page.get_by_label("Name or label").fill("")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text(journey.RUNNING)
    page.get_by_role("button", name="Name").click()
    expect(rows.first).to_contain_text(HOSTILE_NAME)
    expect(page).to_have_url(f"{platform.url}/ui/?sort=Name")
    expect(page.get_by_label("Sort by")).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 700})  # where the heads of columns are out of sight
    expect(page.get_by_label("Sort by")).to_have_value("Name")
    page.get_by_label("Sort by").select_option("Name, descending")
    expect(rows.first).to_contain_text(journey.RUNNING)
    expect(page).to_have_url(f"{platform.url}/ui/?sort=-Name")
    page.get_by_label("Status").select_option("RUNNING")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(journey.RUNNING)
    page.get_by_label("Status").select_option("STOPPED")
    expect(rows).to_have_count(0)
    expect(page.locator("#filtered")).to_have_text("0 jobs shown")


def test_each_column_sorts_by_its_values_and_leaves_unknown_ones_last(page: Page, platform: Platform) -> None:
    def show(route: Route) -> None:
        answer = route.fetch()
        (job,) = [one for one in answer.json()["jobs"] if one["name"] == "departures"]
        listed = [with_values(job, name, value) for name, value in (("unknown", None), ("nine", 9), ("nought", 0))]
        route.fulfill(response=answer, json={"jobs": listed, "next": None})

    page.route("**/jobs?limit=*", show)
    page.goto(f"{platform.url}/ui/")
    names = page.locator("#jobs").get_by_role("link")
    for column in ("Input", "Records waiting", "Lag", "State", "Last checkpoint", "Running for"):
        head = page.locator(f"#columns [data-name='{column}'] button")
        for order in (["nought", "nine", "unknown"], ["nine", "nought", "unknown"]):
            head.click()
            expect(names).to_have_text(order)
    page.unroute_all(behavior="wait")


def with_values(job: dict[str, Any], name: str, value: int | None) -> dict[str, Any]:
    """Returns a job with this value in each column that may be unknown."""
    size = {"checkpointed_size": 1, "end_to_end_duration": 1}
    ended = None if value is None else {"id": 1, "completed_at_ms": value, **size}
    status = {"latest_checkpoint": ended, "running_since_ms": None if value is None else now_ms() - 60_000 * value}
    metrics = dict.fromkeys(("input_rate", "lag_records", "lag_ms", "state_size"), value)
    changed = {"metrics": {**job["metrics"], **metrics}, "status": {**job["status"], **status}}
    return {**job, **changed, "id": name, "name": name}


def test_a_program_is_uploaded_and_becomes_a_job_on_the_page(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    form.get_by_label("Program").set_input_files({"name": "my_job.py", "mimeType": "text/x-python", "buffer": SCRIPT})
    expect(form.get_by_label("Name", exact=True)).to_have_value("my-job")
    form.get_by_label("Parameters").fill("input")
    form.get_by_label("Start it immediately").uncheck()
    problem = form.get_by_text("“input” is not NAME=VALUE.")
    expect(problem).to_be_visible()
    form.get_by_label("Parameters").fill("input=/data/in\nquery=a=b")
    expect(problem).to_be_hidden()
    form.get_by_label("Labels").fill("team=web, stage=live")
    form.get_by_label("Max parallelism").fill("64")
    form.get_by_label("Parallelism", exact=True).fill("3")
    form.get_by_role("button", name="Create the job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("my-job")
    made = platform.api.get("/v1/jobs/my-job")
    assert (made["spec"]["parallelism"], made["spec"]["max_parallelism"]) == (3, 64)
    assert (made["labels"], made["status"]["state"]) == ({"team": "web", "stage": "live"}, "CREATED")

    page.get_by_role("link", name="Configuration").click()
    expect(page.get_by_role("row", name="query a=b")).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete the job").click()
    expect(page).to_have_url(f"{platform.url}/ui/")
    expect(page.get_by_role("link", name="my-job")).to_have_count(0)


def test_the_form_of_a_new_job_keeps_nothing_of_what_was_corrected(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 1280, "height": 500})  # lower than the form
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    expect(form).to_contain_text("a .zip with a main.py at its top")
    name, refusal = form.get_by_label("Name", exact=True), form.get_by_role("alert")
    for file, expected in (("bad.txt.py", "bad.txt"), ("departures.py", "departures")):
        form.get_by_label("Program").set_input_files({"name": file, "mimeType": "text/x-python", "buffer": SCRIPT})
        expect(name).to_have_value(expected)
    form.get_by_label("Program").set_input_files({"name": "read.md", "mimeType": "text/markdown", "buffer": SCRIPT})
    expect(form.get_by_text("A program is a .py or a .zip file.")).to_be_visible()
    form.get_by_label("Program").set_input_files({"name": "departures.py", "mimeType": "text/x", "buffer": SCRIPT})
    expect(form.get_by_text("A program is a .py or a .zip file.")).to_be_hidden()
    form.get_by_role("button", name="Create the job").click()
    expect(refusal).to_have_text(re.compile(r"a job called departures already exists\. [A-Z].*\.$"))
    expect(refusal).to_be_in_viewport(ratio=1)
    name.fill("arrivals")
    expect(refusal).to_have_count(0)
    form.get_by_label("Program").set_input_files({"name": "more.py", "mimeType": "text/x-python", "buffer": SCRIPT})
    expect(name).to_have_value("arrivals")  # the user's own


def test_a_job_that_runs_and_fails_again_and_again_says_so_among_the_others(page: Page, platform: Platform) -> None:
    platform.create_job("failing")
    page.goto(f"{platform.url}/ui/?q=failing")

    def fail(route: Route) -> None:
        answer = route.fetch()
        listed = answer.json()
        for job in listed["jobs"]:
            failure = {"code": "USER_CODE_FAILED", "message": "KeyError: 'u9'"}
            job["status"] |= {"state": "RUNNING", "failure": failure}
        route.fulfill(response=answer, json=listed)

    def fall_behind(route: Route) -> None:
        answer = route.fetch()
        listed = answer.json()
        for job in listed["jobs"]:
            reasons = [{"code": "SINK_SLOW", "message": "sink table takes most of 4 s"}]
            job["status"]["health"] = {"level": "CRITICAL", "score": 12, "reasons": reasons}
        route.fulfill(response=answer, json=listed)

    status = page.get_by_role("row").filter(has_text="failing").get_by_role("cell").first
    for play, text in (
        (fail, "RunningKeyError: 'u9'"),
        (fall_behind, "CreatedHealth 12: sink table takes most of 4 s"),
    ):
        page.route("**/jobs?*", play)
        page.reload()
        expect(status).to_have_text(text)
        page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/failing")


def test_a_long_name_and_labels_leave_the_values_of_all_jobs_in_sight(page: Page, platform: Platform) -> None:
    platform.create_job("n" * 100, team="t" * 63, stage="s" * 63)
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        open_page(page, platform, "/ui/")
        table = page.get_by_role("table")
        assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth"), width
    platform.api.delete(f"/v1/jobs/{'n' * 100}")


def test_jobs_are_found_by_a_label_as_the_form_takes_it(page: Page, platform: Platform) -> None:
    platform.create_job("labelled", team="ads")
    open_page(page, platform, "/ui/?q=team%3Dads")
    expect(page.locator("#jobs").get_by_role("link")).to_have_text(["labelled"])
    page.get_by_label("Name or label").fill("team=mobile")
    expect(page.get_by_text("No job matches this filter")).to_be_visible()
    expect(page.get_by_role("table")).to_be_hidden()
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.get_by_role("link", name="labelled")).to_be_visible()
    expect(page).to_have_url(f"{platform.url}/ui/")
    platform.api.delete("/v1/jobs/labelled")


def test_a_parallelism_above_the_max_parallelism_is_refused_at_once(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    form.get_by_label("Parallelism", exact=True).fill("129")
    expect(form).to_contain_text("Enter a whole number from 1 to 128.")
    form.get_by_label("Max parallelism").fill("200")
    expect(form).not_to_contain_text("Enter a ")
    form.get_by_label("Max parallelism").fill("8")
    expect(form).to_contain_text("Enter a whole number from 1 to 8.")


COLOR_OF = """(node, name) => {
  node.append(Object.assign(document.createElement("i"), { style: `color: var(${name})` }));
  const { color } = getComputedStyle(node.lastChild);
  node.lastChild.remove();
  return color;
}"""
"""Gives a colour of the style sheet as the browser tells it."""


def test_a_dialog_higher_than_the_window_keeps_its_buttons_in_sight(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 900, "height": 600})
    page.goto(f"{platform.url}/ui/")
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    expect(form.get_by_role("button", name="Create the job")).to_be_in_viewport(ratio=1)
    expect(form.get_by_label("Labels")).not_to_be_in_viewport()
    form.get_by_label("Parameters").fill("no value")
    field, button = (each.bounding_box() for each in (form.get_by_label("Parameters"), form.get_by_role("button").last))
    assert field is not None
    assert button is not None
    assert field["y"] + field["height"] < button["y"]
    expect(form.get_by_label("Parameters")).to_have_css("border-color", form.evaluate(COLOR_OF, "--bad"))
    assert faults_of_access(page) == []

"""A user's whole way through the pages, with one real job: from the sign-in to a second job from a savepoint."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from keyscale.api.dashboard.router import TABS
from tests.support.repository import ROOT
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TIMEOUT_MS = 120_000
VIEWS = 500
PROGRAM = ROOT / "tests" / "support" / "jobs" / "page_views_job.py"


@dataclass
class Walk:
    """The steps of a user.

    Attributes:
        page: The browser's page.
        platform: The control plane.
        directory: Holds the job's input and output.
        is_restarted: Whether the control plane is killed and started again in the middle of each change.
    """

    page: Page
    platform: RunningControlPlane
    directory: Path
    is_restarted: bool
    job: str = ""
    files: list[str] = field(default_factory=list)

    def deliver(self, *, last_page: str = "/page/0") -> None:
        """Adds a file of views atomically."""
        name = f"{len(self.files):04d}.json"
        pages = [*(f"/page/{number % 50}" for number in range(VIEWS - 1)), last_page]
        unfinished = self.directory / "views" / f".{name}"
        unfinished.write_text("\n".join(json.dumps({"page": each}) for each in pages))
        unfinished.rename(unfinished.with_name(name))
        self.files.append(name)

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("navigation", name="Job").get_by_role("link", name=name, exact=True).click()

    def expect_status(self, status: str) -> None:
        expect(self.page.locator("#status")).to_have_text(status, timeout=TIMEOUT_MS)

    def confirm(self, action: str) -> None:
        """Agrees to the only question that is asked."""
        question = self.page.get_by_role("dialog")
        expect(question).to_have_count(1)
        question.get_by_role("button", name=action).click()

    def restart_control_plane(self) -> None:
        """The page says that the control plane is away, and comes back without a reload."""
        if not self.is_restarted:
            return
        self.platform.kill()
        notice = self.page.locator("#connection")
        expect(notice).to_contain_text("does not answer", timeout=TIMEOUT_MS)
        self.platform.start_again()
        expect(notice).to_be_hidden(timeout=TIMEOUT_MS)

    def phases(self) -> Locator:
        return self.page.get_by_role("list", name="Phases of the change").get_by_role("listitem")

    def expect_change(self, title: str, phases: int = 5) -> None:
        """Waits for the end of a change; every phase has its time."""
        self.deliver()
        expect(self.page.locator("#change-title")).to_have_text(title, timeout=TIMEOUT_MS)
        done = re.compile(r"done\s*[\d,.]+ (ms|s|min)")
        expect(self.phases()).to_have_text([done] * phases)
        self.expect_status("Running")


def test_a_job_is_run_and_watched_on_the_pages(
    visitor: Page, control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    walk = begin(visitor, control_plane, tmp_path, is_restarted=False)
    watch_checkpoints_arrive(walk)
    take_a_savepoint(walk)
    find_a_line_of_the_log(walk)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_restarted", [False, True], ids=["undisturbed", "with-the-control-plane-restarted"])
def test_a_job_is_run_rescaled_upgraded_and_started_from_a_savepoint_on_the_pages(
    visitor: Page, control_plane: RunningControlPlane, tmp_path: Path, is_restarted: bool
) -> None:
    walk = begin(visitor, control_plane, tmp_path, is_restarted=is_restarted)
    watch_checkpoints_arrive(walk)
    savepoint = take_a_savepoint(walk)
    rescale(walk)
    upgrade(walk)
    find_a_line_of_the_log(walk)
    find_nothing_wrong_with_any_tab(walk)
    start_a_job_from_the_savepoint(walk, savepoint)
    see_the_exception_of_the_failed_job(walk)


def begin(page: Page, platform: RunningControlPlane, directory: Path, *, is_restarted: bool) -> Walk:
    """Signs in, and creates a job."""
    (directory / "views").mkdir()
    walk = Walk(page, platform, directory, is_restarted)
    walk.deliver()
    sign_in_by_the_form(walk)
    create_the_job(walk)
    return walk


def sign_in_by_the_form(walk: Walk) -> None:
    connection = walk.platform.api.connection
    walk.page.goto(f"{connection.url}/")
    walk.page.get_by_label("Token").fill(connection.token)
    walk.page.get_by_role("button", name="Sign in").click()
    expect(walk.page.get_by_text("No jobs yet.")).to_be_visible()


def create_the_job(walk: Walk) -> None:
    page = walk.page
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog", name="New job")
    form.get_by_label("Program").set_input_files(program(1))
    expect(form.get_by_label("Name", exact=True)).to_have_value("page-views")
    places = {"input": walk.directory / "views", "output": walk.directory / "out"}
    form.get_by_label("Parameters").fill("\n".join(f"{name}={path.as_uri()}" for name, path in places.items()))
    form.get_by_label("Labels").fill("team=web")
    form.get_by_role("button", name="Create the job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("page-views", timeout=TIMEOUT_MS)
    expect(page.get_by_role("list", name="Labels")).to_have_text("team: web")
    walk.expect_status("Running")
    walk.job = page.locator("#job-id").inner_text()
    graph = page.get_by_role("group", name="Graph of the operators")
    expect(graph.get_by_role("listitem")).to_have_count(3, timeout=TIMEOUT_MS)
    expect(graph.get_by_role("listitem").nth(1)).to_contain_text("Busiest subtask", timeout=TIMEOUT_MS)


def watch_checkpoints_arrive(walk: Walk) -> None:
    page = walk.page
    walk.open_tab("Checkpoints")
    page.get_by_role("button", name="Take a checkpoint").click()
    completed = page.locator("#history tr").filter(has_text="Completed").first
    expect(completed).to_be_visible(timeout=TIMEOUT_MS)
    expect(page.get_by_role("img", name="Duration. Duration: from")).to_be_visible(timeout=TIMEOUT_MS)
    completed.get_by_role("link").click()
    operator = page.get_by_role("region", name="views-by-page")
    expect(operator.get_by_role("row").nth(1)).to_contain_text("Completed")
    expect(page.locator("#restorable")).to_contain_text("A job can start from it.")


def take_a_savepoint(walk: Walk) -> str:
    """Returns the number of the savepoint."""
    page = walk.page
    walk.open_tab("Checkpoints")
    page.get_by_role("button", name="Savepoint", exact=True).click()
    expect(page.locator("#message")).to_contain_text("Savepoint: completed.", timeout=TIMEOUT_MS)
    expect(page.locator("#message").get_by_role("link")).to_have_attribute("href", re.compile(r"/checkpoints/\d+$"))
    row = page.locator("#history tr").filter(has_text="savepoint").first
    return row.get_by_role("link").inner_text().removeprefix("#")


def rescale(walk: Walk) -> None:
    """By the running driver, or by a new driver while the control plane is restarted."""
    page = walk.page
    if walk.is_restarted:
        walk.platform.api.patch(f"/v1/jobs/{walk.job}", {"spec": {"rescale_mode": "STANDBY"}}, if_match="*")
    walk.open_tab("Rescale")
    page.get_by_label("Parallelism", exact=True).fill("2")
    way = "by a new driver" if walk.is_restarted else "by the running driver"
    expect(page.locator("#plan-figures")).to_contain_text(way, timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Rescale to 2").click()
    walk.confirm("Rescale to 2")
    phases = 5 if walk.is_restarted else 3  # a new driver, or the running driver
    expect(walk.phases()).to_have_count(phases, timeout=TIMEOUT_MS)
    if walk.is_restarted:
        expect(page.locator("#change-live")).to_contain_text("Rescale 1 → 2: ")
        walk.restart_control_plane()
    walk.expect_change("Rescale 1 → 2 Completed", phases)
    expect(page.get_by_role("table", name="Past rescales").get_by_role("row")).to_have_count(2)
    assert walk.platform.api.get(f"/v1/jobs/{walk.job}")["spec"]["parallelism"] == 2
    expect(page.get_by_label("Parallelism", exact=True)).to_have_value("2")
    assert_operators_add_up(walk)


def assert_operators_add_up(walk: Walk) -> None:
    """Files that subtasks share after a rescale count once in an operator's size, as in the checkpoint's."""
    checkpoints = f"/v1/jobs/{walk.job}/checkpoints"
    newest = walk.platform.api.get(checkpoints)["latest"]["completed"]["id"]
    checkpoint = walk.platform.api.get(f"{checkpoints}/{newest}")
    assert sum(operator["state_size"] for operator in checkpoint["operators"]) == checkpoint["state_size"] > 0


def upgrade(walk: Walk) -> None:
    page = walk.page
    walk.open_tab("Revisions")
    page.get_by_role("button", name="Change the job…").click()
    form = page.get_by_role("region", name="Change the job")
    form.get_by_label("or upload another program").set_input_files(program(2))
    expect(form.get_by_label("Program", exact=True)).to_have_value(re.compile("."))
    expect(page).to_have_url(re.compile("program="), timeout=TIMEOUT_MS)
    form.get_by_label("Why").fill("rows say their version")
    form.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("This change can be made.", timeout=TIMEOUT_MS)
    expect(plan.get_by_role("row").filter(has_text="views-by-page / seen")).to_contain_text("KEPT")
    form.get_by_role("button", name="Upgrade…").click()
    walk.confirm("Upgrade the job")
    revisions = "3 to 4" if walk.is_restarted else "2 to 3"  # the other mode of the rescale was a revision, too
    expect(page.locator("#change-live")).to_contain_text(f"Upgrade from revision {revisions}: ", timeout=TIMEOUT_MS)
    walk.restart_control_plane()
    walk.expect_change(f"Upgrade from revision {revisions} Completed")
    newest = page.get_by_role("region", name="Revisions").get_by_role("row").nth(1)
    expect(newest).to_contain_text("rows say their version")
    expect(newest).to_contain_text("now")
    expect(page.get_by_role("region", name="Specification").get_by_role("row").nth(1)).to_contain_text(
        "page_views, version 2"
    )


def find_a_line_of_the_log(walk: Walk) -> None:
    page = walk.page
    walk.open_tab("Logs")
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text(
        "all state is restored", timeout=TIMEOUT_MS
    )
    page.get_by_label("Search in the whole log").fill("The Query Runs")
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Lines found").get_by_role("link")).to_contain_text(["the query runs"])
    expect(page.locator("#log-hint")).to_contain_text("1 line with")


def find_nothing_wrong_with_any_tab(walk: Walk) -> None:
    for tab in TABS:
        walk.page.goto(f"{walk.platform.url}/ui/jobs/page-views/{tab}")
        expect(walk.page.locator("#body")).to_be_visible(timeout=TIMEOUT_MS)
        assert faults_of_access(walk.page) == [], tab


def start_a_job_from_the_savepoint(walk: Walk, savepoint: str) -> None:
    page = walk.page
    # By its address: it may be on a later page of the history by now, as checkpoints are taken meanwhile.
    page.goto(f"{walk.platform.url}/ui/jobs/page-views/checkpoints/{savepoint}")
    expect(page.get_by_role("heading", name=f"Savepoint {savepoint}")).to_be_visible()
    page.get_by_role("button", name="Start a job from it…").click()
    form = page.get_by_role("dialog", name="Start a job from it")
    expect(form.get_by_label("Name")).to_have_value(f"page-views-from-{savepoint}")
    form.get_by_label("Parameters").fill(
        f"input={(walk.directory / 'views').as_uri()}\noutput={(walk.directory / 'copy').as_uri()}"
    )
    form.get_by_role("button", name="Start it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"page-views-from-{savepoint}", timeout=TIMEOUT_MS)
    walk.expect_status("Running")
    expect(page.locator("#more-figures")).to_contain_text("Running for")
    page.get_by_role("button", name="Cancel…").click()
    walk.confirm("Keep running")
    page.get_by_role("button", name="Stop…").click()
    walk.confirm("Stop with savepoint")
    walk.expect_status("Stopped")


def see_the_exception_of_the_failed_job(walk: Walk) -> None:
    walk.deliver(last_page="/broken")
    walk.page.goto(f"{walk.platform.url}/ui/jobs/page-views/exceptions")
    walk.expect_status("Failed")
    newest = walk.page.get_by_role("list").filter(has_text="ValueError").first
    expect(newest).to_contain_text("no such page: /broken", timeout=TIMEOUT_MS)
    expect(newest).to_contain_text("operator views-by-page")


def program(version: int) -> dict[str, str | bytes]:
    """Returns the program as a browser uploads it."""
    content = PROGRAM.read_text(encoding="utf-8").replace("VERSION = 1\n", f"VERSION = {version}\n")
    return {"name": "page_views.py", "mimeType": "text/x-python", "buffer": content.encode()}

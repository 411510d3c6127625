"""The page of rescales: the preview, and the phases of each rescale."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from keyscale.api.operations.schemas.change_plan import (
    DowntimePlan,
    MovementPlan,
    OperatorMovement,
    PlanAnswer,
    SubtaskMovementAnswer,
)
from keyscale.api.operations.schemas.operation import ChangeMetricsAnswer
from keyscale.client import Keyscale
from keyscale.db.models import Attempt, Job, Operation
from keyscale.vocabulary import AttemptStage, ChangePhase, JobStatus, OperationKind, OperationStatus, UpgradeMode
from tests.pages.opening import HOSTILE_NAME, NONE, open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_job_that_does_not_run_can_be_started_and_not_rescaled(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    expect(page.locator("#status")).to_have_text("Created")
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    expect(page.get_by_role("button", name="Stop…")).to_be_hidden()
    expect(page.get_by_role("button", name="Rescale")).to_be_disabled()
    page.get_by_label("Parallelism", exact=True).fill("4")
    expect(page.get_by_label("Parallelism", exact=True)).to_have_accessible_description(
        "From 1 to 128; now 2. Only a running job can be rescaled. Set this job's parallelism on its page Revisions."
    )
    page.get_by_label("Parallelism", exact=True).fill("129")
    expect(page.locator("#parallelism-hint")).to_contain_text("Enter a whole number from 1 to 128.")
    page.get_by_role("link", name="Checkpoints").click()
    expect(page.get_by_text("No checkpoints yet.")).to_be_visible()


def test_the_preview_shows_the_key_groups_of_each_subtask(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/departures/rescale")
    expect(page.get_by_text("Now: 2 subtasks own 64 of 128 key groups each")).to_be_visible()
    page.get_by_label("Parallelism", exact=True).fill("3")
    expect(page.get_by_text("Then: 3 subtasks own 42 or 43 of 128 key groups each")).to_be_visible()
    titles = page.locator("#ranges span").evaluate_all("spans => spans.map((span) => span.title)")
    assert titles == [
        "subtask 0: key groups 0\N{EN DASH}42",
        "subtask 1: key groups 43\N{EN DASH}85",
        "subtask 2: key groups 86\N{EN DASH}127",
    ]


def test_the_slider_says_its_parallelism_and_each_key_moves_it(page: Page, platform: Platform) -> None:
    open_page(page, platform, "/ui/jobs/departures/rescale")
    slider = page.get_by_label("Parallelism, by slider")
    expect(slider).to_have_attribute("aria-valuetext", "2")
    slider.press("Home")
    for expected in ("2", "3", "4"):
        slider.press("ArrowRight")
        expect(slider).to_have_attribute("aria-valuetext", expected)
        expect(page.get_by_label("Parallelism", exact=True)).to_have_value(expected)
    slider.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "128")
    page.get_by_label("Parallelism", exact=True).fill("97")
    expect(slider).to_have_attribute("aria-valuetext", "97")


def test_a_rescale_that_was_rolled_back_says_why_and_one_in_progress_can_be_cancelled(
    page: Page, platform: Platform
) -> None:
    platform.create_job("returned")
    begun = {"REQUESTED": 1000, "SAVEPOINT": 3000, "STOP": 4000, "RESTORE": 4500, "ROLL_BACK": 9000}
    ended = [*list(begun.values())[1:], 12_000]
    times = zip(begun.items(), ended, strict=True)
    phases = [{"phase": phase, "started_at_ms": at, "ended_at_ms": end} for (phase, at), end in times]
    with platform.sessions.begin() as session:
        session.add(
            Operation(
                id="there-and-back", job_id=platform.jobs["returned"], kind=OperationKind.RESCALE,
                status=OperationStatus.ROLLED_BACK, phase=ChangePhase.ROLL_BACK, phases=phases,
                from_revision=1, to_revision=2,
                from_parallelism=2, to_parallelism=4, upgrade_mode=UpgradeMode.SAVEPOINT, old_attempt=1,
                requested_at_ms=1000, ended_at_ms=12_000, stopped_at_ms=3500, resumed_at_ms=11_500,
                failure={"code": "USER_CODE_FAILED", "message": f"ValueError: {HOSTILE_NAME}"},
            )
        )  # fmt: skip
    open_page(page, platform, "/ui/jobs/returned/rescale")
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 Rolled back")
    expect(page.locator("#change-summary")).to_contain_text(f"from the same savepoint. ValueError: {HOSTILE_NAME}")
    steps = page.get_by_role("list", name="Phases of the change").get_by_role("listitem")
    expect(steps.filter(has_text="failed")).to_have_text(["Restore failed4.5 s"])
    expect(steps.last).to_have_text("Roll back done3 s")
    past = page.get_by_role("table", name="Past rescales").get_by_role("row").nth(1)
    expect(past).to_contain_text("2 → 4")
    expect(past).to_contain_text(f"ValueError: {HOSTILE_NAME}")
    assert faults_of_access(page) == []

    choice: dict[str, Any] = {"can_cancel": False, "cancel_requested_at_ms": None}

    def go_on(route: Route) -> None:
        answer = route.fetch()
        (change,) = answer.json()["operations"]
        change |= {"status": "IN_PROGRESS", "phase": "RESTORE", "ended_at_ms": None, **choice}
        waiting = {"code": "STORE_UNAVAILABLE", "message": f"403 {HOSTILE_NAME}"}
        restoring = {**change["phases"][-2], "ended_at_ms": None, "duration_ms": None, "waits_for": waiting}
        change |= {"phases": [*change["phases"][:-2], restoring], "failure": None}
        route.fulfill(response=answer, json={"operations": [change], "next": None})

    page.route(f"{platform.url}/v1/jobs/returned/operations?*", go_on)
    open_page(page, platform, "/ui/jobs/returned/rescale")
    expect(page.locator("#change-summary")).to_contain_text(f"continues when the store answers: 403 {HOSTILE_NAME}")
    cancel = page.get_by_role("button", name="Cancel it…")
    expect(cancel).to_be_disabled()
    expect(cancel).to_have_attribute("title", re.compile("^It is too late"))
    choice["can_cancel"] = True
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    cancel.click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("No record is lost.")
    choice["cancel_requested_at_ms"] = 1
    page.route("**/operations/there-and-back/cancel", lambda route: route.fulfill(status=202, json={}))
    with page.expect_request("**/v1/operations/there-and-back/cancel"):
        question.get_by_role("button", name="Cancel the change").click()
    expect(page.locator("#message")).to_have_text("The change is being cancelled.")
    expect(cancel).to_be_disabled()
    expect(cancel).to_have_attribute("title", "It is being cancelled.")
    page.unroute_all(behavior="wait")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 Rolled back")
    expect(page.locator("#message")).to_be_hidden()
    platform.api.delete("/v1/jobs/returned")


def test_a_rescale_that_was_cancelled_before_it_stopped_the_job_shows_no_downtime_and_no_savepoint(
    page: Page, platform: Platform
) -> None:
    platform.create_job("untouched")
    base = {
        "job_id": platform.jobs["untouched"], "kind": OperationKind.RESCALE, "status": OperationStatus.CANCELLED,
        "phase": ChangePhase.REQUESTED, "from_revision": 1, "to_revision": 2, "from_parallelism": 3,
        "to_parallelism": 5, "upgrade_mode": UpgradeMode.SAVEPOINT, "old_attempt": 1, "approved_at_ms": 1000,
        "metrics_before": {**dict.fromkeys(ChangeMetricsAnswer.model_fields), "processed_rate": 130.0},
    }  # fmt: skip
    begun = {"phase": "REQUESTED", "started_at_ms": 1000, "ended_at_ms": 12_300}
    failed = {"phase": "SAVEPOINT", "started_at_ms": 12_300, "ended_at_ms": 13_000}
    with platform.sessions.begin() as session:
        session.add(Operation(id="unstopped", phases=[begun], requested_at_ms=-99_000, ended_at_ms=12_300, **base))
    open_page(page, platform, "/ui/jobs/untouched/rescale")
    summary = page.locator("#change-summary")
    expect(summary).to_contain_text("The job runs as before: the change had not stopped it.")
    expect(summary).not_to_contain_text("savepoint")
    expect(summary).to_contain_text("Downtimenone")
    past = page.get_by_role("table", name="Past rescales").get_by_role("row").nth(1).get_by_role("cell")
    expect(past).to_have_text(["3 → 5", re.compile("Cancelled"), "none", "11.3 s", "130/s", "none"])
    with platform.sessions.begin() as session:
        session.get_one(Operation, "unstopped").phases = [begun, failed]
    open_page(page, platform, "/ui/jobs/untouched/rescale")
    expect(summary).to_contain_text("The job runs as before: no savepoint was taken.")
    expect(past.last).to_have_text(NONE)
    bars = page.locator("#phases .bar-of-time").evaluate_all(
        "bars => bars.map(({style}) => [style.marginInlineStart, style.width].map(parseFloat))"
    )
    assert bars == [pytest.approx([0, 94.17], abs=0.01), pytest.approx([94.17, 5.83], abs=0.01)]  # from the approval


def test_a_rescale_has_the_time_of_each_phase_and_stays_in_the_history(page: Page, platform: Platform) -> None:
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/rescale")
    expect(page.locator("#change-title")).to_have_text("Rescale 1 → 2 Completed")
    steps = page.get_by_role("list", name="Phases of the change").get_by_role("listitem")
    expect(steps).to_have_text(
        [re.compile(rf"{phase} done\s*[\d,.]+ (ms|s|min)") for phase in ("Prepare", "Switch", "Wait for a batch")]
    )
    expect(page.locator("#change-summary")).to_contain_text("Batches held")
    expect(page.get_by_role("table", name="Past rescales").get_by_role("row")).to_have_count(2)
    expect(page.get_by_label("Parallelism", exact=True)).to_have_value("2")


def test_a_user_approves_the_rescale_that_another_user_has_requested(page: Page, platform: Platform) -> None:
    platform.create_job("guarded")
    platform.api.patch("/v1/jobs/guarded", {"spec": {"approval": "REQUIRED"}}, if_match="*")
    with platform.sessions.begin() as session:
        session.get_one(Job, platform.jobs["guarded"]).status = JobStatus.RUNNING
        session.add(
            Attempt(
                job_id=platform.jobs["guarded"], number=1, stage=AttemptStage.ACTIVE, cause="start", revision=2,
                parallelism=2, created_at_ms=1,
            )
        )  # fmt: skip
    token = platform.api.post("/v1/tokens", {"name": "ben", "role": "OPERATOR"})["token"]
    with Keyscale(connection=replace(platform.connection, token=token)) as ben:
        ben.post("/v1/jobs/guarded/rescale", {"parallelism": 4})
    open_page(page, platform, "/ui/jobs/guarded/rescale")
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 Pending approval")
    expect(page.locator("#change-summary")).to_contain_text("Requested by ben at")
    assert faults_of_access(page) == []
    page.get_by_role("button", name="Approve…").click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("The change begins now.")
    question.get_by_role("button", name="Approve the change").click()
    expect(page.locator("#change-title")).to_have_text("Rescale 2 → 4 In progress")
    expect(page.get_by_role("button", name="Approve…")).to_have_count(0)
    [change] = platform.api.get("/v1/jobs/guarded/operations", kind="RESCALE")["operations"]
    assert (change["requested_by"], change["approved_by"]) == ("ben", "admin")


def test_a_rescale_is_asked_for_with_the_plan_of_the_number_that_was_chosen_last(
    page: Page, platform: Platform
) -> None:
    platform.beat()
    path = f"{platform.url}/v1/jobs/{journey.RUNNING}"
    late: list[Route] = []
    outages = [6]

    def answer(route: Route) -> None:
        if route.request.method != "PATCH":
            route.continue_()
        elif (wanted := route.request.post_data_json["spec"]["parallelism"]) == 3:
            late.append(route)
        elif wanted in outages:
            outages.remove(wanted)
            route.abort()
        else:
            route.fulfill(json={"plan": plan_to(wanted)})

    page.route(path, answer)
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/rescale")
    field = page.get_by_label("Parallelism", exact=True)
    with page.expect_request(lambda request: request.method == "PATCH"):
        field.fill("3")
    field.fill("4")
    figures = page.locator("#plan-figures")
    expect(figures).to_contain_text("Expected downtime4 s")
    expect(figures).to_contain_text("Bytes to move2 KiBof 4 KiB in filesFiles to open12Largest subtask125 %")
    parts = page.locator("#plan-subtasks tbody tr")  # closed at first
    expect(parts.nth(0)).to_have_text(f"00{NONE}9up to 2 KiB0 B30, 1")
    expect(parts.nth(3)).to_have_text(f"396{NONE}127512 B3 KiB30, 1")
    with page.expect_event("requestfinished", lambda request: request == late[0].request):
        late[0].fulfill(json={"plan": plan_to(3)})
    page.get_by_role("button", name="Rescale to 4").click()
    question = page.get_by_role("dialog", name=f"Rescale {journey.RUNNING} from 2 to 4?")
    expect(question).to_contain_text("The job pauses for about 4 s and continues with all its state")
    expect(figures).to_contain_text("Expected downtime4 s")
    refusal = {"detail": "another change of the job has begun", "advice": "Wait for its end."}
    page.route(f"{path}/rescale", lambda route: route.fulfill(status=409, json=refusal))
    with page.expect_request(f"{path}/rescale") as sent:
        question.get_by_role("button", name="Rescale to 4").click()
    assert sent.value.post_data_json == {"parallelism": 4}
    hint = page.locator("#parallelism-hint")
    expect(hint).to_have_text("another change of the job has begun. Wait for its end.")
    expect(field).to_have_value("4")
    expect(page.locator("#ranges span").nth(1)).to_have_attribute("title", f"subtask 1: key groups 10{NONE}63")
    field.fill("5")
    expect(hint).to_have_text("From 1 to 128; now 2.")
    expect(page).to_have_url(re.compile(r"\?to=5$"))
    with page.expect_event("requestfailed", lambda request: request.method == "PATCH"):
        field.fill("6")
    expect(figures).to_contain_text("Expected downtime6 s")  # the page asks again after an outage
    page.unroute_all(behavior="wait")


def plan_to(parallelism: int) -> dict[str, Any]:
    """Returns a plan that expects a second of downtime per subtask, and divides the key groups by size."""
    bounds = [*[0, 10, 64, 96, 100, 110][:parallelism], 128]
    parts = [
        SubtaskMovementAnswer(
            index=index,
            key_group_start=start,
            key_group_end=end - 1,
            state_bytes=2048,
            files=3,
            from_subtasks=[1, 0],
            moved_bytes=1024 * index,
            clipped_shards=0,
            expected_bytes=512 if index else None,
        )
        for index, (start, end) in enumerate(pairwise(bounds))
    ]
    movement = OperatorMovement(uid="totals", state_bytes=4096, moved_bytes=2048, subtasks=parts, skew_ratio=1.25)
    return PlanAnswer(
        job_id="j",
        compatible=True,
        requires_allow_non_restored_state=False,
        program_loaded=False,
        failure=None,
        from_parallelism=2,
        to_parallelism=parallelism,
        max_parallelism=128,
        hash_id="h",
        operators=[],
        sources=[],
        sinks=[],
        settings=[],
        movement=MovementPlan(
            checkpoint_location=None, same_host=False, state_bytes=4096, moved_bytes=2048, operators=[movement]
        ),
        downtime=DowntimePlan(expected_ms=1000 * parallelism, reason=None, samples_ms=[1000 * parallelism]),
    ).model_dump(mode="json")

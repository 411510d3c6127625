"""The page of revisions: a change and its plan, and the way back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from keyscale.api.operations.schemas.change_plan import (
    DowntimePlan,
    EndpointPlan,
    MovementPlan,
    OperatorPlan,
    PlanAnswer,
    StatePlan,
)
from keyscale.db.models import Operation
from keyscale.jobs.protocol.declared_settings import declared_settings
from keyscale.jobs.protocol.specification import ChangeClass
from keyscale.vocabulary import ChangePhase, Fate, OperationKind, OperationStatus, UpgradeMode
from tests.pages.opening import NONE, open_page
from tests.support.control_plane.driverless_platform import SCRIPT
from tests.support.recordings import journey
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_job_is_changed_by_a_plan_and_taken_back_on_the_page(page: Page, platform: Platform) -> None:
    platform.create_job("revised")
    open_page(page, platform, "/ui/jobs/revised/revisions")
    page.get_by_role("button", name="Change the job…").click()
    expect(page).to_have_url(re.compile(r"\?edit=yes$"))
    form = page.get_by_role("region", name="Change the job")
    form.get_by_role("button", name="Show the plan").click()
    expect(form.get_by_role("alert")).to_have_text("The change has no effect on the job.")
    form.get_by_label("Parallelism", exact=True).fill("3")
    expect(form.get_by_role("alert")).to_have_text("")
    form.get_by_text("More settings").click()
    form.get_by_label("Checkpoints: interval (ms)").fill("2500")
    form.get_by_label("Why").fill("more of it")
    form.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("This change can be made.")
    settings = plan.get_by_role("group", name="Settings that change").get_by_role("row")
    expect(settings).to_contain_text(["Setting", "parallelism", "checkpoints.interval_ms10 s2.5 s"])
    form.get_by_role("button", name="Change…").click()
    page.get_by_role("dialog").get_by_role("button", name="Change the job").click()

    history = page.get_by_role("region", name="Revisions").get_by_role("row")
    expect(history).to_have_count(3)
    expect(history.nth(1)).to_contain_text("more of it")
    expect(form).to_be_hidden()
    differing = page.locator("#differences tr").filter(has=page.locator(".added"))
    expect(differing).to_contain_text(["parallelism", "checkpoints.interval_ms"])
    expect(differing.first.get_by_role("cell")).to_have_text(["2", "3"])
    page.get_by_label("differences only").check()
    expect(page.locator("#differences tr")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"[?&]only=yes"))
    job = platform.api.get("/v1/jobs/revised")
    assert (job["spec"]["parallelism"], job["spec"]["checkpoints"]["interval_ms"]) == (3, 2500)

    history.nth(2).get_by_role("button", name="Go to revision 1…").click()
    question = page.get_by_role("dialog")
    question.get_by_label("Current state").check()
    with page.expect_request("**/revised/rollback") as sent:
        question.get_by_role("button", name="Roll back to revision 1").click()
    assert sent.value.post_data_json == {"revision": 1, "state": "CURRENT"}
    expect(history.nth(2)).to_contain_text("now")
    assert platform.api.get("/v1/jobs/revised")["spec"]["parallelism"] == 2
    platform.api.delete("/v1/jobs/revised")


def test_a_revision_in_use_is_not_called_cancelled_and_is_compared_with_the_one_before_it(
    page: Page, platform: Platform
) -> None:
    platform.create_job("third")
    api = platform.api
    for number in (2, 3):
        api.patch("/v1/jobs/third", {"spec": {"parallelism": number + 1}}, if_match=str(number - 1))
    with platform.sessions.begin() as session:
        session.add(
            Operation(
                id="not-third", job_id=platform.jobs["third"], kind=OperationKind.UPGRADE,
                status=OperationStatus.CANCELLED,
                phase=ChangePhase.REQUESTED, phases=[], from_revision=1, to_revision=3, from_parallelism=2,
                to_parallelism=4, upgrade_mode=UpgradeMode.SAVEPOINT, old_attempt=1, requested_at_ms=2**42,
                ended_at_ms=2**42 + 1,
            )
        )  # fmt: skip
    page.route("**/diff?*", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/third/revisions")
    page.unroute("**/diff?*")  # after an outage the page compares by itself
    outcomes = page.get_by_role("table", name="Revisions, newest first").locator("tbody tr td:nth-of-type(5)")
    expect(outcomes).to_have_text([NONE, "Completed", NONE])
    expect(page.locator("#differences tr").first.get_by_role("cell")).to_have_text(["2", "4"])
    api.post("/v1/jobs/third/rollback", {"revision": 2, "state": "CURRENT"})
    expect(outcomes).to_have_text(["Cancelled", "Completed", NONE])
    api.delete("/v1/jobs/third")


def test_no_plan_is_made_before_the_chosen_file_is_uploaded(page: Page, platform: Platform) -> None:
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    page.route("**/artifacts", hold)
    open_page(page, platform, "/ui/jobs/departures/revisions?edit=yes")
    make_plan = page.get_by_role("button", name="Show the plan")
    program = {"name": "departures-2.py", "mimeType": "text/x-python", "buffer": SCRIPT + b"# 2\n"}
    page.get_by_label("or upload another program:").set_input_files(program)
    expect(make_plan).to_be_disabled()
    expect(make_plan).to_have_attribute("title", "The file is being uploaded.")
    wait_until(lambda: page.title() and waiting, what="the upload")  # asking the page lets its events come in
    for route in waiting:
        route.continue_()
    expect(make_plan).to_be_enabled()
    expect(page.get_by_label("Program", exact=True).locator("option:checked")).to_have_text("departures-2, version 1")
    page.unroute_all(behavior="wait")


def test_a_specification_is_readable_in_a_narrow_window(page: Page, platform: Platform) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_page(page, platform, "/ui/jobs/departures/revisions")
    expect(page.get_by_role("row", name="checkpoints.tolerable_failed_checkpoints 10", exact=True)).to_be_visible()
    assert page.locator("#difference-scroll").evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_an_upgrade_is_planned_with_its_state_before_it_is_asked_for(page: Page, platform: Platform) -> None:
    job = platform.api.get(f"/v1/jobs/{journey.RUNNING}")
    plan = PlanAnswer(
        job_id=job["id"],
        compatible=True,
        requires_allow_non_restored_state=True,
        program_loaded=True,
        failure=None,
        from_parallelism=2,
        to_parallelism=2,
        max_parallelism=128,
        hash_id=job["spec"]["hash_id"],
        operators=[
            OperatorPlan(
                uid="views-by-page",
                fate=Fate.KEPT,
                states=[StatePlan(name="seen", kind="value", fate=Fate.KEPT, stored="int64", declared="int64")],
            ),
            OperatorPlan(uid="old-views", fate=Fate.DROPPED),
        ],
        sources=[],
        sinks=[EndpointPlan(uid="files", fate=Fate.KEPT)],
        settings=[],
        movement=MovementPlan(checkpoint_location=None, same_host=True, state_bytes=0, moved_bytes=0, operators=[]),
        downtime=DowntimePlan(expected_ms=2500, reason=None, samples_ms=[2500]),
    )
    done = platform.api.get(f"/v1/jobs/{journey.RUNNING}/operations?kind=UPGRADE")["operations"][0]
    begun = {**done, "status": "IN_PROGRESS"}

    planned = {**done, "id": None, "status": None, "plan": plan.model_dump(mode="json")}
    held: list[Route] = []
    newer: dict[str, Any] = {}

    def act(route: Route) -> None:
        if route.request.method == "PATCH" and route.request.post_data_json.get("dry_run"):
            held.append(route)
        elif route.request.method == "PATCH":
            route.fulfill(status=202, json=begun)
        elif newer:
            route.fulfill(json={**job, **newer})
        else:
            route.continue_()

    page.route(f"**/jobs/{journey.RUNNING}", act)
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/revisions?edit=yes")
    form = page.get_by_role("region", name="Change the job")
    program = {"name": "page-views.py", "mimeType": "text/x-python", "buffer": SCRIPT + b"# 3\n"}
    form.get_by_label("or upload another program").set_input_files(program)
    expect(page).to_have_url(re.compile("program="))
    make_plan = form.get_by_role("button", name="Show the plan")
    shown = page.get_by_role("region", name="Plan")
    make_plan.click()
    wait_until(lambda: page.title() and held, what="the plan")  # asking the page lets its events come in
    form.get_by_label("Why").fill("a third version")
    held[0].fulfill(json=planned)
    expect(make_plan).to_be_enabled()
    expect(shown).to_be_hidden()  # the form has changed since
    make_plan.click()
    wait_until(lambda: page.title() and len(held) == 2, what="the second plan")
    newer.update(name="of another user", revision=job["revision"] + 1)  # the change must not overwrite this one
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("heading", level=1)).to_have_text("of another user")
    held[1].fulfill(json=planned)
    expect(shown).to_contain_text("State would be lost: the new program has no old-views.")
    expect(shown.get_by_role("row").filter(has_text="views-by-page / seen")).to_contain_text("KEPT")
    form.get_by_label("Without state").check()
    form.get_by_label("Drop the state of old-views").check()
    form.get_by_role("button", name="Upgrade…").click()
    expect(page.get_by_role("dialog")).to_contain_text("The job pauses for about 2.5 s.")
    expect(page.get_by_role("dialog")).to_contain_text("The state of old-views is dropped.")
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        page.get_by_role("dialog").get_by_role("button", name="Upgrade the job").click()
    assert sent.value.headers["if-match"] == f'"{job["revision"]}"'
    asked = sent.value.post_data_json
    assert (asked["message"], asked["upgrade_mode"], asked["allow_non_restored_state"]) == (
        "a third version",
        "STATELESS",
        True,
    )
    expect(page.locator("#message")).to_contain_text("the change has begun.")
    page.unroute_all(behavior="wait")


def test_the_revisions_of_a_job_have_their_reasons_and_their_ends(page: Page, platform: Platform) -> None:
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/revisions")
    expect(page.locator("#change-title")).to_have_text("Upgrade from revision 2 to 3 Completed")
    newest = page.get_by_role("region", name="Revisions").get_by_role("row").nth(1)
    expect(newest).to_contain_text("rows say their version")
    expect(newest).to_contain_text("now")
    expect(newest).to_contain_text("Completed")
    program = page.get_by_role("region", name="Specification").get_by_role("row").nth(1)
    expect(program).to_contain_text(f"{journey.RUNNING}, version 2")


def titled(name: str) -> str:
    words = [{"id": "ID", "conf": "configuration"}.get(word, word) for word in name.split("_")]
    return " ".join([words[0].capitalize(), *words[1:]])


def test_every_setting_that_is_declared_is_shown_and_can_be_changed_on_the_pages(
    page: Page, platform: Platform
) -> None:
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/configuration")
    shown = {each.removesuffix(" (ms)") for each in page.locator("dt, h2").all_inner_texts()}
    declared = [each for each in declared_settings() if not each.of_types and ".*." not in each.path]
    labels = [each.path.removesuffix(".*").rpartition(".")[2].removesuffix("_ms") for each in declared]
    assert {titled(each) for each in labels} <= shown
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/revisions?edit=yes")
    page.get_by_text("More settings").click()
    fields = page.locator("#edit [data-setting]").evaluate_all("found => found.map((one) => one.dataset.setting)")
    fixed = {each.path for each in declared if each.change_class is ChangeClass.FIXED}
    expected = {each.path.removesuffix(".*") for each in declared_settings() if ".*." not in each.path}
    assert set(fields) == expected - fixed - {"artifact_id"}

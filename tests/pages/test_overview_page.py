"""The overview of a job: its faults, its graph, and its charts."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from keyscale.api.dashboard.router import CHART_LIBRARY
from keyscale.api.metrics import series, user_metrics
from keyscale.clock import now_ms
from keyscale.db.models import ScalingDecision
from keyscale.db.repositories import scaling
from keyscale.db.repositories import series as series_points
from tests.pages.opening import NONE, open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_rates_are_drawn_over_time_values_that_hold_are_joined_across_gaps_and_a_lone_point_is_seen(
    page: Page, platform: Platform
) -> None:
    platform.create_job("sparse")
    user_key = user_metrics.key_of({"operator": "shop", "name": "age", "kind": "gauge", "labels": {"currency": "EUR"}})
    with platform.sessions.begin() as session:
        for steps_ago, values in (
            (20, {"state_size": 4096}),
            (9, {}),
            (4, {"state_size": 8192, "lag_records": 7}),
            (1, {"processed_rate": 800.0}),
            (0, {"processed_rate": 930.0}),
        ):
            at_ms = now_ms() - steps_ago * series.SAMPLE_MS
            user = {"user_metrics": {user_key: [steps_ago / 8]}} if steps_ago < 9 else {}
            series_points.store(session, platform.jobs["sparse"], at_ms, {"busy_ratio": 0.5, **values, **user})
    open_page(page, platform, "/ui/jobs/sparse/overview")
    of_function = page.get_by_role("figure").filter(has_text="shop: age")
    expect(of_function.get_by_role("img", name="EUR: from 0 to 0.5, last 0")).to_be_visible()
    state = page.get_by_role("figure").filter(has_text="State")
    expect(state.locator("figcaption")).to_have_text("State8 KiB")
    expect(state.locator(".ytick text").last).to_have_text(re.compile(r"^\d+ KiB$"))
    expect(state.locator(".lines path")).to_have_attribute("d", re.compile(r"^M[^M]+[LHV][^M]+$"))
    waiting = page.get_by_role("figure").filter(has_text="Records waiting")
    point = waiting.locator(".points path").last.bounding_box()
    assert point is not None
    assert point["width"] > 3
    rate = page.get_by_role("figure").filter(has_text="Records it could process")
    expect(rate.get_by_role("img", name="Could process: from 800/s to 930/s, last 930/s")).to_be_visible()
    expect(rate.locator("figcaption")).to_have_text("Records it could process")  # the job does not run
    expect(page.get_by_role("region", name="Autoscaler")).to_be_hidden()  # it is disabled
    platform.api.delete("/v1/jobs/sparse")


def test_a_chart_says_the_values_of_now_and_one_late_report_is_no_gap(page: Page, platform: Platform) -> None:
    platform.create_job("late")
    now_at_ms = now_ms()
    with platform.sessions.begin() as session:
        for steps_ago in (6, 5, 3, 2):
            at_ms = now_at_ms - steps_ago * series.SAMPLE_MS
            series_points.store(session, platform.jobs["late"], at_ms, {"lag_records": 7, "state_size": 4096})

    def run(route: Route) -> None:
        answer = route.fetch()
        figures = {"input_rate": 5.0, "lag_records": 9, "state_size": 9216}
        checkpoint = {"id": 7, "completed_at_ms": now_at_ms, "end_to_end_duration": 1500, "checkpointed_size": 2048}
        status = {"latest_checkpoint": checkpoint, "running_since_ms": now_at_ms - 3_600_000, "restarts": 1}
        job = answer.json()
        route.fulfill(
            response=answer, json=job | {"metrics": job["metrics"] | figures, "status": job["status"] | status}
        )

    def annotate(route: Route) -> None:
        answer = route.fetch()
        restarts = [{"at_ms": now_at_ms - 9000 + n, "kind": "RESTART", "text": f"restart {n}"} for n in range(9)]
        route.fulfill(response=answer, json=answer.json() | {"annotations": restarts})

    page.route("**/jobs/late", run)
    page.route("**/jobs/late/series?*", annotate)
    page.route("**/jobs/late/stream", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/late/overview")
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text("#7 took 1.5 s, wrote 2 KiB")
    expect(now).to_contain_text("Records waiting9in the sources, and in no committed batch")
    expect(now).to_contain_text(re.compile("Running for1 h.*since its last start or change; 1 restartP"))
    waiting = page.get_by_role("figure").filter(has_text="Records waiting")
    expect(waiting.locator("figcaption")).to_have_text("Records waiting9")
    expect(page.get_by_role("figure").filter(has_text="State").locator("figcaption")).to_have_text("State9 KiB")
    expect(waiting.locator(".lines path")).to_have_attribute("d", re.compile(r"^M[^M]+L[^M]+$"))
    listed = page.get_by_role("list", name="Events, newest first").get_by_role("listitem")
    expect(listed).to_have_text([re.compile(rf"ago Restart {n}$") for n in range(8, 0, -1)])
    expect(listed.first).to_have_attribute("data-tone", "busy")
    page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/late")


def test_charts_keep_their_order_and_none_stays_of_another_span(page: Page, platform: Platform) -> None:
    platform.create_job("mixed")
    days_ago_ms = now_ms() - 3 * 24 * 3_600_000
    with platform.sessions.begin() as session:
        for at_ms, values in (
            (days_ago_ms, {"lag_records": 7, "state_size": 1024}),
            (now_ms(), {"state_size": 4096, "processed_rate": 5.0}),
        ):
            series_points.store(session, platform.jobs["mixed"], at_ms, values)
    page.route(f"**/{CHART_LIBRARY}", lambda route: route.abort())
    with page.expect_event("requestfailed", lambda request: request.url.endswith(CHART_LIBRARY)):
        open_page(page, platform, "/ui/jobs/mixed/overview")
    page.unroute(f"**/{CHART_LIBRARY}")
    expect(page.locator("#charts .lines path").first).to_be_attached()  # the library is fetched again
    titles = page.locator("#charts figure figcaption strong").filter(visible=True)
    expect(titles).to_have_text(["Records it could process", "State"])
    page.evaluate("const at = Date.now(); Date.now = () => at;")  # the series of one span are read again after a time
    with page.expect_request("**/series?*") as read:
        page.get_by_role("button", name="7 days").click()
    asked = {name: int(value) for name, (value,) in parse_qs(urlsplit(read.value.url).query).items()}
    assert asked["to_ms"] - asked["from_ms"] == 7 * 24 * 3_600_000
    expect(titles).to_have_text(["Records it could process", "Records waiting", "State"])
    page.get_by_role("button", name="15 min").click()
    expect(titles).to_have_text(["Records it could process", "State"])
    platform.api.delete("/v1/jobs/mixed")


def test_the_graph_shows_a_rate_only_where_it_is_known_and_says_what_is_of_now(page: Page, platform: Platform) -> None:
    graph = [
        {"uid": "views", "kind": "SOURCE", "inputs": []},
        {"uid": "counts", "kind": "OPERATOR", "inputs": ["views"]},
        {"uid": "windows", "kind": "OPERATOR", "inputs": ["views"]},
        {"uid": "count-files", "kind": "SINK", "inputs": ["counts"]},
        {"uid": "dead-files", "kind": "SINK", "inputs": ["counts"]},
        {"uid": "window-files", "kind": "SINK", "inputs": ["windows"]},
    ]
    subtask = {"index": 0, "read_records": 200, "write_records": 198, "busy_ratio": 0.4, "processor_ms": 1500}
    subtask |= {"largest_key_group": 0, "largest_key_group_records": 50, "state_bytes": 2048}
    subtask |= {"input_ms": 20, "output_ms": 300, "store_ms": 4}
    operators = [
        {
            "uid": uid,
            "read_records_per_second": 200,
            "write_records_per_second": 180,
            "event_time_lag_ms": 84_000,
            "subtasks": [subtask],
        }
        for uid in ("counts", "windows")
    ]
    platform.create_job("fanned")
    platform.note_metrics("fanned", [{"batches": 3, "graph": graph, "operators": operators, "input_records": 1000}])
    shown: dict[str, Any] = {"input_rate": 200.0, "metrics": {}}

    def run(route: Route) -> None:
        answer = route.fetch()
        job = answer.json()
        job["status"]["attempt"]["last_commit_at_ms"] = now_ms()
        job["status"]["attempt"]["metrics"] |= shown["metrics"]
        job["metrics"]["input_rate"] = shown["input_rate"]
        route.fulfill(response=answer, json=job)

    page.route("**/jobs/fanned", run)
    page.route("**/jobs/fanned/stream", lambda route: route.abort())
    open_page(page, platform, "/ui/jobs/fanned/overview")
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text(f"Records waiting{NONE}a source cannot count them, as sources of files cannot")
    nodes = page.get_by_role("group", name="Graph of the operators").get_by_role("listitem")
    expect(nodes.filter(has_text="windows").first).to_contain_text("In, out200/s, 180/sLag1 min 24 s")
    for sink in ("count-files", "dead-files"):
        expect(nodes.filter(has_text=sink)).to_contain_text(f"Arriving{NONE}Systemanswers")
    expect(nodes.filter(has_text="window-files")).to_contain_text("Arriving180/s")
    expect(page.locator(".graph-edges text")).to_have_text(["200/s", "200/s", "", "", "180/s"])
    cells = page.locator("#operators tr").first.get_by_role("cell")
    times = ["1.5 s", "20 ms", "300 ms", "4 ms"]
    expect(cells).to_have_text(["0", "200", "198", "50 (25 %)", "40 %", *times, "2 KiB"])
    for node in nodes.all():  # what is in a box stays in it, one below the other
        name, *rest = node.locator("> *").all()
        edges = [each.bounding_box() for each in (name, *rest, node)]
        tops = [(box["y"], box["y"] + box["height"]) for box in edges if box is not None]
        assert all(upper[1] <= lower[0] + 1 for upper, lower in pairwise(tops[:-1]))
        assert tops[-1][0] < tops[0][0] < tops[-2][1] < tops[-1][1]

    shown["metrics"] = {"sink_outage": {"uid": "count-files"}}
    expect(nodes.filter(has_text="count-files")).to_contain_text("Systemaway")
    expect(nodes.filter(has_text="dead-files")).to_contain_text("Systemanswers")
    shown["metrics"] = {"graph": [], "operators": []}
    expect(nodes.filter(has_text="windows").first).to_contain_text("no batch yet")
    shown |= {"input_rate": None, "metrics": {}}
    expect(nodes.filter(has_text="window-files")).to_contain_text(f"Arriving{NONE}System{NONE}")
    expect(nodes.filter(has_text="windows").first).to_contain_text(f"Busiest subtask{NONE}")
    page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/fanned")


def test_each_recent_batch_has_a_bar_whose_parts_add_up_to_its_time(page: Page, platform: Platform) -> None:
    platform.create_job("timed")
    batches = [
        {"batch_id": 7, "at_ms": now_ms(), "input_records": 900, "wait_ms": 100, "spark_ms": 300, "function_ms": 1600},
        {"batch_id": 8, "at_ms": now_ms(), "input_records": 20, "spark_ms": 250, "publish_ms": 250},
    ]
    platform.note_metrics("timed", [{"batches": 2, "recent_batches": batches}])
    open_page(page, platform, "/ui/jobs/timed/overview")
    rows = page.locator("#batches tr")
    expect(rows).to_contain_text([re.compile(r"8.*20500 ms"), re.compile(r"7.*9002 s")])
    bars = page.get_by_role("img", name=re.compile("Spark"))
    expect(bars.nth(1)).to_have_attribute("aria-label", "Waiting for input 100 ms, Spark 300 ms, Function 1.6 s")
    newest, oldest = (bars.nth(at).bounding_box() for at in range(2))
    assert newest is not None
    assert oldest is not None
    assert newest["width"] == pytest.approx(oldest["width"] / 4, abs=1)
    widths = [box["width"] for part in bars.nth(1).locator("span").all() if (box := part.bounding_box()) is not None]
    assert widths == pytest.approx([oldest["width"] * share for share in (0.05, 0.15, 0.8)], abs=1)
    platform.api.delete("/v1/jobs/timed")


def test_faults_of_a_running_job_are_shown_on_top(page: Page, platform: Platform) -> None:
    item = {
        "code": "STATE_RETENTION_BLOCKED",
        "message": "old checkpoints are not deleted: <b>chk-2</b> cannot be read",
        "since_ms": 1_795_000_000_000,
        "advice": "Repair the manifest.",
    }

    def add_item(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=with_health(answer.json(), [item]))

    page.route("**/jobs/departures/stream", lambda route: route.abort())  # it asks again and again, and sees the item
    page.goto(f"{platform.url}/ui/jobs/departures")
    health = page.get_by_label("Faults")
    expect(page.get_by_role("heading", level=1)).to_have_text("departures")
    expect(health).to_be_hidden()
    page.route("**/jobs/departures", add_item)
    expect(health).to_contain_text("old checkpoints are not deleted: <b>chk-2</b> cannot be read")
    expect(page.locator("#health-score")).to_have_text("Health 80")
    expect(health).to_contain_text("STATE_RETENTION_BLOCKED")
    expect(health).to_contain_text("Repair the manifest.")
    page.unroute("**/jobs/departures")
    expect(health).to_be_hidden()


def test_late_records_and_dead_letters_are_shown_as_numbers_in_the_graph_and_over_time(
    page: Page, platform: Platform
) -> None:
    platform.create_job("refused")
    graph = [
        {"uid": "clicks", "kind": "SOURCE"},
        {"uid": "checked", "kind": "OPERATOR", "inputs": ["clicks"]},
        {"uid": "table", "kind": "SINK", "inputs": ["checked"]},
        {"uid": "files", "kind": "SINK", "inputs": ["checked"]},
    ]
    platform.note_metrics(
        "refused",
        [
            {
                "batches": batches,
                "graph": graph,
                "operators": [{"uid": "checked", "late_records": 1100 * batches, "dead_letters": 7 * batches}],
                "sinks": [{"uid": "table", "dead_letters": 600 * batches}],
            }
            for batches in (1, 2)
        ],
    )
    open_page(page, platform, "/ui/jobs/refused")
    now = page.get_by_role("region", name="Now")
    for name, value in (("Late", "2,300"), ("Dead letters", "1,214"), ("Lost by sources", "0")):
        term = now.locator("dl > div").filter(has=page.get_by_text(name, exact=True))
        expect(term.get_by_role("definition").first).to_have_text(value)
    nodes = page.get_by_role("group", name="Graph of the operators").get_by_role("listitem")
    expect(nodes.filter(has_text="checked")).to_contain_text("since the driver startedLate2,200Dead letters14")
    expect(nodes.filter(has_text="table")).to_contain_text(
        f"System{NONE}Per batch{NONE}since the driver startedDead letters1,200"
    )
    expect(nodes.filter(has_text="files")).not_to_contain_text("Dead letters")
    chart = page.get_by_role("figure").filter(has_text="Late, dead-letter and lost records")
    expect(chart).to_contain_text("late 2,300, dead letters 1,214, lost by sources 0")
    expect(chart.get_by_role("img", name="Dead letters: from 607 to 1,214, last 1,214")).to_be_visible()
    legend = chart.locator(".legendtext")  # drawn once the library of the charts is there
    expect(legend).to_have_text(["Late", "Dead letters", "Lost by sources"])
    assert faults_of_access(page) == []
    platform.api.delete("/v1/jobs/refused")


def test_drivers_whose_clocks_are_wrong_by_any_number_leave_the_page_whole(page: Page, platform: Platform) -> None:
    platform.create_job("skewed")
    fault = {"code": "STORE_UNAVAILABLE", "message": "it is away", "advice": None}
    faults = [fault | {"since_ms": at_ms} for at_ms in (2**53 - 1, -(2**53), 10**20)]

    def skew(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=with_health(answer.json(), faults))

    page.route("**/jobs/skewed", skew)
    open_page(page, platform, "/ui/jobs/skewed/overview")
    expect(page.get_by_role("region", name="Now")).to_be_visible()
    expect(page.locator("#health")).to_have_text(f"Since {NONE}: it is away STORE_UNAVAILABLE" * len(faults))
    page.unroute_all(behavior="wait")
    platform.api.delete("/v1/jobs/skewed")


def test_a_job_that_does_not_exist_is_reported(page: Page, platform: Platform) -> None:
    page.goto(f"{platform.url}/ui/jobs/nobody")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job not found")


def test_a_job_at_work_has_its_labels_figures_graph_and_charts(page: Page, platform: Platform) -> None:
    platform.beat()
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/overview")
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.get_by_role("list", name="Labels").get_by_role("listitem")).to_have_text(["team: web", "stage: live"])
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text(re.compile(r"Input[\d,.]+/scould process [\d,.]+/s"))
    expect(now).to_contain_text(re.compile(r"Running for\d"))
    nodes = page.get_by_role("group", name="Graph of the operators").get_by_role("listitem")
    expect(nodes).to_have_count(3)
    expect(nodes.nth(1)).to_contain_text(re.compile(r"Busiest subtask\d+ %"))
    expect(page.locator("#operators tr")).to_have_count(2)
    expect(page.locator("#charts figure .xtick").first).to_be_attached()


def with_health(job: dict[str, Any], faults: list[dict[str, Any]]) -> dict[str, Any]:
    return {**job, "status": {**job["status"], "health": {"level": "DEGRADED", "score": 80, "reasons": faults}}}


def test_the_autoscaler_tells_its_verdict_the_evidence_and_its_last_move(page: Page, platform: Platform) -> None:
    platform.create_job("scaled")
    batch = dict.fromkeys(("records", "spark_ms", "log_ms", "work_ms", "store_ms", "sink_ms"), 1.0)
    facts = {"input_records_per_second": 45_000, "peak_records_per_second": 50_000, "lag_records": 9, "batch": batch}
    facts |= {"batch_limit": None, "splits": None, "processor_wait_ratio": 0.0, "affordable_parallelism": None}
    facts |= {"parallelism_min": 1, "parallelism_max": 8}
    before, after = ({"capacity": each, "utilization": 0.91, "work_ms": 1.0} for each in (30_000.0, 58_000.0))
    rows: list[dict[str, Any]] = [
        {
            "verdict": "SCALE_UP",
            "parallelism": 2,
            "target": 4,
            "message": "2 to 4: the input takes 150%",
            "advice": None,
        },
        {
            "verdict": "SINK_SLOW",
            "parallelism": 4,
            "target": 4,
            "message": "the sinks dominate",
            "advice": "Add indexes.",
        },
    ]
    rows[0] |= {"present": before, "expected": after, "measured": after, "outcome": "DELIVERED", "operation_id": "up"}
    rows[1] |= {"present": before}
    with platform.sessions.begin() as session:
        for row in rows:
            decision = ScalingDecision(
                job_id=platform.jobs["scaled"], at_ms=1, confirmed_at_ms=now_ms(), facts=facts, **row
            )
            scaling.record(session, decision)
    platform.api.jobs.update("scaled", 1, spec={"autoscaler": {"mode": "ACTIVE"}})
    open_page(page, platform, "/ui/jobs/scaled/overview")
    card = page.get_by_role("region", name="Autoscaler")
    expect(card).to_contain_text("Sink slow: the sinks dominate. Add indexes.")
    expect(card.get_by_role("definition").nth(2)).to_contain_text("30,000/s")
    expect(card).to_contain_text(
        "(delivered): 2 to 4: the input takes 150%. Capacity before 30,000/s, expected 58,000/s"
    )
    assert faults_of_access(page) == []
    points = [{"at_ms": 1000 * at, "lag_records": 9.0 * at, "as_run": 8.0 * at, "replayed": 1.0 * at} for at in (1, 2)]
    peaks = {"measured_ms": 660_000.0, "as_run_ms": 600_000.0, "replayed_ms": 40_000.0}
    replayed = {"parallelism": 6, "capacity": 90.0, "peaks": peaks, "error": 0.12, "reason": None, "points": points}
    page.route("**/autoscaler/replay?parallelism=6&hours=168", lambda route: route.fulfill(json=replayed))
    card.get_by_label("Replay the last").select_option("7 days")
    card.get_by_label("at a parallelism of").fill("6")
    card.get_by_role("button", name="Replay").click()
    expect(card.get_by_role("status")).to_have_text(
        "With 6 subtasks, the input of at most 40 s would have waited; the input of 11 min waited. At the parallelism"
        " that the job had, the model misses the peak by 12 %."
    )
    expect(card.get_by_role("img").locator("polyline")).to_have_count(2)
    assert faults_of_access(page) == []
    card.get_by_label("Replay the last").select_option("day")
    card.get_by_role("button", name="Replay").click()
    expect(card.get_by_role("status")).to_contain_text("Nothing can be replayed: no batch with input shows how fast")
    platform.api.delete("/v1/jobs/scaled")

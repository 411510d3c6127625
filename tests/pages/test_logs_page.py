"""The page of logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.pages.opening import open_page
from tests.support.recordings import journey
from tests.support.servers.browser import faults_of_access

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page, Route

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


def test_a_log_is_searched_and_downloaded(page: Page, platform: Platform, tmp_path: Path) -> None:
    log = "".join(f"line {number} of the driver: é\n" for number in range(40_000)).encode()

    def show(route: Route) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        begin = int(asked.get("offset", max(0, len(log) - int(asked.get("tail_bytes", 0)))))
        begin = log.rfind(b"\n", 0, begin) + 1
        end = min(len(log), begin + int(asked.get("limit_bytes", len(log))))
        end = log.rfind(b"\n", 0, end) + 1
        answer: dict[str, Any] = {"attempt": 3, "text": log[begin:end].decode(), "offset": begin, "next_offset": end}
        if "search" in asked:
            found = [(each.start(), each[0].decode()) for each in re.finditer(rb".*line 39999.*", log)]
            answer |= {
                "text": "",
                "next_offset": len(log),
                "matches": [{"offset": at, "text": line} for at, line in found],
            }
        route.fulfill(json={**answer, "size_bytes": len(log), "truncated": False})

    page.route(f"{platform.url}/v1/jobs/departures/logs?*", show)
    open_page(page, platform, "/ui/jobs/departures/logs?search=39999")
    expect(page.get_by_role("list", name="Lines found").get_by_role("link")).to_have_text(
        ["line 39999 of the driver: é"]
    )
    there = f"/ui/jobs/departures/logs?search=39999&at={log.index(b'line 39999')}"
    expect(page.get_by_role("list", name="Lines found").get_by_role("link")).to_have_attribute("href", there)
    expect(page.locator("#log-hint")).to_have_text(re.compile(r"^1 line with “39999”\. From byte [\d,]+\.$"))
    shown = page.get_by_role("region", name="Log", exact=True)
    expect(shown).to_contain_text("line 39999 of the driver: é")
    from_end = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    assert shown.evaluate("log => log.scrollHeight > log.clientHeight")
    assert shown.evaluate(from_end) < 2
    hint = page.locator("#log-hint").inner_text()
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator("#log-hint")).not_to_have_text(hint)
    text = shown.evaluate("log => log.textContent")
    assert len(text) > 400_000  # two parts, without a gap or a line twice
    assert log.decode().endswith(text)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "departures-3.log"
    download.value.save_as(tmp_path / "saved.log")
    assert (tmp_path / "saved.log").read_bytes() == log
    page.get_by_label("Follow").uncheck()  # the page asks for nothing by itself
    page.unroute_all(behavior="wait")
    page.route(f"{platform.url}/v1/jobs/departures/logs?*", lambda route: route.abort())
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator("#message")).to_contain_text("The control plane does not answer.")


def test_the_log_of_the_driver_that_runs_the_job_is_chosen_and_marked(page: Page, platform: Platform) -> None:
    stages = [(6, "rescale", "ENDED"), (5, "recover", "ACTIVE"), (4, "start", "ENDED")]
    attempts = [{"number": number, "cause": cause, "stage": stage} for number, cause, stage in stages]
    answer: dict[str, Any] = {"attempt": 5, "text": "from 5\n", "offset": 0, "next_offset": 7, "size_bytes": 7}
    answer |= {"truncated": False, "matches": []}
    page.route(
        f"{platform.url}/v1/jobs/departures/attempts?*", lambda route: route.fulfill(json={"attempts": attempts})
    )
    page.route(f"{platform.url}/v1/jobs/departures/logs?*", lambda route: route.fulfill(json=answer))
    open_page(page, platform, "/ui/jobs/departures/logs")
    chosen = page.get_by_label("Attempt")
    expect(chosen.get_by_role("option")).to_have_text(["6: rescale", "5: recover, runs the job", "4: start"])
    expect(chosen).to_have_value("5")
    answer |= {"attempt": 6, "text": "from 6\n"}
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("region", name="Log", exact=True)).to_have_text("from 6\n")  # nothing of the other log
    expect(chosen).to_have_value("6")
    open_page(page, platform, "/ui/jobs/departures/logs?at=3&search=from")
    with page.expect_request(re.compile(r"/logs\?tail_bytes=\d+&attempt=4$")):  # a place belongs to one log
        chosen.select_option("4")
    expect(page).to_have_url(f"{platform.url}/ui/jobs/departures/logs?search=from&attempt=4")
    expect(chosen).to_have_value("4")
    page.unroute_all(behavior="wait")


STACKS = """run_partition (keyscale/jobs/runtime/executor/task.py);count (/artifact/visits.py);match (re.py) 6
run_partition (keyscale/jobs/runtime/executor/task.py);count (/artifact/visits.py) 2
await_task (keyscale/jobs/spark_internals/socket_exchange.py) 2
"""


def test_the_functions_of_a_running_job_are_drawn_as_a_flame_graph(page: Page, platform: Platform) -> None:
    platform.beat()
    diagnostic = {"id": "d1", "kind": "PROFILE", "requested_at_ms": 1, "requested_by": "ada", "failure": None}
    answers = [{**diagnostic, "status": "IN_PROGRESS", "parts": []}]
    answers.append({**diagnostic, "status": "COMPLETED", "parts": [{"name": "worker 7", "text": STACKS}]})
    asked: list[Any] = []

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if route.request.method == "POST":
            asked.append(route.request.post_data_json)
            route.fulfill(status=202, json=answers[0])
        elif path.endswith("/d1"):
            route.fulfill(json=answers[-1] if len(asked) > 1 else answers[0])
            asked.append("again")
        else:
            route.fulfill(json={"diagnostics": [answers[0]], "next": None})

    page.route(f"{platform.url}/v1/jobs/{journey.RUNNING}/diagnostics**", answer)
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/logs")
    page.get_by_label("What").select_option("PROFILE")
    expect(page.get_by_label("Operator")).to_be_hidden()
    page.get_by_label("Seconds").fill("3")
    page.get_by_role("button", name="Show now").click()
    graph = page.get_by_role("group", name="Flame graph").get_by_role("button")
    rows = ["All workers: 10 samples", "worker 7", "run_partition", "count", "match", "await_task"]
    expect(graph).to_have_text([re.compile(f"^{row}") for row in rows])
    assert asked[0] == {"kind": "PROFILE", "duration_ms": 3000}
    widths = [each.evaluate("frame => frame.style.width") for each in graph.all()]
    assert widths == ["100%", "100%", "80%", "80%", "60%", "20%"]
    assert [each.get_attribute("data-kind") for each in graph.all()][1:] == [
        "platform",
        "platform",
        "own",
        "own",
        "platform",
    ]
    graph.nth(3).click()
    expect(graph).to_have_text([re.compile(f"^{row}") for row in ("All workers", "count", "match")])
    graph.nth(0).click()
    expect(graph).to_have_count(len(rows))
    assert faults_of_access(page) == []


def test_the_stacks_of_a_job_and_the_reason_of_a_refusal_are_shown(page: Page, platform: Platform) -> None:
    platform.beat()
    diagnostic = {"id": "d1", "kind": "THREAD_DUMP", "status": "COMPLETED", "failure": None}
    shown = {**diagnostic, "parts": [{"name": name, "text": f"stacks of <b>{name}</b>"} for name in ("driver", "JVM")]}
    refusal = {"code": "JOB_STATUS_CONFLICT", "detail": "no driver runs the job at the moment", "advice": "Wait."}
    path = f"{platform.url}/v1/jobs/{journey.RUNNING}/diagnostics"
    page.route(f"{path}/d1", lambda route: route.fulfill(json=shown))
    page.route(path, lambda route: route.fulfill(json={**shown, "diagnostics": []}))
    open_page(page, platform, f"/ui/jobs/{journey.RUNNING}/logs")
    page.get_by_role("button", name="Show now").click()
    expect(page.locator("#diagnostic-parts pre")).to_have_text(["stacks of <b>driver</b>", "stacks of <b>JVM</b>"])
    page.get_by_label("What").select_option("SAMPLE")
    page.get_by_label("Show values").check()
    with page.expect_request(lambda request: request.method == "POST") as sent:
        page.get_by_role("button", name="Show now").click()
    sample = {"kind": "SAMPLE", "duration_ms": 10_000, "operator_uid": "views-by-page", "with_values": True}
    assert sent.value.post_data_json == sample
    page.unroute(path)
    page.route(path, lambda route: route.fulfill(status=409, json=refusal))
    page.get_by_role("button", name="Show now").click()
    expect(page.locator("#message")).to_contain_text("no driver runs the job at the moment")

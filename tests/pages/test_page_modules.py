"""The functions of the pages' modules, called in a browser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.errors import JobNotFoundError
from keyscale.clock import now_ms
from keyscale.state.keys.key_groups import key_group_range
from tests.pages.opening import NONE, open_page
from tests.support.servers.browser import new_page, sign_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.support.control_plane.driverless_platform import Platform

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def page(browser: Browser, platform: Platform) -> Iterator[Page]:
    """The page of a checkpoint: it has what each of the modules needs. Its viewer is in India."""
    with new_page(browser, timezone_id="Asia/Kolkata") as page:
        sign_in(page, platform.connection)
        open_page(page, platform, "/ui/jobs/departures/checkpoints/7")
        yield page


def test_the_preview_assigns_key_groups_exactly_as_the_runtime_does(page: Page) -> None:
    ask = "async ([most, p]) => (await import('/ui/static/key_group_ranges.js')).keyGroupRanges(most, p)"
    for most, parallelism in [(128, 1), (128, 2), (128, 3), (128, 127), (128, 128), (200, 7), (32768, 5000)]:
        ours = [key_group_range(most, parallelism, index) for index in range(parallelism)]
        assert page.evaluate(ask, [most, parallelism]) == [[one.start, one.end] for one in ours]


def test_a_rescale_is_shown_phase_by_phase(page: Page) -> None:
    ask = "async (rescale) => (await import('/ui/static/change_timeline.js')).phaseRows(rescale, 5000)"

    def phase(name: str, start: int, end: int | None) -> dict[str, Any]:
        took = None if end is None else end - start
        return {"phase": name, "started_at_ms": start, "ended_at_ms": end, "duration_ms": took}

    begun = [phase("REQUESTED", 1000, 4000), phase("SAVEPOINT", 4000, None)]
    rows = page.evaluate(ask, {"status": "IN_PROGRESS", "phases": begun})
    assert [(row["phase"], row["state"], row["ms"]) for row in rows] == [
        ("REQUESTED", "done", 3000),
        ("SAVEPOINT", "running", 1000),
        ("STOP", "waiting", None),
        ("RESTORE", "waiting", None),
        ("VERIFY", "waiting", None),
    ]
    back = [phase("REQUESTED", 0, 10), phase("SAVEPOINT", 10, 20), phase("ROLL_BACK", 20, 90)]
    rows = page.evaluate(ask, {"status": "ROLLED_BACK", "phases": back})
    assert [(row["phase"], row["state"]) for row in rows] == [
        ("REQUESTED", "done"),
        ("SAVEPOINT", "failed"),
        ("ROLL_BACK", "done"),
    ]
    for status, state in (("CANCELLED", "cancelled"), ("ROLLED_BACK", "failed")):
        given_up = {"status": status, "phases": back[:2]}
        rows = page.evaluate(ask, given_up)
        assert [(row["phase"], row["state"]) for row in rows] == [("REQUESTED", "done"), ("SAVEPOINT", state)]
    rows = page.evaluate(ask, {"status": "COMPLETED", "phases": [*back[:2], phase("VERIFY", 20, 30)]})
    assert {row["state"] for row in rows} == {"done"}


def test_subtasks_that_took_conspicuously_long_are_stragglers(page: Page) -> None:
    ask = "async (durations) => (await import('/ui/static/pages/checkpoint.js')).stragglersOf(durations)"
    assert page.evaluate(ask, [100, 110, 400, 90]) == [2]
    assert page.evaluate(ask, [100, 149, 100]) == []  # below 1.5 times the median
    assert page.evaluate(ask, [0] * 18 + [60, 70]) == [19]  # of many, only the slowest twentieth
    assert page.evaluate(ask, [500]) == []


def test_advice_for_other_clients_is_not_shown_on_a_page(page: Page) -> None:
    ask = "async (problem) => new (await import('/ui/static/api.js')).ApiError(problem).text"
    for advice, shown in (
        (JobNotFoundError.advice, "Use the id or the name of a job."),
        ("Over HTTP: POST /v1/jobs/{id}/start.", ""),
        ("Wait for it. Or run ./keyscale jobs stop.", "Wait for it."),
    ):
        text = page.evaluate(ask, {"detail": "there is no such job", "advice": advice})
        assert text == f"there is no such job{'.' if shown else ''} {shown}".strip()


def test_numbers_read_as_people_write_them(page: Page) -> None:
    ask = "async ([name, value]) => (await import('/ui/static/format.js'))[name](value)"
    assert [page.evaluate(ask, ["bytes", value]) for value in (None, 0, 1023, 1024, 1536, 1048575, 5 << 40)] == [
        NONE, "0 B", "1,023 B", "1 KiB", "1.5 KiB", "1 MiB", "5 TiB",
    ]  # fmt: skip
    assert [page.evaluate(ask, ["duration", value]) for value in (None, 0, 999, 1000, 59_999, 185_000, 7_800_000)] == [
        NONE, "0 ms", "999 ms", "1 s", "1 min", "3 min 5 s", "2 h 10 min",
    ]  # fmt: skip
    assert page.evaluate(ask, ["rate", 4.25]) == "4.3/s"
    assert page.evaluate(ask, ["rate", 18234.5]) == "18,235/s"
    assert [page.evaluate(ask, ["percent", value]) for value in (None, 0, 0.126)] == [NONE, "0 %", "13 %"]
    assert [page.evaluate(ask, ["duration", 86_400_000 * days]) for days in (0.5, 1, 4.125)] == [
        "12 h",
        "1 d",
        "4 d 3 h",
    ]
    assert [page.evaluate(ask, ["decimal", value]) for value in (0.02134, 12.3, 12_345.6)] == [
        "0.02134",
        "12.3",
        "12,346",
    ]
    ago = "async (ms) => (await import('/ui/static/format.js')).ago(Date.UTC(2026, 0) - ms, Date.UTC(2026, 0))"
    assert [page.evaluate(ago, ms) for ms in (-5, 999, 1999, 60_000)] == [
        "just now",
        "just now",
        "1 s ago",
        "1 min ago",
    ]


def test_a_time_has_its_date_in_the_viewers_zone_and_its_utc_on_hover(page: Page) -> None:
    ask = "async (at) => (await import('/ui/static/dom.js')).when(at).outerHTML"
    at_ms = now_ms() - 1000  # today, too
    shown = datetime.fromtimestamp(at_ms / 1000, timezone(timedelta(hours=5, minutes=30)))
    utc = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{at_ms % 1000:03d} UTC"
    found = page.evaluate(ask, at_ms)
    assert found.endswith(f'title="{utc}">{shown:%Y-%m-%d %H:%M:%S}</time>')


def test_a_button_that_is_made_while_the_control_plane_is_away_is_refused(page: Page) -> None:
    make = """async (isAway) => {
      const { actionButton, setAway } = await import('/ui/static/dom.js');
      setAway(isAway);
      return actionButton('Cancel it', () => {}).disabled;
    }"""
    assert page.evaluate(make, True)
    assert not page.evaluate(make, False)


def test_a_form_sends_only_what_it_changes(page: Page) -> None:
    ask = """async ([settings, spec, texts]) =>
      (await import('/ui/static/settings.js')).changeOf(settings, spec, ({ path }) => texts[path] ?? '')"""
    types = {"parallelism": "integer", "why": "string", "libraries": "array", "checkpoints.interval_ms": "integer"}
    types |= {"checkpoints.retained": "integer", "parameters": "object", "restart.type": "string"}
    settings = [{"path": path, "type": kind, "of_types": []} for path, kind in types.items()]
    settings.append({"path": "restart.attempts", "type": "integer", "of_types": ["fixed"]})
    spec = {"parallelism": 2, "why": "new", "libraries": ["a"], "checkpoints": {"interval_ms": 10, "retained": 0}}
    spec |= {"parameters": {"in": "/a", "masked": "***", "old": "1"}, "restart": {"type": "fixed", "attempts": 3}}
    same = {"parallelism": "2", "why": "new", "libraries": "a", "checkpoints.interval_ms": "10"}
    same |= {"checkpoints.retained": "0", "parameters": "in=/a\nmasked=***\nold=1"}
    same |= {"restart.type": "fixed", "restart.attempts": "3"}
    for texts, change in (
        ({}, {}),
        ({"parallelism": "0", "checkpoints.interval_ms": ""}, {"parallelism": 0, "checkpoints": {"interval_ms": None}}),
        ({"libraries": " b \n\na"}, {"libraries": ["b", "a"]}),
        (
            {"parameters": "masked=***\nin=/b=c\nkey=secret:K"},
            {"parameters": {"in": "/b=c", "key": {"secret": "K"}, "old": None}},
        ),
        ({"restart.attempts": "4"}, {"restart": {"attempts": 4}}),
        ({"restart.type": "none", "restart.attempts": "4"}, {"restart": {"type": "none"}}),
        ({"restart.type": "", "restart.attempts": ""}, {"restart": None}),
    ):
        assert page.evaluate(ask, [settings, spec, same | texts]) == change


def test_a_list_that_is_shown_again_keeps_its_nodes_and_what_was_opened(page: Page) -> None:
    show = """async () => {
      const { element, keyed, setChildren } = await import('/ui/static/dom.js');
      const list = element('ul'), said = element('div');
      const shown = (items) => keyed(list, items, (one) => one.id,
        () => element('li'), (node, one) => { node.textContent = one.id + one.text; });
      shown([{ id: 1, text: 'a' }, { id: 2, text: 'b' }, { id: 3, text: 'c' }]);
      const [first] = list.children;
      shown([{ id: 3, text: 'd' }, { id: 1, text: 'e' }]);
      const more = (text) => setChildren(said, element('details', {}, element('summary', {}, text)), text + '!');
      more('x');
      const [details] = said.children;
      details.open = true;
      more('<y>');
      return [list.innerText, list.children[1] === first, said.children[0] === details, details.open, said.textContent];
    }"""
    assert page.evaluate(show) == ["3d1e", True, True, True, "<y><y>!"]

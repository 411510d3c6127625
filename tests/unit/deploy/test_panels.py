from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx

from keyscale.deploy.observability import panels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def test_a_panel_is_drawn_from_its_own_expressions() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params["query"])
        values = [[time.time(), "3"], [time.time(), "NaN"]]
        return httpx.Response(200, json={"data": {"result": [{"metric": {"job_name": "<visits>"}, "values": values}]}})

    drawn = json.loads(panels.DASHBOARD.read_text())["panels"]
    records = next(panel for panel in drawn if panel["title"] == "Records")
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://prometheus") as prometheus:
        lines = panels.lines_of(prometheus, records, 60)
    assert asked == [
        'max by (job_name) (keyscale_job_input_records_per_second{job_name=~".*"})',
        'max by (job_name) (rate(keyscale_job_output_records_total{job_name=~".*"}[1m]))',
    ]
    assert [(name, [value for _, value in points]) for name, points in lines] == [
        ("<visits> input", [3.0]),
        ("<visits> output", [3.0]),
    ]
    picture = panels.drawing("Records", "short", lines, time.time() - 60, time.time())
    assert picture.count("<polyline") == 2
    assert "&lt;visits&gt; input" in picture


def test_the_highest_lines_of_a_panel_are_drawn() -> None:
    result = [{"metric": {"job_name": str(job)}, "values": [[0, str(job)]]} for job in range(20)]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": {"result": result}}))
    panel = {"targets": [{"expr": "up", "legendFormat": "{{job_name}}"}]}
    with httpx.Client(transport=transport, base_url="http://prometheus") as prometheus:
        assert [name for name, _ in panels.lines_of(prometheus, panel, 60)] == ["19", "18", "17", "16", "15", "14"]


def test_a_value_of_an_axis_is_short() -> None:
    assert [panels.shown(value, unit) for value, unit in ((0.5, "s"), (1234, "short"), (2.5e9, "bytes"))] == [
        "0.5s",
        "1.23k",
        "2.5G",
    ]


def test_a_panel_asks_for_its_span_and_leaves_out_lines_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels.time, "time", lambda: 1000.0)
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        result = [{"metric": {}, "values": [[990, "NaN"]]}, {"metric": {"a": "b"}, "values": [[990, "2"]]}]
        return httpx.Response(200, json={"data": {"result": result}})

    panel = {"targets": [{"expr": "rate(up[5m])", "legendFormat": "{{a}} {{c}}x"}]}
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://prometheus") as prometheus:
        assert panels.lines_of(prometheus, panel, 600) == [("b x", [(990, 2.0)])]
    assert asked == [{"query": "rate(up[1m])", "start": "400.0", "end": "1000.0", "step": "5.0"}]


def test_a_line_is_drawn_from_the_begin_to_the_end_and_from_the_least_to_the_most() -> None:
    left, top, width, height = panels.PLOT
    lines = [("first", [(100.0, -1.0), (150.0, 1.0), (200.0, 3.0)]), ("second", [(200.0, 0.0)])]
    drawn = panels.drawing("A & B", "s", lines, 100.0, 200.0)
    middle = f"{left + width / 2:.1f},{top + height / 2:.1f}"
    assert f'<polyline points="{left:.1f},{top + height:.1f} {middle} {left + width:.1f},{top:.1f}"' in drawn
    assert f'<polyline points="{left + width:.1f},{top + height * 3 / 4:.1f}"' in drawn
    assert [each.rpartition(">")[2] for each in drawn.split("</text>")[:-1]] == [
        "A &amp; B",
        "3s",
        "-1s",
        "first",
        "second",
    ]


def test_the_picture_has_the_panels_with_values_in_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = {"type": "timeseries", "fieldConfig": {"defaults": {"unit": "bytes"}}}
    drawn = [{"type": "row", "title": "a row"}, *({**panel, "title": str(number)} for number in range(6))]
    (tmp_path / "dashboard.json").write_text(json.dumps({"panels": drawn}))
    asked: list[tuple[str, int]] = []

    @contextmanager
    def client(*, base_url: str, trust_env: bool) -> Iterator[str]:
        assert not trust_env
        yield base_url

    def lines_of(prometheus: str, panel: dict[str, str], seconds: int) -> list[panels.Line]:
        asked.append((prometheus, seconds))
        return [] if panel["title"] == "2" else [("line", [(0.0, 1.0)])]

    def drawing(*given: object) -> str:
        title, unit, lines, begin_s, end_s = given
        return f"{title} {unit} {lines} {begin_s} {end_s}"

    monkeypatch.setattr(panels.time, "time", lambda: 1000.0)
    monkeypatch.setattr(panels, "DASHBOARD", tmp_path / "dashboard.json")
    monkeypatch.setattr(panels, "httpx", SimpleNamespace(Client=client))
    monkeypatch.setattr(panels, "lines_of", lines_of)
    monkeypatch.setattr(panels, "drawing", drawing)
    picture = tmp_path / "panels.svg"
    monkeypatch.setattr("sys.argv", ["panels", "http://prometheus:9090", str(picture), "--minutes", "3"])
    panels.main()
    text = picture.read_text()
    places = re.findall(r'translate\((\d+) (\d+)\)">\s(\d) bytes \[.*?\)\]\)\] ([\d.]+) ([\d.]+)', text)
    assert places == [
        ("8", "8", "0", "820.0", "1000.0"),
        ("308", "8", "1", "820.0", "1000.0"),
        ("608", "8", "3", "820.0", "1000.0"),
        ("908", "8", "4", "820.0", "1000.0"),
        ("8", "178", "5", "820.0", "1000.0"),
    ]
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="1208" height="348"')
    assert set(asked) == {("http://prometheus:9090", 180)}
    assert capsys.readouterr().out == f"5 panels: {picture}\n"

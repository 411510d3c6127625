"""The dashboard, the alerts and the page of metrics follow from the declarations; each alert is tested."""

from __future__ import annotations

import json
import operator
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyscale.deploy.observability.__main__ import FILES, HERE
from keyscale.deploy.observability.alerts import ALERTS
from keyscale.metrics import JOB_COUNTERS, METRICS
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.deploy.observability.alerts import Alert, Example

NAMES = {metric.prometheus for metric in METRICS if metric.is_scraped} | {each.job_prometheus for each in JOB_COUNTERS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_as_the_declarations_make_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path](), "run python -m keyscale.deploy.observability"


def test_the_dashboard_and_the_alerts_name_only_metrics_that_exist() -> None:
    dashboard = json.loads((HERE / "dashboard.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    expressions = [*shown, *(alert.expression for alert in ALERTS)]
    used = {name.removesuffix("_bucket") for each in expressions for name in re.findall(r"keyscale_\w+", each)}
    assert used <= NAMES
    assert len(shown) > len(METRICS) // 3


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (DOCS / "guide" / "metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (Keyscale\w+)$", page, re.MULTILINE) == [alert.name for alert in ALERTS]


OVER_REPLICAS = re.compile(r"(min|max)\((\w+)\) (==|>) (\d+)")


def values_of(text: str) -> list[int]:
    """Returns the values of a series in promtool's notation, one a minute."""
    values = []
    for each in text.split():
        first, _, times = each.partition("x")
        start, _, step = first.partition("+")
        values += [int(start) + int(step or 0) * number for number in range(int(times or 0) + 1)]
    return values


def is_firing(alert: Alert, example: Example) -> bool:
    """Returns whether an alert over all replicas fires; the expressions of other alerts need promtool."""
    over, _, compared, bound = OVER_REPLICAS.fullmatch(alert.expression).groups()  # type: ignore[union-attr] # it matches
    chosen, holds = {"min": min, "max": max}[over], {"==": operator.eq, ">": operator.gt}[compared]
    at, lasting = (int(text.removesuffix("m")) for text in (example.at, alert.lasting))
    series = [values_of(text) for text in example.series.values()]
    return all(holds(chosen(values[minute] for values in series), int(bound)) for minute in range(at - lasting, at + 1))


def test_an_alert_over_replicas_fires_by_its_example_and_not_by_a_close_one() -> None:
    alerts = {alert.name: alert for alert in ALERTS if OVER_REPLICAS.fullmatch(alert.expression)}
    assert {"KeyscaleLeaderMissing", "KeyscaleDatabaseAway", "KeyscaleStoreAway"} <= alerts.keys()
    for name, alert in alerts.items():
        assert is_firing(alert, alert.fires), name
        assert not is_firing(alert, alert.rests), name


@pytest.mark.real
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's package prometheus")
def test_each_alert_fires_by_its_example_and_not_by_one_that_is_close(tmp_path: Path) -> None:
    rules = (HERE / "alerts.yml").read_text(encoding="utf-8")
    (tmp_path / "alerts_test.yml").write_text((HERE / "alerts_test.yml").read_text(encoding="utf-8"), encoding="utf-8")
    for changed, is_right in ((rules, True), (rules.replace("> 30", "> 3000"), False)):
        (tmp_path / "alerts.yml").write_text(changed, encoding="utf-8")
        done = subprocess.run(
            ["promtool", "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, check=False
        )
        assert (done.returncode == 0) is is_right, done.stdout

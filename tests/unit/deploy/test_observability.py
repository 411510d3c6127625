"""The dashboard, the alerts and the page of metrics follow from the declarations; each alert is tested."""

from __future__ import annotations

import json
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

"""Writes the files that follow from the declarations of the metrics."""

from __future__ import annotations

from pathlib import Path

from .alerts import rules, tests
from .dashboard import dashboard
from .metrics_page import page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = {
    HERE / "alerts.yml": rules,
    HERE / "alerts_test.yml": tests,
    HERE / "dashboard.json": dashboard,
    ROOT / "docs" / "metrics.md": page,
}

if __name__ == "__main__":
    for path, make in FILES.items():
        path.write_text(make(), encoding="utf-8")

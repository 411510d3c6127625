"""The guide has a row for each reason of a job's health."""

from __future__ import annotations

import re

from tests.support.repository import DOCS, ROOT

CODES = {
    code
    for module in (ROOT / "api" / "health").glob("*.py")
    for code in re.findall(r'code="([A-Z_]+)"', module.read_text(encoding="utf-8"))
}


def test_the_guide_explains_each_reason() -> None:
    guide = (DOCS / "guide" / "health.md").read_text(encoding="utf-8")
    assert {code for code in CODES if f"`{code}`" not in guide} == set()
    assert {"HOT_KEY_GROUP", "FAILS_REPEATEDLY"} <= CODES

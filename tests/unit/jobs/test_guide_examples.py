"""The tests that the guide shows pass."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.repository import DOCS

_GUIDE = DOCS / "guide"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = ("deduplication.md", "graphs.md", "models.md", "own-metrics.md", "transform-with-state.md")


def examples(page: str) -> dict[str, Any]:
    """Returns the tests in a page's code blocks, by name. Blocks without a test are not run."""
    found: dict[str, Any] = {}
    for block in _BLOCK.findall((_GUIDE / page).read_text()):
        if "\ndef test_" in block:
            names: dict[str, Any] = {"__name__": f"guide_{page.removesuffix('.md')}"}
            exec(compile(block, page, "exec"), names)  # noqa: S102 - code of our own page
            found |= {name: value for name, value in names.items() if name.startswith("test_")}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_pass(page: str) -> None:
    tests = examples(page)
    assert tests
    for test in tests.values():
        test()

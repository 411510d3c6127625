"""What the guide shows as a test is one, and passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

_GUIDE = Path(__file__).parents[3] / "docs" / "guide"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = ("deduplication.md", "graphs.md", "transform-with-state.md")


def examples(page: str) -> dict[str, Any]:
    """The tests of a page's blocks, by name; a block without any is read by people alone."""
    found: dict[str, Any] = {}
    for block in _BLOCK.findall((_GUIDE / page).read_text()):
        if "\ndef test_" in block:
            names: dict[str, Any] = {"__name__": f"guide_{page.removesuffix('.md')}"}
            exec(compile(block, page, "exec"), names)  # noqa: S102 - our own page
            found |= {name: value for name, value in names.items() if name.startswith("test_")}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_hold(page: str) -> None:
    tests = examples(page)
    assert tests
    for test in tests.values():
        test()

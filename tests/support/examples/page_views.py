"""Page views for tests, many of them delivered more than once, and the counts that a batch computation finds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

PAGES = ("/", "/prices", "/docs", "/docs/state", "/blog")


@dataclass(frozen=True, slots=True)
class View:
    """One delivery of a page view, with the columns of the example job."""

    view_id: str
    page: str


def deliveries(seed: int, files: int, records: int) -> list[list[View]]:
    """Views in files; a third of all deliveries repeat an earlier one, near or far back."""
    history = random.Random(seed)
    delivered: list[View] = []
    written: list[list[View]] = []
    for _ in range(files):
        lines = []
        for _ in range(records):
            if delivered and history.random() < 1 / 3:
                lines.append(history.choice(delivered if history.random() < 0.5 else delivered[-records:]))
                continue
            lines.append(View(f"view-{len(delivered)}", history.choice(PAGES)))
            delivered.append(lines[-1])
        written.append(lines)
    return written


def ids_by_page(files: list[list[View]]) -> dict[str, set[str]]:
    """The ids of each page's views."""
    found: dict[str, set[str]] = {}
    for view in (view for file in files for view in file):
        found.setdefault(view.page, set()).add(view.view_id)
    return found


def counts(files: list[list[View]]) -> Counter[str]:
    """How often each page was viewed, each view counted once."""
    return Counter({page: len(ids) for page, ids in ids_by_page(files).items()})

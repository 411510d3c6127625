"""The tiers of the tests, and which tests share a worker of pytest-xdist.

fast        without a mark: in pytest's own process, or a cheap one of Python
real        the default tier, too: needs a server, Java, a browser or a process of the platform
exhaustive  only `./keyscale test --all` runs it
"""

from __future__ import annotations

import pytest

from tests.suite.database_kinds import KIND, is_in_memory

REAL_FIXTURES = {KIND, "postgres_server", "migrated_template", "control_plane", "spark", "drivers", "kafka"}
"""The fixtures of the root that start what a fast test must not start."""
GROUPS = {"spark": "spark", "kafka": "spark", "browser": "browser"}
"""The worker of the tests that share an expensive thing, by the fixture which they share."""
SHORT_FILES = "tests/unit/api/"
"""The folder of short files of tests, which fill the gaps between workers at the end of a run."""


def arrange(items: list[pytest.Item]) -> None:
    """Puts real tests first, short files last, and tests that share a fixture of `GROUPS`, or else a file, in a worker.

    Raises:
        pytest.UsageError: A test without a mark needs something real.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        needed = REAL_FIXTURES.intersection(fixtures) - ({KIND} if is_in_memory(item) else set())
        if is_fast(item) and needed:
            raise pytest.UsageError(f"{item.nodeid} needs {', '.join(sorted(needed))}: mark it `real`")
        if item.get_closest_marker("xdist_group") is None:
            shared = [group for fixture, group in GROUPS.items() if fixture in fixtures]
            item.add_marker(pytest.mark.xdist_group(shared[0] if shared else file_of(item)))
    # The long ones first, so that no worker waits for another in the end: groups of several files, then real tests.
    items.sort(key=lambda item: (is_fast(item), group_of(item) == file_of(item), file_of(item).startswith(SHORT_FILES)))


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None, "arranged tests have a group"
    return str(mark.args[0])


def is_fast(item: pytest.Item) -> bool:
    return not any(item.iter_markers("real")) and not any(item.iter_markers("exhaustive"))

"""The tiers of the tests, and which tests share a worker of pytest-xdist.

fast        without a mark: in pytest's own process, or a cheap one of Python
real        the default tier, too: needs a server, Java, a browser or a process of the platform
exhaustive  only `./keyscale test --all` runs it
"""

from __future__ import annotations

import pytest

REAL_FIXTURES = {"postgres_server", "migrated_template", "control_plane", "spark", "drivers", "kafka"}
"""The fixtures of the root that start what a fast test must not start."""


def arrange(items: list[pytest.Item]) -> None:
    """Puts real tests first, and tests of one file in one worker unless a mark says which ones belong together.

    Raises:
        pytest.UsageError: A test without a mark needs something real.
    """
    for item in items:
        if is_fast(item) and (needed := REAL_FIXTURES.intersection(getattr(item, "fixturenames", ()))):
            raise pytest.UsageError(f"{item.nodeid} needs {', '.join(sorted(needed))}: mark it `real`")
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=is_fast)  # the long ones first, so that no worker waits for another in the end


def is_fast(item: pytest.Item) -> bool:
    return not any(item.iter_markers("real")) and not any(item.iter_markers("exhaustive"))

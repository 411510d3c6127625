from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.control_plane.running_control_plane import RunningControlPlane


@pytest.fixture(scope="session")
def platform() -> Iterator[RunningControlPlane]:
    """One control plane for all tests that leave it as it is; their marks put them into one worker."""
    with running_control_plane({"KEYSCALE_JOB_SECRET_STOCK": "hunter2hunter2"}) as running:
        yield running

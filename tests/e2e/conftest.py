"""A control plane and the README's job on it, for the tests that need jobs with users of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.control_plane.readme_job import ReadmeJob
from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {
    # As the README's reader starts it: as root, jobs run as users of their own.
    "KEYSCALE_JOB_USERS": "50000-50999" if os.geteuid() == 0 else "off",
    "KEYSCALE_JOB_SECRET_VICTIM": "of-the-victim",
    "KEYSCALE_JOB_SECRET_HOSTILE": "of-the-hostile",
    "KEYSCALE_OF_THE_CONTROL_PLANE": "not-for-jobs",
}


@pytest.fixture(scope="package")  # and not of the session: an idle driver takes a tenth of a processor
def readme_job() -> Iterator[ReadmeJob]:
    """The README's job; the marks of its tests put them into one worker."""
    with (
        running_control_plane(SETTINGS) as control_plane,
        tempfile.TemporaryDirectory(prefix="keyscale-readme-", ignore_cleanup_errors=True) as directory,
    ):
        Path(directory).chmod(0o755)
        yield ReadmeJob(control_plane, Path(directory))

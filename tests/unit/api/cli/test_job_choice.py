"""`jobs list` shows the jobs that its options choose."""

from __future__ import annotations

import pytest

from keyscale.api.cli.jobs import is_chosen

JOB = {"status": {"state": "RUNNING"}, "labels": {"team": "travel", "stage": "test"}}


@pytest.mark.parametrize(
    ("statuses", "labels", "is_shown"),
    [
        ([], [], True),
        (["FAILED", "RUNNING"], [], True),
        (["FAILED"], [], False),
        ([], [("team", "travel")], True),
        ([], [("team", "travel"), ("stage", "live")], False),
        (["FAILED"], [("team", "travel")], False),
        ([], [("owner", "travel")], False),
    ],
)
def test_a_job_with_one_of_the_statuses_and_all_labels_is_shown(
    statuses: list[str], labels: list[tuple[str, str]], is_shown: bool
) -> None:
    assert is_chosen(JOB, statuses, labels) == is_shown

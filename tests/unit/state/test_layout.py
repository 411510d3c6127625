"""A path of the job's objects says by whom it was written; other paths say nothing."""

from __future__ import annotations

import pytest

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.layout import ChangelogOrigin, Layout

LAYOUT = Layout(JobId("job"))
CHANGELOG = LAYOUT.changelog(
    OperatorUid("count"), batch_id=BatchId(7), subtask=SubtaskIndex(3), attempt=Attempt(2), unique="a-b"
)
NAME = CHANGELOG.rpartition("/")[2]


def test_a_changelogs_path_says_its_batch_and_attempt() -> None:
    assert LAYOUT.changelog_origin(CHANGELOG) == ChangelogOrigin(BatchId(7), Attempt(2))


@pytest.mark.parametrize(
    "path",
    [
        CHANGELOG.replace("job/", "other/"),
        f"{LAYOUT.log}{NAME}",
        CHANGELOG.removesuffix("-a-b"),
        CHANGELOG.replace("-3-", "-three-"),
    ],
)
def test_another_path_has_no_batch_and_attempt(path: str) -> None:
    assert LAYOUT.changelog_origin(path) is None


@pytest.mark.parametrize("name", ["1.json", f"{7:020}.txt", "manifest.json", f"{7:019}x.json"])
def test_only_a_log_entrys_path_has_a_position(name: str) -> None:
    assert LAYOUT.log_position(LAYOUT.log_entry(7)) == 7
    assert LAYOUT.log_position(f"{LAYOUT.log}{name}") is None

"""A benchmark reads a job's whole commit log, although the job's clean-up shortens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.peers.followed_log import FollowedLog
from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog, LogGapError
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout(JobId("job"))
ENTRIES = [
    AttemptOpened(Attempt(1), 2, 128, HashId.SPARK, None, 0, {}),
    *(BatchCommitted(Attempt(1), BatchId(batch), {}, {}, 0) for batch in range(4)),
]


def test_entries_that_the_clean_up_deletes_stay_known(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    followed = FollowedLog(CommitLog(store, LAYOUT))
    for position, entry in enumerate(ENTRIES[:3], start=1):
        log.append(position, entry)
    assert followed.read() == ENTRIES[:3]
    store.delete([LAYOUT.log_entry(1), LAYOUT.log_entry(2)])
    for position, entry in enumerate(ENTRIES[3:], start=4):
        log.append(position, entry)
    assert followed.read() == ENTRIES
    assert followed.read() == ENTRIES
    with pytest.raises(LogGapError):
        FollowedLog(log).read()


def test_entries_that_the_clean_up_deletes_unread_are_missed_and_not_left_out(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    followed = FollowedLog(log)
    assert followed.read() == []
    for position, entry in enumerate(ENTRIES, start=1):
        log.append(position, entry)
    store.delete([LAYOUT.log_entry(1)])
    with pytest.raises(LogGapError):
        followed.read()

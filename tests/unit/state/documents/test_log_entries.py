"""The bytes of the log's entries, compared with golden files: entries once written stay readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid
from keyscale.metrics import COUNTER, HISTOGRAM
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import OperatorDeclaration
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.user_series import UserSeries
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = OperatorUid("counts")
USER_SERIES = (
    UserSeries("counts", "amount", HISTOGRAM, {}, (12.5, 1, 2), (10.0,)),
    UserSeries("counts", "orders", COUNTER, {"currency": "EUR"}, (4,)),
)
ENTRIES: list[LogEntry] = [
    AttemptOpened(Attempt(1), 2, 128, HashId.SPARK, None, 1000, {COUNTS: OperatorDeclaration((("id", "int64"),))}),
    BatchPlanned(Attempt(1), BatchId(0), {"offsets/0": "v1"}),
    BatchCommitted(Attempt(1), BatchId(0), {COUNTS: [None, None]}, {"files": "token"}, 2000, 5, 3),
    AttemptOpened(Attempt(2), 2, 128, HashId.SPARK, "job/chk-1/manifest.json", 3000, {}, rewinds=True, claims=True),
    AttemptOpened(
        Attempt(3),
        2,
        128,
        HashId.SPARK,
        "other/savepoints/a/manifest.json",
        4000,
        {},
        rewinds=True,
        restore_id="wish",
        dropped_operators=(COUNTS,),
    ),
    AttemptOpened(
        Attempt(4),
        2,
        128,
        HashId.SPARK,
        None,
        5000,
        {},
        dropped_sources=(OperatorUid("clicks"),),
        positions={"offsets/0": "v1"},
    ),
    BatchCommitted(Attempt(4), BatchId(0), {}, {}, 6000, 5, 3, counters=JobCounters(10, 6, 2, 1)),
    BatchCommitted(Attempt(4), BatchId(1), {}, {}, 7000, 5, 3, counters=JobCounters(15, 9, 2, 1, USER_SERIES)),
    AttemptOpened(
        Attempt(5),
        2,
        128,
        HashId.SPARK,
        "job/chk-1/manifest.json",
        8000,
        {},
        rewinds=True,
        output_history=(Rewind(Attempt(3), BatchId(-1)), Rewind(Attempt(5), BatchId(0))),
    ),
    AttemptOpened(Attempt(6), 3, 128, HashId.SPARK, None, 9000, {}, key_group_starts=(0, 1, 100)),
]
"""All but the last six are as the first version of the format has them, without the fields that were added later."""


def test_the_golden_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    store, layout = LocalObjectStore(tmp_path), Layout(JobId("job"))
    for position in range(1, len(ENTRIES) + 1):
        store.put(layout.log_entry(position), (GOLDEN / "log-v1" / f"{position}.json").read_bytes())
    assert [entry for _, entry in CommitLog(store, layout).read()] == ENTRIES


def test_an_opening_without_ranges_means_ranges_by_count() -> None:
    earlier, later = ENTRIES[0], ENTRIES[-1]
    assert isinstance(earlier, AttemptOpened)
    assert isinstance(later, AttemptOpened)
    assert earlier.key_group_ranges == KeyGroupRanges.of_count(128, 2)
    assert later.key_group_ranges == KeyGroupRanges(128, (0, 1, 100))

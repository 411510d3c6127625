from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import Manifest, SnapshotKind
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.log.output_history import keeps_output_of, output_history
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout(JobId("job"))


def rewind(attempt: int, batch_id: int) -> Rewind:
    return Rewind(Attempt(attempt), BatchId(batch_id))


def snapshot(batch_id: int, *rewinds: Rewind, forked_from: str | None = None) -> Manifest:
    return Manifest(
        job_id=JobId("job"),
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(batch_id),
        log_position=1,
        max_parallelism=8,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        savepoint_id="s",
        rewinds=rewinds or msgspec.UNSET,
        forked_from=msgspec.UNSET if forked_from is None else JobId(forked_from),
    )


TO_FIVE, AGAIN_TO_FIVE, TO_EIGHT = rewind(2, 5), rewind(3, 5), rewind(3, 8)


@pytest.mark.parametrize(
    ("history", "taken", "is_kept"),
    [
        ((), snapshot(10), True),
        ((TO_FIVE,), snapshot(5), True),
        ((TO_FIVE,), snapshot(6), False),
        ((TO_FIVE,), snapshot(9, TO_FIVE), True),
        ((TO_FIVE, TO_EIGHT), snapshot(8, TO_FIVE), True),
        ((TO_FIVE, TO_EIGHT), snapshot(9, TO_FIVE), False),
        ((AGAIN_TO_FIVE,), snapshot(5, TO_FIVE), True),
        ((AGAIN_TO_FIVE,), snapshot(6, TO_FIVE), False),
        ((rewind(2, -1),), snapshot(0), False),
        ((rewind(2, -1),), snapshot(-1), True),
        ((rewind(2, -1),), snapshot(7, forked_from="other"), True),
        (msgspec.UNSET, snapshot(10), True),
    ],
)
def test_sinks_keep_the_output_that_a_snapshots_history_shares_with_theirs(
    history: tuple[Rewind, ...], taken: Manifest, is_kept: bool
) -> None:
    assert keeps_output_of(history, taken) is is_kept


def opened(attempt: int, **changes: object) -> AttemptOpened:
    plain = AttemptOpened(Attempt(attempt), 1, 8, HashId.SPARK, None, 0, {})
    return msgspec.structs.replace(plain, **changes)


STATELESS = opened(2, rewinds=True, output_history=(TO_FIVE,))
PLANNED, COMMITTED = BatchPlanned(Attempt(2), BatchId(0), {}), BatchCommitted(Attempt(2), BatchId(0), {}, {}, 0)


@pytest.mark.parametrize(
    ("entries", "known"),
    [
        ({}, ()),
        ({1: opened(1), 2: COMMITTED}, ()),
        ({1: opened(2, rewinds=True, restored_from="s", output_history=(TO_FIVE,)), 2: COMMITTED}, (TO_FIVE,)),
        ({1: opened(2, rewinds=True, restored_from="s"), 2: COMMITTED}, msgspec.UNSET),
        ({4: STATELESS}, (TO_FIVE,)),
        ({4: STATELESS, 5: PLANNED, 6: opened(3)}, (TO_FIVE,)),
        ({4: STATELESS, 5: PLANNED, 6: COMMITTED, 7: opened(3)}, (rewind(2, -1),)),
        ({4: STATELESS, 9: opened(3)}, (rewind(2, -1),)),
    ],
)
def test_a_start_without_state_replaces_the_output_with_its_first_commit(
    tmp_path: Path, entries: dict[int, LogEntry], known: tuple[Rewind, ...]
) -> None:
    """The clean-up has deleted the commits in a gap of the log."""
    store = LocalObjectStore(tmp_path)
    for position, entry in entries.items():
        CommitLog(store, LAYOUT).append(position, entry)
    assert output_history(CommitLog(store, LAYOUT)) == known

"""Several shards into one, on engines alone: what is foreign goes, what other shards hold comes in, and all is compacted."""

from __future__ import annotations

import uuid
from itertools import islice
from typing import TYPE_CHECKING

from state.engine import SortedRun
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from state.engine import Engine
    from state.key_groups import KeyGroupRange

_COPIED_AT_A_TIME = 100_000


def merge_shards(
    target: Engine,
    own: KeyGroupRange,
    others: Sequence[tuple[KeyGroupRange, Engine]],
    scratch: Path,
    *,
    purge: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Make an engine hold its own key groups and those of other shards, nothing else, in the smallest form.

    With no other shards this is a trim, in which no record passes through Python unless there is something to purge.

    Args:
        target: A shard's engine.
        own: The key groups that it answers for so far.
        others: Further shards of disjoint ranges; they are only read.
        scratch: An existing directory for files on their way.
        purge: Called before the engine is compacted; may remove entries that nobody may see any more.
        check: Called now and then; ends the work by raising.
    """
    target.delete_range(b"", own.start_key)
    target.delete_range(own.end_key, None)
    reach("consolidate.clipped")
    for key_groups, other in others:
        for family in other.families():
            for run in _runs(other, family, key_groups):
                check()
                file = scratch / f"{uuid.uuid4().hex}.sst"
                try:
                    target.write_sorted_file(run, file)
                    target.ingest(family, [file])
                finally:
                    file.unlink(missing_ok=True)
                reach("consolidate.part_copied")
    reach("consolidate.copied")
    purge()
    check()
    target.compact()
    reach("consolidate.compacted")


def _runs(engine: Engine, family: str, key_groups: KeyGroupRange) -> Iterator[SortedRun]:
    entries = engine.scan(family, key_groups.start_key, key_groups.end_key)
    while part := list(islice(entries, _COPIED_AT_A_TIME)):
        yield SortedRun(family, [key for key, _ in part], [value for _, value in part])

"""Going through the keys of a batch one by one, with what their states hold read for many of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state.entries import Entries
    from state.handle import KeyContext
    from state.stored_key import KeyBatch

PART_ROWS = 1024


def walk_keys(
    context: KeyContext, batch: KeyBatch, keys: Iterable[tuple[Any, ...]], states: Callable[[], Iterable[Entries]]
) -> Iterator[tuple[Any, ...]]:
    """Make the key of each row of a batch the current one, in turn, and give it.

    The first rows are a sample. A state that was asked for most of their keys is read for all keys of the batch, sorted, which takes
    a fraction of the time; and no more memory than being asked for them takes, since what a batch has read is kept until it ends.

    Args:
        context: Whose current key it is.
        batch: The rows' stored keys.
        keys: The rows' keys.
        states: Gives the states that have one entry a key, under the stored key itself; asked after the sample, which may declare some.
    """
    prefixes, upcoming = batch.rows(), iter(keys)
    for first in range(0, len(prefixes), PART_ROWS):
        if first == PART_ROWS:
            sample = set(prefixes[:PART_ROWS])
            wanted = [entries for entries in states() if entries.has_read_most(sample)]
            for entries in wanted:
                entries.read_ahead(batch.distinct)
            if wanted:
                prefixes = batch.rows()  # now the very objects that were read, which are found sooner
        # Prefixes come first, so that the end of a part takes no key of the next one.
        for context.prefix, context.key in zip(prefixes[first : first + PART_ROWS], upcoming, strict=False):
            yield context.key

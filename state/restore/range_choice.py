"""The choice of an attempt's key group ranges; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UnsetType

from ..keys.key_group_ranges import KeyGroupRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..documents.manifest import Manifest

GAIN_PERCENT_MIN = 10
"""Ranges by size are worth it if the largest subtask has so much less: smaller gains are within the estimates."""


def chosen_ranges(
    max_parallelism: int, parallelism: int, *, kept: KeyGroupRanges | None = None, sized: Manifest | None = None
) -> KeyGroupRanges:
    """Decides the key group ranges of an attempt.

    Args:
        max_parallelism: Number of key groups.
        parallelism: Number of subtasks.
        kept: The ranges of the attempt before. As many subtasks keep them, so that no file moves.
        sized: The snapshot with the sizes of key groups; None: key groups are divided by count, and so they are where
            sizes are unknown, or gain too little.

    Raises:
        KeyGroupError: Not 1 <= parallelism <= max_parallelism <= 32768.
    """
    if kept is not None and (kept.max_parallelism, len(kept)) == (max_parallelism, parallelism):
        return kept
    return ranges_by_size(key_group_weights(sized, max_parallelism), parallelism)


def ranges_by_size(weights: Sequence[int], parallelism: int) -> KeyGroupRanges:
    """Divides key groups by weight if that gains enough.

    Args:
        weights: The weight of every key group; all are 0 if sizes are unknown.
        parallelism: Number of subtasks.

    Raises:
        KeyGroupError: Not 1 <= parallelism <= the number of weights <= 32768.
    """
    by_count = KeyGroupRanges.of_count(len(weights), parallelism)
    if not any(weights):
        return by_count
    by_size = KeyGroupRanges.balanced(weights, parallelism)
    is_worth_it = 100 * by_size.largest(weights) < (100 - GAIN_PERCENT_MIN) * by_count.largest(weights)
    return by_size if is_worth_it else by_count


def key_group_weights(manifest: Manifest | None, max_parallelism: int) -> list[int]:
    """Returns the weight of every key group in a snapshot.

    Bytes and entries of all operators weigh the same.
    """
    entries, size_bytes = [0] * max_parallelism, [0] * max_parallelism
    for operator in () if manifest is None else manifest.operators:
        for sums, known in ((entries, operator.key_group_entries), (size_bytes, operator.key_group_bytes)):
            if not isinstance(known, UnsetType) and len(known) == max_parallelism:
                sums[:] = map(sum, zip(sums, known, strict=True))
    return weights_of(entries, size_bytes)


def weights_of(entries: Sequence[int], size_bytes: Sequence[int]) -> list[int]:
    """Returns the weight of every key group from its entries and bytes."""
    # In these integers all bytes weigh as much as all entries. Without entries the bytes alone count.
    total_entries, total_bytes = sum(entries) or 1, sum(size_bytes) or 1
    return [size * total_entries + count * total_bytes for size, count in zip(size_bytes, entries, strict=True)]

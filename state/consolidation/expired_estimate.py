"""Estimates from a sample how many expired bytes a consolidation would free."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ..keyed.cleanup import Occasion, expired_entries
from ..keys.key_groups import KeyGroupRange
from .policy import foreign_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..engine.engine import Engine
    from ..keyed.batch_clock import Clock
    from ..restore.opened_shards import OpenedShard
    from ..snapshot.snapshot import LocalSnapshot
    from .policy import ConsolidationPolicy

_SAMPLED_GROUPS = 32
_SAMPLED_ENTRIES = 16  # per sampled key group
_PLACE_BYTES = 32


def estimate_expired_bytes(
    snapshot: LocalSnapshot, shards: Sequence[OpenedShard], policy: ConsolidationPolicy, clock: Clock | None
) -> int:
    """Estimates how many expired bytes a trim would free.

    It is 0 without a clock, or if a trim is not wanted.

    Args:
        snapshot: A snapshot that has just been linked.
        shards: The same state, open.
        policy: Files with fewer bytes than its minimum are not sampled.
        clock: The times by which entries expire.
    """
    if clock is None or len(shards) > 1 or not snapshot.settings.background_consolidation:
        return 0
    engine = shards[0].engine
    checks = expired_entries(snapshot.schema, snapshot.ttls, clock, Occasion.COMPACTION)
    files = engine.files()
    file_bytes = sum(file.size_bytes for file in files)
    if not checks or file_bytes < max(1, policy.foreign_bytes_min):
        return 0
    own_share = 1 - foreign_bytes(files, snapshot.key_groups) / file_bytes
    dead_bytes = (
        engine.file_bytes(family) * estimate_expired_share(engine, family, is_expired, snapshot.key_groups)
        for family, is_expired in checks.items()
    )
    return round(own_share * sum(dead_bytes))


def estimate_expired_share(
    engine: Engine, family: str, is_expired: Callable[[bytes], bool], key_groups: KeyGroupRange, seed: int = 0
) -> float:
    """Estimates the share of expired entries in a column family.

    It reads a few entries from random places, within milliseconds.
    """
    random = Random(seed)  # noqa: S311 - a sample
    size = key_groups.end - key_groups.start + 1
    groups = {key_groups.start + number * size // _SAMPLED_GROUPS for number in range(_SAMPLED_GROUPS)}
    sample = [
        is_expired(raw)
        for group in sorted(groups)
        for _, raw in engine.scan(family, *_stretch(engine, family, group, random), _SAMPLED_ENTRIES)
    ]
    return sum(sample) / len(sample) if sample else 0.0


def _stretch(engine: Engine, family: str, group: int, random: Random) -> tuple[bytes, bytes]:
    """Returns a range from a random place to its key group's end.

    The place is between the first and the last entry. Random places matter because keys may be in the order of their
    age.
    """
    whole = KeyGroupRange(group, group)
    first = next((key for key, _ in engine.scan(family, whole.start_key, whole.end_key, 1)), None)
    last = None if first is None else engine.last_key(family, whole.start_key, whole.end_key)
    if first is None or last is None:
        return whole.start_key, whole.end_key
    low, high = (int.from_bytes(key[:_PLACE_BYTES].ljust(_PLACE_BYTES, b"\0"), "big") for key in (first, last))
    return max(first, random.randint(low, high).to_bytes(_PLACE_BYTES, "big")), whole.end_key

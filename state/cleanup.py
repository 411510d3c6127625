"""Which stored entries a full snapshot or a compaction may leave out: those that are expired by a TTL that says so."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from state.formats import expiry_check
from state.sweep import purge
from state.ttl import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state.engine import Engine
    from state.schema import KeyedSchema
    from state.ttl import Clock, Ttl


class Occasion(StrEnum):
    """When expired entries are left out; a TTL's cleanup says at which of them."""

    FULL_SNAPSHOT = "full_snapshot"
    COMPACTION = "compaction"


class Purged(NamedTuple):
    """How many entries were looked at, and how many of them removed."""

    seen: int
    removed: int


def expired_entries(
    schema: KeyedSchema | None, ttls: Mapping[str, Ttl], clock: Clock, occasion: Occasion
) -> dict[str, Callable[[bytes], bool]]:
    """What tells of a stored value whether it may be left out, for each family that has any such. Pure.

    Nobody reads an entry that is expired, so it may be left out of any copy without a word in a changelog: a store that still
    has it behaves the same. Time must not go back afterwards, as for any use of a TTL.

    Args:
        schema: How the entries are to be read.
        ttls: As the job that runs now has declared them, by state. Never those of an earlier run: its user may have given
            the entries longer to live since.
        clock: The times to go by.
        occasion: What they are left out of.
    """
    checks = {}
    for name, ttl in ttls.items():
        state = None if schema is None else schema.state(name)
        wanted = ttl.cleanup.full_snapshot if occasion is Occasion.FULL_SNAPSHOT else ttl.cleanup.compaction
        if state is None or not ttl.enabled or not wanted:
            continue
        now = clock.event_time_ms if ttl.time_domain is TimeDomain.EVENT else clock.processing_time_ms
        stamped = {number for number, each in enumerate(state.formats) if each.stamps == ttl.time_domain}
        checks[name] = expiry_check(stamped, now - ttl.duration_ms)
    return checks


def purge_all(engine: Engine, expired: Mapping[str, Callable[[bytes], bool]]) -> dict[str, Purged]:
    """Remove from a store what may be left out; what was done, by family."""
    return {family: Purged(*purge(engine, family, is_expired)) for family, is_expired in expired.items()}

"""The keys with entries in a key group, whatever their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..keyed.timer_queue import key_position
from ..keys.key_groups import KeyGroupRange
from ..serializers.key_serializer import KeySerializer

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema


def stored_keys(engine: Engine, schema: KeyedSchema, key_group: int) -> list[tuple[Any, ...]]:
    """Returns the keys with state or timers in a key group.

    They have the order of their stored form.

    Args:
        engine: The state of the key group.
        schema: Its schema.
        key_group: The key group.

    Raises:
        CorruptValueError: A stored key is damaged.
    """
    serializer = KeySerializer(schema.key_schema())
    owned = KeyGroupRange(key_group, key_group)
    found: dict[bytes, tuple[Any, ...]] = {}
    families = [*((state.name, False) for state in schema.states), *((each.name, True) for each in schema.timers or ())]
    for family, is_timer in families:
        at = key_position(is_timer=is_timer)
        last = b""
        for raw in engine.scan_keys(family, owned.start_key, owned.end_key):
            if last and raw.startswith(last, at):  # another entry of the key
                continue
            key, end = serializer.decode(raw, at)
            last = raw[at:end]
            found[last] = key
    return [found[stored] for stored in sorted(found)]

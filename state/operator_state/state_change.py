"""The fate of stored operator state under another declaration; pure.

`check_readable` decides the same when the state is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.vocabulary import Fate

from ..errors import StateSchemaMismatchError
from ..keyed.schema_change import StateChange, value_rules
from .backend import check_readable, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .backend import StoredOperatorState


def operator_state_changes(
    stored: Mapping[str, StoredOperatorState], declared: Mapping[str, StoredOperatorState]
) -> list[StateChange]:
    """Returns the fate of each stored and declared operator state, by name.

    Items do not count.
    """
    return [_change(name, stored.get(name), declared.get(name)) for name in sorted({*stored, *declared})]


def _change(name: str, stored: StoredOperatorState | None, declared: StoredOperatorState | None) -> StateChange:
    before, after = (None if each is None else text_of(each) for each in (stored, declared))
    kind = "" if (known := declared or stored) is None else f"operator state, {known.distribution}"
    if stored is None or declared is None:
        fate = Fate.NEW if stored is None else Fate.NOT_DECLARED
        return StateChange(name, kind, fate, stored=before, declared=after)
    try:
        check_readable(name, stored, declared)
    except StateSchemaMismatchError as error:
        return StateChange(name, kind, Fate.INCOMPATIBLE, stored=before, declared=after, reason=str(error))
    rules = value_rules(stored.value_type, declared.value_type)
    return StateChange(name, kind, Fate.MIGRATED if rules else Fate.KEPT, rules, before, after)

"""The fate of a job's stored state under another program; pure.

A driver that opens its attempt refuses the same changes; see `keyscale.jobs.runtime.driver.attempt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import OperatorUid
from keyscale.vocabulary import Fate

from ..documents.manifest import OperatorDeclaration
from ..keyed.schema_change import StateChange, changes_of, dropped
from ..operator_state.backend import StoredOperatorState
from ..operator_state.state_change import operator_state_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..log.resolution import OperatorHistory


class DeclaredOperator(msgspec.Struct, frozen=True):
    """An operator as a program declares it.

    Attributes:
        uid: Its uid.
        declaration: Its key, and the keyed states and timers that it declares when it is opened.
        operator_state: The operator states that it declares when it is opened, without items.
        ttls_ms: The time to live of each keyed state with a TTL.
    """

    uid: OperatorUid
    declaration: OperatorDeclaration
    operator_state: dict[str, StoredOperatorState] = {}
    ttls_ms: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """The fate of an operator and its states.

    Attributes:
        uid: Its uid.
        fate: KEPT, NEW, DROPPED (its state is lost), or INCOMPATIBLE if its key or one of its states is.
        states: The fate of each state.
        reason: Why it is incompatible.
    """

    uid: OperatorUid
    fate: Fate
    states: tuple[StateChange, ...] = ()
    reason: str | None = None


def operator_changes(
    histories: Mapping[OperatorUid, OperatorHistory],
    stored_operator_state: Mapping[OperatorUid, Mapping[str, StoredOperatorState]],
    declared: Sequence[DeclaredOperator],
) -> list[OperatorChange]:
    """Returns the fate of each stored and declared operator, by uid.

    Args:
        histories: The stored state of each operator.
        stored_operator_state: The stored operator state, by uid and name.
        declared: The operators that the new program declares.
    """
    known = {operator.uid: operator for operator in declared}
    return [
        _change(uid, histories.get(uid), stored_operator_state.get(uid, {}), known.get(uid))
        for uid in sorted({*histories, *known})
        if uid in known or histories[uid].has_state
    ]


def rekeyed(history: OperatorHistory, declared: OperatorDeclaration) -> str | None:
    """Returns how an operator's stored and declared keys differ, or None."""
    if history.declaration is None or history.declaration.key_schema == declared.key_schema:
        return None
    return f"was keyed by {_described(history.declaration)} and is now keyed by {_described(declared)}"


def _described(declaration: OperatorDeclaration) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in declaration.key_schema)


def _change(
    uid: OperatorUid,
    history: OperatorHistory | None,
    operator_state: Mapping[str, StoredOperatorState],
    declared: DeclaredOperator | None,
) -> OperatorChange:
    stored = None if history is None else history.schema
    if declared is None:
        lost = [
            StateChange(each.name, each.kind, Fate.DROPPED, stored=each.stored)
            for each in operator_state_changes(operator_state, {})
        ]
        return OperatorChange(uid, Fate.DROPPED, (*dropped(stored), *lost))
    reason = None if history is None else rekeyed(history, declared.declaration)
    now = declared.declaration.schema
    keyed = changes_of(stored, now) if now is not None else dropped(stored)
    states = (*keyed, *operator_state_changes(operator_state, declared.operator_state))
    fate = Fate.NEW if history is None else Fate.KEPT
    if reason is not None or any(each.fate is Fate.INCOMPATIBLE for each in states):
        fate = Fate.INCOMPATIBLE
    return OperatorChange(uid, fate, states, reason)

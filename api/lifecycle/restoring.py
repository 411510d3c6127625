"""The pending restore of a job's next attempt.

It is in the database until an attempt has carried it out. Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from keyscale.vocabulary import ClaimMode, RestoreMode, UpgradeMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.db.models import Operation


@dataclass(frozen=True, slots=True)
class Restore:
    """A pending restore.

    Attributes:
        id: Names the restore, so that it is carried out once, however often attempts get it.
        location: The manifest to start from; None: the latest manifest of the job's own history, or (stateless) none.
    """

    id: str | None = None
    mode: RestoreMode = RestoreMode.CONTINUE
    location: str | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False

    def dump(self) -> dict[str, Any]:
        """Returns the stored form of the restore."""
        return asdict(self)

    @staticmethod
    def load(stored: Mapping[str, Any]) -> Restore:
        """Returns a restore from its stored form."""
        modes = {"mode": RestoreMode(stored["mode"]), "claim_mode": ClaimMode(stored["claim_mode"])}
        return Restore(**{**stored, **modes})


def restore_of_change(change: Operation, pending: Restore | None) -> Restore:
    """Returns how the new revision of a change restores.

    Args:
        change: The change; its savepoint, if any, is published.
        pending: The job's pending restore; a change from the last state keeps it.
    """
    allows = change.allow_non_restored_state
    if change.rewind_to is not None:
        return Restore(change.id, RestoreMode.REWIND, change.rewind_to, allow_non_restored_state=allows)
    match change.upgrade_mode:
        case UpgradeMode.STATELESS:
            return Restore(change.id, RestoreMode.STATELESS)
        case UpgradeMode.LAST_STATE if pending is not None:
            return replace(pending, allow_non_restored_state=pending.allow_non_restored_state or allows)
        case _:
            return Restore(change.id, location=change.location, allow_non_restored_state=allows)


def restore_of_roll_back(change: Operation, *, has_rewound: bool = False) -> Restore:
    """Returns how the old revision restores after a change that failed.

    A new revision may have dropped or rewritten state, or begun without state. So the old revision goes back to exactly
    the savepoint, or to the earlier savepoint that the new revision has gone back to. A rescale and a restart keep all
    state, as does a change from the last state that had to keep everything: there the job continues from the log, with
    the commits of the new driver.

    Args:
        change: The change.
        has_rewound: Whether a driver of the new revision has restored its state.
    """
    id_ = f"{change.id}.back"
    keeps_state = change.upgrade_mode is UpgradeMode.LAST_STATE and not change.allow_non_restored_state
    if not change.kind.traits.may_change_program or keeps_state or change.location is None:
        return Restore(id_, location=change.location)
    is_left = has_rewound and change.rewind_to is not None  # the sinks have taken back what the savepoint needs
    return Restore(id_, RestoreMode.REWIND, change.rewind_to if is_left else change.location)

"""How the new revision of a change restores, and how the old one does after it was rolled back."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.lifecycle.restoring import Restore, restore_of_change, restore_of_roll_back
from keyscale.db.models import Operation
from keyscale.vocabulary import ClaimMode, OperationKind, RestoreMode, UpgradeMode

SAVEPOINT = "file:///store/j/savepoints/c/manifest.json"
EARLIER = "file:///store/j/savepoints/b/manifest.json"


def change(**facts: Any) -> Operation:
    given = {
        "id": "c",
        "kind": OperationKind.UPGRADE,
        "upgrade_mode": UpgradeMode.SAVEPOINT,
        "allow_non_restored_state": False,
        "rewind_to": None,
        "location": SAVEPOINT,
    }
    return Operation(**{**given, **facts})


def test_a_restore_is_stored_and_read_as_it_was() -> None:
    pending = Restore("w", RestoreMode.REWIND, SAVEPOINT, ClaimMode.CLAIM, allow_non_restored_state=True)
    assert Restore.load(pending.dump()) == pending


def test_a_new_revision_goes_on_from_its_savepoint_and_drops_state_only_if_allowed() -> None:
    assert restore_of_change(change(), None) == Restore("c", location=SAVEPOINT)
    assert restore_of_change(change(allow_non_restored_state=True), None).allow_non_restored_state


def test_a_rollback_to_an_earlier_savepoint_rewinds_whatever_the_present_state_is() -> None:
    pending = restore_of_change(change(kind=OperationKind.ROLLBACK, rewind_to=EARLIER), None)
    assert pending == Restore("c", RestoreMode.REWIND, EARLIER)


def test_without_state_nothing_is_restored() -> None:
    pending = restore_of_change(change(upgrade_mode=UpgradeMode.STATELESS), None)
    assert pending == Restore("c", RestoreMode.STATELESS)


@pytest.mark.parametrize("pending_allows", [False, True])
@pytest.mark.parametrize("change_allows", [False, True])
def test_state_may_be_dropped_if_the_pending_restore_or_the_change_allows_it(
    pending_allows: bool, change_allows: bool
) -> None:
    pending = Restore("w", RestoreMode.REWIND, EARLIER, allow_non_restored_state=pending_allows)
    last = change(upgrade_mode=UpgradeMode.LAST_STATE, allow_non_restored_state=change_allows)
    assert restore_of_change(last, pending).allow_non_restored_state is (pending_allows or change_allows)


def test_a_change_from_the_last_state_keeps_a_rewind_that_no_attempt_has_fulfilled() -> None:
    pending = Restore("w", RestoreMode.REWIND, EARLIER)
    last = change(upgrade_mode=UpgradeMode.LAST_STATE, allow_non_restored_state=True)
    assert restore_of_change(last, pending) == Restore("w", RestoreMode.REWIND, EARLIER, allow_non_restored_state=True)
    assert restore_of_change(change(), pending).mode is RestoreMode.CONTINUE, (
        "its savepoint is newer than the pending restore"
    )


@pytest.mark.parametrize("mode", [UpgradeMode.SAVEPOINT, UpgradeMode.STATELESS])
def test_an_upgrade_that_failed_goes_back_to_exactly_its_savepoint(mode: UpgradeMode) -> None:
    assert restore_of_roll_back(change(upgrade_mode=mode)) == Restore("c.back", RestoreMode.REWIND, SAVEPOINT)


def test_once_the_sinks_went_back_to_an_earlier_savepoint_a_failed_change_continues_from_there() -> None:
    failed = change(kind=OperationKind.ROLLBACK, rewind_to=EARLIER)
    assert restore_of_roll_back(failed, has_rewound=True) == Restore("c.back", RestoreMode.REWIND, EARLIER)
    assert restore_of_roll_back(failed, has_rewound=False) == Restore("c.back", RestoreMode.REWIND, SAVEPOINT)
    assert restore_of_roll_back(change(), has_rewound=True).location == SAVEPOINT


def test_after_a_change_that_kept_all_state_the_job_goes_on_from_its_log() -> None:
    for kept in (change(kind=OperationKind.RESCALE), change(upgrade_mode=UpgradeMode.LAST_STATE)):
        assert restore_of_roll_back(kept) == Restore("c.back", RestoreMode.CONTINUE, SAVEPOINT)
    dropped = change(upgrade_mode=UpgradeMode.LAST_STATE, allow_non_restored_state=True)
    assert restore_of_roll_back(dropped).mode is RestoreMode.REWIND

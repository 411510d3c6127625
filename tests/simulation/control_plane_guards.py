"""The control plane's guards, each with a way to switch it off, and what the auditor then finds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.api.lifecycle import change_phases
from keyscale.api.lifecycle.steps import AdvanceChange, CompleteChange
from keyscale.api.maintenance import object_removal
from keyscale.db.repositories import leaders
from keyscale.jobs.runtime.driver import attempt
from keyscale.state.documents import claim
from keyscale.state.retention import deleted_job
from keyscale.state.retention.deleted_job import DeletedObjects
from keyscale.vocabulary import ChangePhase
from tests.simulation.controlled import play_controlled
from tests.simulation.crash_points import KINDS
from tests.simulation.guards import NEEDED
from tests.simulation.history import Event, History

if TYPE_CHECKING:
    from tests.simulation.database import Database


@dataclass(frozen=True, slots=True)
class ControlPlaneGuard:
    """A guard of the control plane.

    Attributes:
        name: What the guard holds, as a sentence.
        off: What is replaced so that nothing holds it: the object, its attribute, and the replacement.
        finding: A pattern of what the auditor finds.
        history: The history that shows it.
    """

    name: str
    off: tuple[tuple[Any, str, object], ...]
    finding: str
    history: History

    def findings(self, database: Database, *, is_off: bool) -> list[str]:
        """Plays the history with the guard on or off; returns what is found of what is expected."""
        found = play_controlled(self.history, database, patches=list(self.off) if is_off else None).findings
        return [finding for finding in found if re.search(self.finding, finding)]


_TWO_LEADERS = History(
    0,
    (
        Event("records", 0.0, {"keys": [0, 1, 2, 3, 4, 5, 0, 1]}),
        Event("idle", 0.0, {"seconds": 14.0}),
        Event("rescale_mode", 0.0, {"mode": "STANDBY"}),
        Event("freeze_control", 0.0, {"host": "a", "seconds": 30.0}),
        Event("idle", 0.0, {"seconds": 35.0}),
        Event("rescale", 0.0, {"parallelism": 3}),
        Event("idle", 0.0, {"seconds": 20.0}),
    ),
    has_control_plane=True,
)

_TWO_CLAIMS = History(
    0,
    (
        Event("records", 0.0, {"keys": [0, 1, 2, 3, 4, 5, 0, 1]}),
        Event("idle", 0.0, {"seconds": 14.0}),
        Event("stop", 0.0, {"drain": False}),
        Event("run_from", 12.0, {"which": "latest", "claim": True, "parallelism": 1}),
        Event("clone", 1.5, {"parallelism": 2, "claim": True}),
        *(Event("records", 12.0, {"keys": [0, 1, 2, 3, 4, 5]}) for _ in range(4)),
        Event("idle", 0.0, {"seconds": 12.0}),
    ),
    has_control_plane=True,
)
_FAILING_UPGRADE = History(
    0,
    (
        Event("records", 0.0, {"keys": [0, 1, 2, 3, 4, 5, 0, 1]}),
        Event("upgrade", 14.0, {"fails": True, "mode": "savepoint"}),
        Event("must_roll_back"),
        *(Event("records", 1.0, {"keys": [0, 1, 2]}) for _ in range(6)),
        Event("idle", 0.0, {"seconds": 20.0}),
    ),
    has_control_plane=True,
)


def _complete_at_once(_active: Any, change: Any, _timeouts: Any) -> Any:
    is_restoring = change.phase is ChangePhase.RESTORE
    return AdvanceChange(ChangePhase.VERIFY) if is_restoring else CompleteChange(False, None)


CONTROL_PLANE = (
    ControlPlaneGuard(
        "A change is complete when its new driver has run a batch with input.",
        ((change_phases, "_verify", _complete_at_once),),
        "was not rolled back",
        _FAILING_UPGRADE,
    ),
    ControlPlaneGuard(
        "A savepoint that another job has claimed is refused.",
        ((claim, "check_claim", lambda *_: None), (attempt, "check_claim", lambda *_: None)),
        NEEDED,
        _TWO_CLAIMS,
    ),
    ControlPlaneGuard(
        "Only the leader of the present epoch takes steps.",
        ((leaders, "share_epoch", lambda *_: True),),
        "took a step while .* led",
        _TWO_LEADERS,
    ),
    ControlPlaneGuard(
        "A deleted job's claim of a savepoint ends.",
        ((deleted_job, "_end_claim", lambda *_: False),),
        "claim.json is left",
        KINDS["start from a claimed savepoint"],
    ),
    ControlPlaneGuard(
        "The objects of a deleted job are deleted.",
        ((object_removal, "delete_job_objects", lambda *_, **__: DeletedObjects(0, 0, 0, ())),),
        "is left of a deleted job",
        KINDS["deletion"],
    ),
)

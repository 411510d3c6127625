"""The kinds of events, for programs."""

from __future__ import annotations

from keyscale.vocabulary import CHANGES, CommandKind, OperationStatus

EVENT_KINDS = frozenset(
    {
        "ACCESS_DENIED",
        "ARTIFACT_DELETED",
        "ARTIFACT_UPLOADED",
        "ATTEMPT_CREATED",
        "ATTEMPT_REPLACED",
        "CHECKPOINT_VERIFIED",
        "HISTORY_REMOVED",
        "JOB_CANCELLED",
        "JOB_CREATED",
        "JOB_DELETED",
        "JOB_FAILED",
        "JOB_FINISHED",
        "JOB_OBJECTS_DELETED",
        "JOB_OBJECTS_KEPT",
        "JOB_REBUILT",
        "JOB_RECOVERED",
        "JOB_RUNNING",
        "JOB_SET_ASIDE",
        "JOB_STARTED",
        "JOB_STOPPED",
        "JOB_TAKEN_UP",
        "LOST_RUN_KILLED",
        "REVISION_CREATED",
        "REVISION_FOLLOWED",
        "RUNS_REMOVED",
        "RUN_FAILED",
        "SAVEPOINT_KEPT",
        "SECRET_LABELLED",
        "SIGNED_IN",
        "SIGNED_OUT",
        "START_WAITS",
        "STOP_FAILED",
        "STOP_REQUESTED",
        "TOKEN_CREATED",
        "TOKEN_REVOKED",
        "VERIFICATION_REQUESTED",
        *(f"{noun}_{what}" for noun in ("CHECKPOINT", "SAVEPOINT") for what in ("REQUESTED", "DISCARDED", "DELETED")),
        *(f"{kind}_{status}" for kind in CommandKind for status in ("COMPLETED", "FAILED")),
        *(f"{kind}_{what}" for kind in CHANGES for what in ("REQUESTED", "PHASE", "CANCEL_REQUESTED")),
        *(f"{kind}_{how}" for kind in CHANGES for how in OperationStatus if how is not OperationStatus.IN_PROGRESS),
    }
)
"""All kinds that events have."""

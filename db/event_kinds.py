"""The kinds of events, and which notification is about each."""

from __future__ import annotations

from keyscale.vocabulary import CHANGES, CommandKind, NotificationKind, OperationKind, OperationStatus

LASTING = frozenset(
    {
        NotificationKind.RESTARTING_IN_A_LOOP,
        NotificationKind.CHECKPOINTS_LATE,
        NotificationKind.RESTORABLE_SOON_OVER,
        NotificationKind.STORE_AWAY,
    }
)
"""The kinds about an alarm that lasts: one event reports its begin, and another event its end."""
ALARM_ENDED = "_ENDED"
"""The end of the kind of the event that ends an alarm."""
_ENDINGS = (OperationStatus.COMPLETED, OperationStatus.ROLLED_BACK, OperationStatus.FAILED)
_NOTIFICATIONS = {
    **{str(kind): kind for kind in NotificationKind if not kind.startswith("OPERATION_")},
    **{f"{kind}{ALARM_ENDED}": kind for kind in LASTING},
    **{f"{kind}_{how}": NotificationKind(f"OPERATION_{how}") for kind in OperationKind for how in _ENDINGS},
}


def notification_of(event_kind: str) -> NotificationKind | None:
    """Returns the kind of the notification about an event, if any."""
    return _NOTIFICATIONS.get(event_kind)


def command_event(command: CommandKind, status: str) -> str:
    """Returns the kind of the event of a command's result.

    A rescale goes on with a new driver after its command has failed, so the command has a name of its own.
    """
    return f"{'LIVE_RESCALE' if command is CommandKind.RESCALE else command}_{status}"


EVENT_KINDS = frozenset(
    {
        "ACCESS_DENIED",
        "APPROVAL_REQUESTED",
        "ARTIFACT_CHECKED",
        "ARTIFACT_DELETED",
        "ARTIFACT_UPLOADED",
        "ATTEMPT_CREATED",
        "ATTEMPT_REPLACED",
        "CHANGE_APPROVED",
        "CHECKPOINT_VERIFIED",
        "DIAGNOSTIC_REQUESTED",
        "HISTORY_REMOVED",
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
        "JOB_SLEEPING",
        "JOB_STOPPED",
        "JOB_TAKEN_UP",
        "LOST_RUN_KILLED",
        "NOTIFICATION_FAILED",
        "REVISION_CREATED",
        "REVISION_FOLLOWED",
        "RUNS_REMOVED",
        "RUN_FAILED",
        "SAVEPOINT_KEPT",
        "SCALING_DECIDED",
        "SCALING_MEASURED",
        "SECRET_LABELLED",
        "SIGNED_IN",
        "SIGNED_OUT",
        "START_WAITS",
        "STATE_CHANGED",
        "STATE_CHANGE_REQUESTED",
        "SUBSCRIPTION_CREATED",
        "SUBSCRIPTION_DELETED",
        "SUBSCRIPTION_TESTED",
        "TOKEN_CREATED",
        "TOKEN_REVOKED",
        "VERIFICATION_REQUESTED",
        *(f"{noun}_{what}" for noun in ("CHECKPOINT", "SAVEPOINT") for what in ("DISCARDED", "DELETED")),
        *_NOTIFICATIONS,
        *(command_event(kind, status) for kind in CommandKind for status in ("COMPLETED", "FAILED")),
        *(kind.request_event for kind in OperationKind),
        *(f"{kind}_{what}" for kind in CHANGES for what in ("PHASE", "CANCEL_REQUESTED")),
        *(f"{kind}_{how}" for kind in OperationKind for how in OperationStatus if how.has_ended),
    }
)
"""All kinds that events have."""

"""The status of a checkpoint or savepoint."""

from enum import StrEnum


class CheckpointStatus(StrEnum):
    """The status of a checkpoint or savepoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SUBSUMED = "SUBSUMED"
    DISCARDED = "DISCARDED"

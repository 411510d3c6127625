"""The savepoints of a job."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import SnapshotOwner

from ...shapes import Answer, ListAnswer


class SavepointAnswer(Answer):
    """A savepoint that exists. The operation that took it has its id."""

    savepoint_id: str
    checkpoint_id: int = Field(description="Its number among the job's checkpoints.")
    external_path: str = Field(description="Location of its manifest.")
    owner: SnapshotOwner = Field(
        description="PLATFORM: it was taken for a change; the platform deletes it when nothing needs it."
    )
    attempt: int
    trigger_timestamp: int
    latest_ack_timestamp: int | None
    end_to_end_duration: int
    checkpointed_size: int = Field(description="Bytes uploaded for it.")
    state_size: int = Field(description="Bytes of the whole state.")


class SavepointList(ListAnswer):
    """A job's savepoints, the newest first."""

    savepoints: list[SavepointAnswer]

"""Care for checkpoints and savepoints: delete, verify and compare them."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import CommandStatus

from ...shapes import Answer, ListAnswer, Request
from .checkpoint import CheckpointAnswer


class DeletionAnswer(Answer):
    """The effects of a snapshot's deletion, or why it is refused."""

    job_id: str
    checkpoint_id: int
    savepoint_id: str | None
    location: str | None
    allowed: bool
    reasons: list[str] = Field(description="Why it is still needed; empty if it may be deleted.")
    consequences: list[str] = Field(description="Things that would no longer be possible.")
    freed_objects: int = Field(description="Objects that nothing else needs.")
    freed_bytes: int
    shared_bytes: int = Field(description="Size of its files that stay, as other checkpoints need them.")


class VerifyRequest(Request):
    """How thoroughly a checkpoint or savepoint is verified."""

    hashes: bool = Field(
        default=False, description="Read every file in full and compare its hash, not its length alone."
    )


class VerificationAnswer(Answer):
    """The result of verifying whether a job can start from a snapshot."""

    status: CommandStatus = Field(description="FAILED: the store did not answer, or the control plane ended meanwhile.")
    hashes: bool
    started_at_ms: int
    ended_at_ms: int | None = None
    files: int | None = Field(default=None, description="Its files; null while its manifest was not read.")
    files_checked: int = 0
    bytes_read: int = 0
    restorable: bool | None = Field(
        default=None,
        description="Whether all that it names is there, its sources still have the records after it as far as that is"
        " known, and nothing else keeps its job from starting from it.",
    )
    sources_checked: bool = Field(
        default=False, description="Whether it is known of all of its sources if they still have the records after it."
    )
    sources_unchecked: str | None = Field(
        default=None, description="Why that is unknown, such as `the job does not run`."
    )
    problems: list[str] = Field(default_factory=list, description="The first 20 problems.")
    problem_count: int = 0


class OperatorComparison(Answer):
    """One operator in two checkpoints.

    Numbers of files and bytes are null if a manifest is gone.

    Files are compared by their content. As in the sizes, all files of each subtask count, even if two subtasks have
    files with the same content.
    """

    uid: str
    from_state_size: int | None = Field(description="null: the operator is not in it.")
    to_state_size: int | None
    from_entries: int | None = Field(description="Approximate number of entries of the state.")
    to_entries: int | None
    to_checkpointed_size: int | None = Field(
        description="The increment of the second checkpoint: bytes that it has added to the store."
    )
    shared_files: int | None = Field(
        default=None, description="Files of the second checkpoint with content that the first checkpoint has."
    )
    shared_bytes: int | None = None
    only_from_files: int | None = None
    only_from_bytes: int | None = None
    only_to_files: int | None = None
    only_to_bytes: int | None = None


class ComparisonAnswer(ListAnswer):
    """Two checkpoints or savepoints of a job, operator by operator."""

    from_checkpoint: CheckpointAnswer
    to_checkpoint: CheckpointAnswer
    operators: list[OperatorComparison]
    reason: str | None = Field(description="Why the files could not be compared; null if they were.")

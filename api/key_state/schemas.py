"""The answers about the state of a key."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ..shapes import Answer


class StateRows(Answer):
    """The rows of a key in one state, or its timers."""

    state: str
    kind: str
    rows: list[dict[str, Any]] = Field(
        description="Each with its `value`, or the `time_ms` of a timer, and with what else identifies the row."
    )


class KeyStateAnswer(Answer):
    """The state of a key after one committed batch."""

    batch_id: int = Field(description="The batch that the state is after; -1 before any.")
    source_positions: dict[str, list[str]] = Field(description="The end of that batch in each source, by uid.")
    key: dict[str, Any]
    key_group: int
    states: list[StateRows]
    is_truncated: bool = Field(description="Whether there are more rows than an answer holds.")


class KeyChangeAnswer(Answer):
    """A change of one entry of a key."""

    batch_id: int
    attempt: int
    committed_at_ms: int
    state: str
    change: Literal["put", "removed"]
    row: dict[str, Any]


class KeyHistoryAnswer(Answer):
    """The changes of a key in a job's stored batches, oldest first."""

    key: dict[str, Any]
    key_group: int
    changes: list[KeyChangeAnswer]
    is_truncated: bool = Field(description="Whether there are older changes than the answer holds.")

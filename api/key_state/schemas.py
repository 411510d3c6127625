"""The answers about the state of a key."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from keyscale.vocabulary import STATE_CHANGES_MAX

from ..shapes import NUMBER_MAX, Answer, OperationId, Request


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
    change: Literal["PUT", "REMOVED"]
    row: dict[str, Any]


class KeyHistoryAnswer(Answer):
    """The changes of a key in a job's stored batches, oldest first."""

    key: dict[str, Any]
    key_group: int
    changes: list[KeyChangeAnswer]
    is_truncated: bool = Field(description="Whether there are older changes than the answer holds.")


class KeyChangeItem(Request):
    """A change of a key's state.

    Values are JSON, as the state of the key is shown.
    """

    operator: str = Field(max_length=1000, description="The operator's uid.")
    state: str = Field(max_length=1000, description="The state, or the timers.")
    key: str = Field(max_length=10_000, description="The key, as for showing its state.")
    value: Any = Field(
        default=None,
        description="The new value: of a map without `map_key` an object with all entries, of a list all elements.",
    )
    deletes: bool = Field(default=False, description="Whether to delete the state of the key instead.")
    namespace: Any = Field(default=None, description="The namespace, for a state with namespaces.")
    map_key: Any = Field(default=None, description="The entry of a map that alone changes.")
    time_ms: int | None = Field(
        default=None, ge=-NUMBER_MAX, le=NUMBER_MAX, description="The time of the timer that is set or deleted."
    )


class _NewSavepointRequest(Request):
    """The savepoint that a change of state writes."""

    id: OperationId | None = Field(
        default=None,
        description="The id of the new savepoint; null: any. A repeated request gets the first answer.",
    )
    checkpoint_id: int | None = Field(
        default=None,
        ge=1,
        le=NUMBER_MAX,
        description="The checkpoint or savepoint to derive from; null: the latest.",
    )


class KeyChangeRequest(KeyChangeItem, _NewSavepointRequest):
    """A change of one key's state in a new savepoint."""


class KeyChangesRequest(_NewSavepointRequest):
    """Changes of several keys' state in one new savepoint."""

    changes: list[KeyChangeItem] = Field(
        min_length=1,
        max_length=STATE_CHANGES_MAX,
        description="The changes, in order. Either all take effect, or none does.",
    )


class KeyEffect(Answer):
    """The effect of a change of a key's state."""

    key: dict[str, Any]
    before: list[dict[str, Any]] = Field(description="The rows that were removed or replaced, without the key.")
    after: list[dict[str, Any]] = Field(description="The rows in their place.")


class _NewSavepointAnswer(Answer):
    """A new savepoint with changed state."""

    savepoint_id: str
    checkpoint_id: int = Field(description="Its number among the job's checkpoints.")
    location: str = Field(description="Where a job starts from it.")


class ChangedKeyAnswer(KeyEffect, _NewSavepointAnswer):
    """A new savepoint in which the state of one key is changed."""


class ChangedKeysAnswer(_NewSavepointAnswer):
    """A new savepoint in which the state of several keys is changed."""

    changes: list[KeyEffect] = Field(description="The effects, in the order of the changes.")

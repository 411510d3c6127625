"""Sizes of key groups over time."""

from __future__ import annotations

from pydantic import Field

from ...shapes import Answer


class OwnedRange(Answer):
    """The key groups that a subtask owns."""

    index: int
    key_group_start: int
    key_group_end: int


class OperatorKeyGroups(Answer):
    """One operator's key groups at checkpoints with known sizes, oldest first."""

    uid: str
    subtasks: list[OwnedRange] = Field(description="The owners of the key groups now.")
    at_ms: list[int]
    bytes: list[list[int]] = Field(description="Per checkpoint, the bytes of each group of `group_width` key groups.")
    entries: list[list[int]]


class KeyGroupsAnswer(Answer):
    """The key groups of a job over its checkpoints.

    Only checkpoints with stored parts count; with many key groups, only some of these.
    """

    max_parallelism: int
    group_width: int = Field(description="How many neighbouring key groups one value sums.")
    operators: list[OperatorKeyGroups]

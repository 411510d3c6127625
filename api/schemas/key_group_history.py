"""Sizes of key groups over time."""

from __future__ import annotations

from pydantic import Field

from .base import Answer


class OwnedRange(Answer):
    """The key groups that a subtask owns."""

    index: int
    key_group_start: int
    key_group_end: int


class OperatorKeyGroups(Answer):
    """One operator's key groups, at each checkpoint that says their sizes; the oldest first."""

    uid: str
    subtasks: list[OwnedRange] = Field(description="The owners of the key groups now.")
    at_ms: list[int]
    bytes: list[list[int]] = Field(description="Per checkpoint, the bytes of each group of `group_width` key groups.")
    entries: list[list[int]]


class KeyGroupsAnswer(Answer):
    """The key groups of a job over the checkpoints whose parts are kept; with many key groups, over some of these."""

    max_parallelism: int
    group_width: int = Field(description="How many neighbouring key groups one value sums up.")
    operators: list[OperatorKeyGroups]

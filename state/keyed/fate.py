from __future__ import annotations

from enum import StrEnum


class Fate(StrEnum):
    """The fate of a state when another program opens it."""

    KEPT = "kept"
    NEW = "new"  # begins empty
    MIGRATED = "migrated"  # rules read the old values, which are written in the new form when they next change
    NOT_DECLARED = "not declared"  # stays unread and unchanged, unless the program declares it later
    DROPPED = "dropped"  # with its operator
    INCOMPATIBLE = "incompatible"  # the new program cannot open it

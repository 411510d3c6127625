"""What goes wrong with a subtask's store beyond its files and the object store."""

from __future__ import annotations

from state.errors import KeyscaleError


class LineageError(KeyscaleError):
    """A task asks for a version that its restore plan does not lead to."""

    code = "STATE_LINEAGE_MISMATCH"
    advice = "The batch is run again; report this with the driver's log if it happens more than once."


class StoreUnusableError(KeyscaleError):
    """A batch failed in the middle of being finished; the open store may not be used any more."""

    code = "STATE_SUBTASK_STORE_UNUSABLE"
    retryable = True
    advice = "The batch is run again on rebuilt state."

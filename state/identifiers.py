"""Types of identifiers, so that mypy tells a subtask's index from a batch's number."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
OperatorUid = NewType("OperatorUid", str)
SubtaskIndex = NewType("SubtaskIndex", int)
BatchId = NewType("BatchId", int)
CheckpointId = NewType("CheckpointId", int)
Attempt = NewType("Attempt", int)

"""Distinct types of identifiers, so that mypy finds a mix-up."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
OperatorUid = NewType("OperatorUid", str)
SubtaskIndex = NewType("SubtaskIndex", int)
BatchId = NewType("BatchId", int)
CheckpointId = NewType("CheckpointId", int)
Attempt = NewType("Attempt", int)

"""The tables, one module a noun."""

from __future__ import annotations

from db.models.access_token import Token
from db.models.artifact import Artifact, ArtifactChunk
from db.models.attempt import Attempt
from db.models.checkpoint import Checkpoint, CheckpointSubtask
from db.models.command import Command
from db.models.event import Event
from db.models.job import Job
from db.models.rescale import Rescale

__all__ = [
    "Artifact",
    "ArtifactChunk",
    "Attempt",
    "Checkpoint",
    "CheckpointSubtask",
    "Command",
    "Event",
    "Job",
    "Rescale",
    "Token",
]

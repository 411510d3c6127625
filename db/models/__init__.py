"""The tables, one module per noun."""

from __future__ import annotations

from keyscale.db.models.access_token import Token
from keyscale.db.models.artifact import Artifact, ArtifactChunk
from keyscale.db.models.attempt import Attempt
from keyscale.db.models.browser_session import BrowserSession
from keyscale.db.models.change import Change
from keyscale.db.models.checkpoint import Checkpoint, CheckpointDay, CheckpointSubtask
from keyscale.db.models.command import Command
from keyscale.db.models.deleted_job import DeletedJob
from keyscale.db.models.event import Event
from keyscale.db.models.job import Job
from keyscale.db.models.job_exception import JobException
from keyscale.db.models.last_heartbeat import LastHeartbeat
from keyscale.db.models.leader import Leader
from keyscale.db.models.replica import Replica
from keyscale.db.models.revision import Revision
from keyscale.db.models.series_point import SeriesPoint

__all__ = [
    "Artifact",
    "ArtifactChunk",
    "Attempt",
    "BrowserSession",
    "Change",
    "Checkpoint",
    "CheckpointDay",
    "CheckpointSubtask",
    "Command",
    "DeletedJob",
    "Event",
    "Job",
    "JobException",
    "LastHeartbeat",
    "Leader",
    "Replica",
    "Revision",
    "SeriesPoint",
    "Token",
]

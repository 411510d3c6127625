"""The tables, one module per noun."""

from __future__ import annotations

from .access_token import Token
from .alarm import Alarm
from .artifact import Artifact, ArtifactChunk
from .attempt import Attempt
from .browser_session import BrowserSession
from .checkpoint import Checkpoint, CheckpointDay, CheckpointSubtask
from .deleted_job import DeletedJob
from .diagnostic import Diagnostic
from .event import Event
from .job import Job
from .job_exception import JobException
from .last_heartbeat import LastHeartbeat
from .leader import Leader
from .operation import Operation
from .replica import Replica, ReplicaKey
from .revision import Revision
from .scaling_decision import ScalingDecision
from .secret_labels import SecretLabels
from .series_point import SeriesPoint
from .subscription import Delivery, Subscription

__all__ = [
    "Alarm",
    "Artifact",
    "ArtifactChunk",
    "Attempt",
    "BrowserSession",
    "Checkpoint",
    "CheckpointDay",
    "CheckpointSubtask",
    "DeletedJob",
    "Delivery",
    "Diagnostic",
    "Event",
    "Job",
    "JobException",
    "LastHeartbeat",
    "Leader",
    "Operation",
    "Replica",
    "ReplicaKey",
    "Revision",
    "ScalingDecision",
    "SecretLabels",
    "SeriesPoint",
    "Subscription",
    "Token",
]

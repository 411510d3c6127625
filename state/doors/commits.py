"""A job's commits, for its driver: log, recovery, checkpoints and retention."""

from __future__ import annotations

from ..documents.claim import ClaimMode, check_claim, take_claim
from ..documents.job_time import EventTime, JobTime, event_time_ms
from ..documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from ..documents.manifest import OperatorDeclaration, OperatorSnapshot, distinct_bytes, known_files, write_manifest
from ..documents.rewind import Rewind
from ..documents.source_positions import KINDS_NAME, ORDER_NAME, BatchEnd, ReadFiles, SparkFiles, write_positions
from ..log.commit_log import CommitLog, FencedError
from ..log.output_history import keeps_output_of, output_history, output_history_after
from ..log.recovery import missing_files, recover
from ..log.resolution import OperatorHistory, ResumePoint, resolve
from ..restore.program_change import rekeyed
from ..retention.deletion import Deleted, delete_planned, gather_facts
from ..retention.deletion_plan import RetentionPolicy, plan_deletion
from ..snapshot.own_copy import own_copy

__all__ = [
    "KINDS_NAME",
    "ORDER_NAME",
    "AttemptOpened",
    "BatchCommitted",
    "BatchEnd",
    "BatchPlanned",
    "ClaimMode",
    "CommitLog",
    "Deleted",
    "EventTime",
    "FencedError",
    "JobTime",
    "LogEntry",
    "OperatorDeclaration",
    "OperatorHistory",
    "OperatorSnapshot",
    "ReadFiles",
    "ResumePoint",
    "RetentionPolicy",
    "Rewind",
    "SparkFiles",
    "check_claim",
    "delete_planned",
    "distinct_bytes",
    "event_time_ms",
    "gather_facts",
    "keeps_output_of",
    "known_files",
    "missing_files",
    "output_history",
    "output_history_after",
    "own_copy",
    "plan_deletion",
    "recover",
    "rekeyed",
    "resolve",
    "take_claim",
    "write_manifest",
    "write_positions",
]

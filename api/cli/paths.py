"""Paths of the API; what a user typed is always quoted, never a path of its own."""

from __future__ import annotations

from urllib.parse import quote


def job_path(job: str, *rest: str | int) -> str:
    """The path of a job, or of something that belongs to it."""
    return "/".join(["/jobs", quote(job, safe=""), *(quote(str(part), safe="") for part in rest)])


def artifact_path(artifact_id: str) -> str:
    """The path of an artifact."""
    return f"/artifacts/{quote(artifact_id, safe='')}"

"""Paths of the API, for requests by path.

Their parts are quoted, so that they cannot form other paths.
"""

from __future__ import annotations

from urllib.parse import quote


def job_path(job: str, *rest: str | int) -> str:
    """Returns the path of a job or of a part of it."""
    return "/".join(["/v1/jobs", quote(job, safe=""), *(quote(str(part), safe="") for part in rest)])


def artifact_path(artifact_id: str) -> str:
    """Returns the path of an artifact."""
    return f"/v1/artifacts/{quote(artifact_id, safe='')}"


def token_path(token_id: str) -> str:
    """Returns the path of a token."""
    return f"/v1/tokens/{quote(token_id, safe='')}"


def subscription_path(subscription_id: str, *rest: str) -> str:
    """Returns the path of a subscription or of a part of it."""
    return "/".join(["/v1/subscriptions", quote(subscription_id, safe=""), *rest])

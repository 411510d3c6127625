"""The replicas of the control plane."""

from __future__ import annotations

from pydantic import Field

from ..shapes import Answer


class ReplicaAnswer(Answer):
    """One control plane on the database."""

    url: str = Field(description="Where drivers and other replicas reach it.")
    is_alive: bool = Field(description="Whether it gave a sign of life within 30 s.")
    seen_at_ms: int = Field(description="Its last sign of life.")
    leads_since_ms: int | None = Field(description="Since when it leads; null: it does not lead.")


class ReplicaList(Answer):
    """All control planes on the database that are alive.

    They gave a sign of life within 50 minutes, and did not end properly.
    """

    replicas: list[ReplicaAnswer]

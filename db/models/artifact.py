"""The tables of artifacts and of their bytes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base, closed_set
from ..statuses import ArtifactKind


class Artifact(Base):
    """One immutable version of a file that a user uploaded under a name. Its bytes are found by their hash.

    `uploaded_by` is the id of the user who uploaded it first; None if an older version of Keyscale stored it.
    `contents` is what the inspection of the upload found in it; None likewise.
    """

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("name", "version"), Index("ix_artifacts_created_at_ms", "created_at_ms", "id"))

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[int]
    filename: Mapped[str]
    kind: Mapped[ArtifactKind] = mapped_column(closed_set(ArtifactKind, "kind"))
    sha256: Mapped[str] = mapped_column(index=True)
    size_bytes: Mapped[int]
    created_at_ms: Mapped[int]
    uploaded_by: Mapped[str | None]
    contents: Mapped[dict[str, Any] | None]


class ArtifactChunk(Base):
    """A piece of an artifact's bytes; versions and names with the same bytes share them."""

    __tablename__ = "artifact_chunks"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)

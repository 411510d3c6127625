"""The tables of artifacts and of their bytes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import ArtifactKind

from ..base import Base, closed_set


class Artifact(Base):
    """An immutable version of an uploaded file, with its bytes' hash.

    `uploaded_by` is the id of the user who uploaded it first; None if an older version of Keyscale stored it.
    `contents` is the result of inspecting the upload; None likewise.
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
    """A piece of bytes, shared by all versions and names with them."""

    __tablename__ = "artifact_chunks"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)

"""The table of user tokens."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import Role

from ..base import Base, closed_set


class Token(Base):
    """A user's token, stored as a hash.

    The token is random and long, so a plain SHA-256 cannot be reversed. `job_names` and `job_labels` are its scope; if
    both are empty, it covers every job.
    """

    __tablename__ = "tokens"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    role: Mapped[Role] = mapped_column(closed_set(Role, "role"))
    job_names: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    job_labels: Mapped[dict[str, str]] = mapped_column(default=dict, server_default="{}")
    created_by: Mapped[str]
    created_at_ms: Mapped[int]
    expires_at_ms: Mapped[int | None]
    revoked_at_ms: Mapped[int | None]

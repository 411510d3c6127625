"""The table of user tokens."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from keyscale.db.base import Base, closed_set
from keyscale.db.statuses import Role


class Token(Base):
    """A user's token. Only its hash is stored: the token is random and long, so a plain SHA-256 cannot be reversed."""

    __tablename__ = "tokens"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[Role] = mapped_column(closed_set(Role, "role"))
    created_at_ms: Mapped[int]
    revoked_at_ms: Mapped[int | None]

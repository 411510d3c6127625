"""The table of the sessions of browsers."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import Role

from ..base import Base, closed_set


class BrowserSession(Base):
    """A browser's session of a signed-in user, with its cookie's hash.

    A session that began with a token has that token's rights for as long as the token is valid. Any other session began
    at an OpenID Connect issuer, and has the role of its row. It covers the jobs with at least one of its labels (a name
    and a value each), or every job if it has none.
    """

    __tablename__ = "browser_sessions"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    token_sha256: Mapped[str | None] = mapped_column(ForeignKey("tokens.sha256", ondelete="CASCADE"), index=True)
    user_id: Mapped[str]
    name: Mapped[str]
    role: Mapped[Role] = mapped_column(closed_set(Role, "role"))
    job_labels: Mapped[list[list[str]]] = mapped_column(default=list, server_default="[]")
    created_at_ms: Mapped[int]
    expires_at_ms: Mapped[int] = mapped_column(index=True)

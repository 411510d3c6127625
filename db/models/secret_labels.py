"""The table of labels of secrets."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class SecretLabels(Base):
    """The labels of one secret, by which scopes cover it."""

    __tablename__ = "secret_labels"

    name: Mapped[str] = mapped_column(primary_key=True)
    labels: Mapped[dict[str, str]]

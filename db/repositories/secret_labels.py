"""Queries on the labels of secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from ..models import SecretLabels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.orm import Session


def find(session: Session, names: Collection[str]) -> dict[str, dict[str, str]]:
    """Returns the labels of the secrets of these names that have labels."""
    rows = select(SecretLabels.name, SecretLabels.labels).where(SecretLabels.name.in_(names))
    return dict(session.execute(rows).all())


def list_all(session: Session) -> dict[str, dict[str, str]]:
    """Returns the labels of all secrets that have labels, by their names."""
    return dict(session.execute(select(SecretLabels.name, SecretLabels.labels)).all())


def replace(session: Session, name: str, labels: Mapping[str, str]) -> None:
    """Stores all labels of a secret; without labels it has no row."""
    session.execute(delete(SecretLabels).where(SecretLabels.name == name))
    if labels:
        row = insert(SecretLabels).values(name=name, labels=dict(labels))
        session.execute(row.on_conflict_do_update(index_elements=[SecretLabels.name], set_={"labels": dict(labels)}))

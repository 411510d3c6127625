"""Numbers in jobs' settings that no version can work with, but earlier ones accepted, become the largest allowed."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_DURATION_MS_MAX = 365 * 24 * 3600 * 1000
_COUNT_MAX = 1_000_000


def upgrade() -> None:
    """Lowers the numbers."""
    connection = op.get_bind()
    for job_id, checkpoints, restart in connection.execute(sa.text("SELECT id, checkpoints, restart FROM jobs")).all():
        new = [_lowered(checkpoints), _lowered(restart)]
        if new != [checkpoints, restart]:
            connection.execute(
                sa.text("UPDATE jobs SET checkpoints = CAST(:c AS jsonb), restart = CAST(:r AS jsonb) WHERE id = :id"),
                {"id": job_id, "c": json.dumps(new[0]), "r": None if new[1] is None else json.dumps(new[1])},
            )


def downgrade() -> None:
    """Changes nothing: the former numbers are not known."""


def _lowered(settings: dict[str, object] | None) -> dict[str, object] | None:
    if settings is None:
        return None
    return {name: _lowered_number(name, value) for name, value in settings.items()}


def _lowered_number(name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    is_duration = name.endswith("_ms")
    return min(value, _DURATION_MS_MAX if is_duration else _COUNT_MAX)

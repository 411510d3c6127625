"""The rows of a state in a checkpoint or savepoint, as `keyscale state dump` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.state_io import StateReader

if TYPE_CHECKING:
    from pathlib import Path


def dump(location: str, operator: str, state: str, scratch: Path) -> list[dict[str, Any]]:
    """All rows of a state."""
    scratch.mkdir(parents=True, exist_ok=True)
    with StateReader.open(location, scratch=scratch) as reader:
        rows: list[dict[str, Any]] = reader.table(operator, state).reader().read_all().to_pylist()
    return rows

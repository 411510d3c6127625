"""Directories that are lost while another process may write there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def lose_directory(directory: Path) -> None:
    """Deletes a directory, in which a consolidator may still create files by their paths."""
    lost = directory.with_name(f"{directory.name}.lost")
    directory.rename(lost)
    shutil.rmtree(lost)

"""Damage: the consequences of damaged local files on this host."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .file_index import distrust_index
from .subtask_directory import mark_damaged, snapshot_directories_beside

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


def doubt_local_files(subtask_root: Path) -> bool:
    """Makes later restores verify an operator's local files before linking them.

    It concerns all subtasks and attempts, because they may have links to the same file.

    Args:
        subtask_root: The directory of the subtask with damaged files.

    Returns:
        Whether any of the files could be linked without verification until now.
    """
    logger.warning("local files of %s are damaged; all of this operator's are verified from now on", subtask_root)
    return sum(map(_distrust, snapshot_directories_beside(subtask_root))) > 0


def give_up_local_files(subtask_root: Path) -> None:
    """Marks a subtask's local files as damaged, even while they are open.

    A process that has the store open gives it up before its next batch, and rebuilds it from verified files.
    """
    doubt_local_files(subtask_root)
    mark_damaged(subtask_root)


def _distrust(directory: Path) -> bool:
    try:
        return distrust_index(directory)
    except FileNotFoundError:  # just removed
        return False
    except OSError:
        logger.warning("cannot mark the files in %s as damaged", directory, exc_info=True)
        return False

"""Damage: what follows on this host once local files of an operator have proved damaged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .file_index import distrust_index
from .subtask_directory import mark_damaged, snapshot_directories_beside

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


def doubt_local_files(subtask_root: Path) -> bool:
    """Makes every later restore on this host verify the operator's local files before it links them.

    It concerns all subtasks and attempts, because they may have links to the same file.

    Args:
        subtask_root: The directory of the subtask whose files proved damaged.

    Returns:
        Whether any of the files could be linked without being verified until now.
    """
    logger.warning("local files of %s are damaged; all of this operator's are verified from now on", subtask_root)
    return sum(map(_distrust, snapshot_directories_beside(subtask_root))) > 0


def give_up_local_files(subtask_root: Path) -> None:
    """Makes a subtask's local files count as damaged, although its store may be open in another process.

    That one gives the store up before its next batch, and rebuilds it from verified files.
    """
    doubt_local_files(subtask_root)
    mark_damaged(subtask_root)


def _distrust(directory: Path) -> bool:
    try:
        return distrust_index(directory)
    except FileNotFoundError:  # it has just been removed
        return False
    except OSError:
        logger.warning("cannot mark the files in %s as damaged", directory, exc_info=True)
        return False

"""Chooses a subtask's local directory, and so its disk.

With several local directories, the subtask's directory below the local root is a symbolic link to a directory on the
chosen disk. The link is the only record of the choice: it is created exclusively, so racing tasks agree, and following
it needs no settings.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .subtask_directory import local_failures

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryUse:
    """The use of one of the local directories.

    Attributes:
        directory: The directory.
        free_bytes: Free bytes on its disk.
        subtasks: How many subtasks have their files there.
    """

    directory: Path
    free_bytes: int
    subtasks: int


def least_used_first(uses: Sequence[DirectoryUse]) -> list[Path]:
    """Sorts directories by free bytes per subtask, counting one subtask more."""
    return [use.directory for use in sorted(uses, key=lambda use: -(use.free_bytes // (use.subtasks + 1)))]


def place_subtask(subtask_root: Path, local_root: Path, directories: Sequence[str]) -> None:
    """Gives a subtask a directory: its present one, or a new one.

    A new directory is on the least used writable disk.

    Args:
        subtask_root: The subtask's directory, below the local root.
        local_root: Root of all local state on this host.
        directories: Directories on further disks; without any, files are below the local root itself.

    Raises:
        DiskFullError, DiskReadOnlyError, StoreIOError: All directories are unusable, or the chosen one is.
    """
    if not directories:
        return
    with local_failures(subtask_root):
        if not subtask_root.is_symlink() and not subtask_root.exists():
            _link_to_least_used(subtask_root, subtask_root.relative_to(local_root), directories)
        if subtask_root.is_symlink():
            subtask_root.readlink().mkdir(parents=True, exist_ok=True)


def _link_to_least_used(subtask_root: Path, relative: Path, directories: Sequence[str]) -> None:
    uses, failure = [], None
    for directory in map(Path, directories):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            uses.append(_use(directory))
        except OSError as error:
            failure = error
    subtask_root.parent.mkdir(parents=True, exist_ok=True)
    for directory in least_used_first(uses):
        target = directory / relative
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            failure = error
            continue
        if failure is not None:
            logger.warning("a local directory cannot be used", exc_info=failure)
        try:
            subtask_root.symlink_to(target)
        except FileExistsError:  # another task has chosen in the meantime
            if subtask_root.readlink() != target:
                shutil.rmtree(target, ignore_errors=True)
        return
    if failure is not None:
        raise failure


def _use(directory: Path) -> DirectoryUse:
    subtasks = sum(1 for _ in directory.glob("*/attempt-*/*/subtask-*"))
    return DirectoryUse(directory, shutil.disk_usage(directory).free, subtasks)

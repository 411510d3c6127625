"""The rights of this process's user on files."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def missing_right(path: str | Path) -> str | None:
    """Says that the process's user may not write to a directory.

    Of a directory that does not exist, the nearest directory above it counts: the missing ones would be made there.

    Args:
        path: A local directory.

    Returns:
        A sentence with the user, the directory and its owner; None if the user may write there.
    """
    nearest = _nearest(Path(path).absolute())
    if os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return None
    return f"user {user_name(os.geteuid())} may not write to {nearest}{_described(nearest)}"


def user_name(uid: int) -> str:
    """Returns the name of a user, or else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _nearest(path: Path) -> Path:
    """Returns the nearest directory on a path that the user sees."""
    return next((each for each in (path, *path.parents) if _is_visible(each)), path)


def _is_visible(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True


def _described(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f", which belongs to {user_name(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):o})"

"""Opens snapshots in a local store to the users of other jobs.

A job's user may read the snapshot of another job that the job restores from.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import JobUserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .isolation import JobUser

_READ = stat.S_IRGRP | stat.S_IXGRP
_WRITE = _READ | stat.S_IWGRP


def member_of_readers(objects: Path, job_id: str, user: JobUser) -> JobUser:
    """Lets a job's user read the objects of another job.

    Args:
        objects: The store's directory.
        job_id: The other job.
        user: The user of the job that restores from it.

    Returns:
        The user, with the group that may read the objects; unchanged without objects.

    Raises:
        JobUserError: The objects are not in a directory of the control plane.
    """
    with _opened(objects, (job_id,)) as descriptor:
        if descriptor is None:
            return user
        gid = os.fstat(descriptor).st_gid
        if gid == os.getegid():  # the other job has run as the control plane's user, or was deleted
            gid = user.gid
            os.fchown(descriptor, -1, gid)
        _allow(descriptor, _READ)
    return user if gid == user.gid else replace(user, further_gids=tuple(dict.fromkeys((*user.further_gids, gid))))


def let_delete(objects: Path, parts: Sequence[str], user: JobUser) -> None:
    """Lets a job's user change a savepoint that the job has claimed.

    The objects are below a part of another job's directory.

    The part gets the user's own group, so that other jobs which may read it cannot change it.

    Args:
        objects: The store's directory.
        parts: The names of the directories that lead there, the job's first.
        user: The user of the job that has claimed it.

    Raises:
        JobUserError: The objects are not in a directory of the control plane.
    """
    with _opened(objects, parts) as descriptor:
        if descriptor is None:
            return
        try:
            for _, _, _, directory in os.fwalk(dir_fd=descriptor):
                os.fchown(directory, -1, user.gid)
                _allow(directory, _WRITE)
        except RecursionError as error:  # its owner can make directories to any depth
            raise JobUserError(f"{'/'.join(parts)} in {objects} has more levels than a savepoint") from error


@contextlib.contextmanager
def _opened(objects: Path, parts: Sequence[str]) -> Iterator[int | None]:
    """Opens a directory below the store's, step by step.

    The job owns it, and may put links in the way.

    Yields None if it is missing.
    """
    descriptor = os.open(objects, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except FileNotFoundError:
        os.close(descriptor)
        yield None
        return
    except OSError as error:
        os.close(descriptor)
        raise JobUserError(
            f"{'/'.join(parts)} in {objects} is not a directory of the control plane: {error.strerror}"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _allow(descriptor: int, rights: int) -> None:
    os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | rights)

"""Accounts of this host's users, which root makes at first use."""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pwd
    from collections.abc import Callable, Iterator

LOCK = Path("/run/keyscale-accounts.lock")


def found_or_made(look: Callable[[], pwd.struct_passwd], name: str, *options: str) -> pwd.struct_passwd:
    """Returns an account, and makes it if it is not there.

    Args:
        look: Looks for the account; raises KeyError if it is not there.
        name: Its name.
        options: The arguments of `useradd`.

    Raises:
        LookupError: It cannot be made; the message says why.
        OSError: There is no `useradd`, or this user may make no accounts.
    """
    try:
        return look()
    except KeyError:
        pass
    with _alone():
        try:
            return look()  # another process has made it in the meantime
        except KeyError:
            command = ["useradd", *options, name]
            made = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own arguments
    try:
        return look()
    except KeyError:
        raise LookupError(f"the user {name} cannot be made: {made.stderr.strip()}") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Has one process at a time make accounts.

    Of two `useradd` of one name at once, the second replaces the first one's account by one with other numbers, and the
    files that were given to the first one's are nobody's.
    """
    descriptor = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

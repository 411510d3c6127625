"""Accounts of this host's users, created by root at first use."""

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
    """Returns an account, and creates it if it is missing.

    Args:
        look: Looks for the account; raises KeyError if it is missing.
        name: Its name.
        options: The arguments of `useradd`.

    Raises:
        LookupError: The account cannot be created; the message says why.
        OSError: `useradd` is missing, or this user may not create accounts.
    """
    try:
        return look()
    except KeyError:
        pass
    with _alone():
        try:
            return look()  # another process has created it in the meantime
        except KeyError:
            command = ["useradd", *options, name]
            made = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own arguments
    try:
        return look()
    except KeyError:
        raise LookupError(f"the user {name} cannot be created: {made.stderr.strip()}") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Serializes the creation of accounts between processes.

    Two concurrent `useradd` calls for one name leave an account with a new uid, and orphan the files of the old one.
    """
    descriptor = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Users of the operating system for jobs.

Each job's processes run as a separate user, if that is possible.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from keyscale.db.embedded import let_enter
from keyscale.db.system_account import found_or_made
from keyscale.installation import IMPORT_PATH

from ..errors import JobUserError, SettingInvalidError
from .user_register import UserRegister

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.db.models import Job

    from ..settings import Settings

logger = logging.getLogger(__name__)

ACCOUNT_PREFIX = "keyscale-job-"
DEFAULT_RANGE = "50000-59999"
OFF = "off"
_UID_MAX = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class JobUser:
    """A job's user.

    Attributes:
        uid: Its number.
        gid: Its group.
        shared_gid: A further group that all jobs share; None: no such group.
        further_gids: The groups that may read the snapshots of other jobs that the job restores from.
    """

    uid: int
    gid: int
    shared_gid: int | None = None
    further_gids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The user as the supervisor reads it: uid, gid and further groups."""
        numbers = (self.uid, self.gid, self.shared_gid, *self.further_gids)
        return ":".join(str(number) for number in numbers if number is not None)


@dataclass(frozen=True, slots=True)
class UserHolder:
    """The job or the load of a program that has a user.

    Attributes:
        id: Its id.
        user_number: Decides which user is tried first.
        places: The directories that its user owns, present or not.
    """

    id: str
    user_number: int
    places: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether each job runs as its own user.

    Attributes:
        first_uid: The first number of the range of users.
        count: The size of the range; 0: all jobs run as the control plane's user.
        shared_gid: A group of all jobs, for files that they share; None: no such group.
        why_not: Why jobs do not have their own users; None: they have.
        runs: The directory with a directory for each job.
        register: Which job of this host has which user.
    """

    first_uid: int = 0
    count: int = 0
    shared_gid: int | None = None
    why_not: str | None = None
    runs: Path | None = None
    register: UserRegister = field(default_factory=UserRegister)

    @property
    def numbers(self) -> range:
        """The numbers of the users."""
        return range(self.first_uid, self.first_uid + self.count)

    def holder(self, job: Job) -> UserHolder:
        """Returns a job as the holder of its user."""
        places = [] if self.runs is None else [self.runs / job.id]
        if (objects := local_directory(job.store_url)) is not None:
            places.append(objects / job.id)
        return UserHolder(job.id, job.user_number, tuple(places))

    def uid(self, holder: UserHolder) -> int | None:
        """Takes a user number for its holder; returns None without isolation.

        Several control planes share the numbers of a host. The holder's own number decides only which is tried first,
        so that a job usually has one number on all hosts.

        Raises:
            JobUserError: All numbers are taken.
        """
        if self.count == 0:
            return None
        preferred = self.numbers[holder.user_number % self.count]
        return self.register.take(
            holder.id, holder.places, numbers=self.numbers, preferred=preferred, is_usable=_may_be_a_jobs
        )

    def give_back(self, holder: UserHolder) -> None:
        """Frees the user of a holder that has ended."""
        if self.count:
            self.register.give_back(holder.id, self.numbers)

    def user(self, holder: UserHolder) -> JobUser | None:
        """Returns the user of a holder; creates the account at first use.

        Returns None without isolation.

        Java refuses to run as a number without an account.

        Raises:
            JobUserError: All numbers are taken, or the account cannot be made.
        """
        uid = self.uid(holder)
        if uid is None:
            return None
        return JobUser(uid, _account(uid).pw_gid, self.shared_gid)


def isolation_of(settings: Settings, *, is_root: bool, mapped_uids: Iterable[tuple[int, int]]) -> Isolation:
    """Decides whether each job runs as its own user. Pure.

    Args:
        settings: The control plane's settings.
        is_root: Whether the control plane may become other users.
        mapped_uids: The numbers of users that exist here, as first number and size: a container may have few.

    Raises:
        SettingInvalidError: The settings demand users that are not available.
    """
    if settings.job_users == OFF:
        return Isolation(why_not="KEYSCALE_JOB_USERS is off")
    reason, (first, count) = None, parsed_range(settings.job_users or DEFAULT_RANGE)
    if not is_root:
        reason = "the control plane does not run as root"
    elif not settings.spark_master.startswith("local"):
        reason = "executors of a cluster run as the cluster's user"
    elif not any(start <= first and first + count <= start + size for start, size in mapped_uids):
        reason = f"this container does not have the users {first} to {first + count - 1}"
    if reason is None:
        return Isolation(first, count, settings.job_group, runs=settings.runs_directory)
    if settings.job_users is not None:
        raise SettingInvalidError(f"KEYSCALE_JOB_USERS: jobs cannot have users of their own: {reason}")
    return Isolation(why_not=reason)


def parsed_range(text: str) -> tuple[int, int]:
    """Returns the first number and the size of a range of users.

    A range is, for example, `50000-59999`.

    Raises:
        SettingInvalidError: It is not a range without root.
    """
    first, dash, last = text.partition("-")
    if not (dash and all(part.isascii() and part.isdigit() for part in (first, last))):
        raise SettingInvalidError("KEYSCALE_JOB_USERS must be a range of user numbers, such as 50000-59999, or off")
    if not 1 <= int(first) <= int(last) <= _UID_MAX:
        raise SettingInvalidError("KEYSCALE_JOB_USERS must be ascending and must not contain 0, which is root")
    return int(first), int(last) - int(first) + 1


def isolation_here(settings: Settings) -> Isolation:
    """Returns the isolation of jobs on this host.

    Lets jobs' users enter the directories that they need.

    Raises:
        SettingInvalidError: The settings demand users that are not available.
    """
    isolation = isolation_of(settings, is_root=os.geteuid() == 0, mapped_uids=_mapped_uids())
    if isolation.count == 0:
        return isolation
    if shutil.which("useradd") is None:
        return Isolation(why_not="the program useradd is not installed")
    for place in (IMPORT_PATH, Path(sys.prefix), Path(sys.base_prefix), *(IMPORT_PATH / "keyscale").iterdir()):
        let_enter(place.resolve())
    reason = isolation.register.why_unusable() or _why_python_fails(isolation.first_uid)
    if reason is None:
        return isolation
    if settings.job_users is not None:
        raise SettingInvalidError(f"KEYSCALE_JOB_USERS: jobs cannot have users of their own: {reason}")
    return Isolation(why_not=reason)


def make_directory(path: Path, *, owner: JobUser | None = None, enter: bool = False, is_shared: bool = False) -> None:
    """Makes or corrects a directory that only its owner may read.

    Args:
        path: The directory; its parent must belong to the control plane.
        owner: The job that owns it; None: the control plane.
        enter: Whether jobs' users may enter it, without listing it.
        is_shared: Whether its group keeps the right to read it.

    Raises:
        JobUserError: Another object has its name, such as a link.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise JobUserError(f"{path} is not a directory of the control plane: {error.strerror}") from error
    try:
        readers = stat.S_IMODE(os.fstat(descriptor).st_mode) & (stat.S_IRGRP | stat.S_IXGRP) if is_shared else 0
        if owner is not None:
            os.fchown(descriptor, owner.uid, -1 if readers else owner.gid)
        os.fchmod(descriptor, (0o711 if enter else 0o700) | readers)
    finally:
        os.close(descriptor)


def give_to(directory: Path, user: JobUser) -> None:
    """Gives a directory of the control plane to a job's user.

    Its content that belongs to the control plane is also given.

    It belongs to the control plane if the job has run as the control plane's user before. Skips a directory that the
    job's user already owns.

    Raises:
        JobUserError: The directory cannot be given.
    """
    if not directory.is_dir() or owner_of(directory) is not None:
        return
    # It goes to any depth, follows no link, and gives a directory after all that is in it.
    command = ["chown", "--recursive", "--no-dereference", f"--from={os.geteuid()}", f"{user.uid}:{user.gid}", "--"]
    done = subprocess.run([*command, directory], check=False, capture_output=True, text=True)  # noqa: S603
    said = done.stderr.strip().rpartition("\n")[2]
    if owner_of(directory) != user.uid:
        raise JobUserError(f"{directory} cannot be given to the job's user: {said}")
    if done.returncode:
        logger.warning("not all of %s was given to the job's user: %s", directory, said)


def owner_of(path: Path) -> int | None:
    """Returns the job's user who owns a directory.

    Returns None if it is missing or the control plane's own.
    """
    try:
        uid = path.lstat().st_uid
    except FileNotFoundError:
        return None
    return None if uid == os.geteuid() else uid


def local_directory(store_url: str) -> Path | None:
    """Returns the directory of a local store on this host.

    Returns None for other stores.
    """
    parts = urlsplit(store_url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _may_be_a_jobs(uid: int) -> bool:
    """Returns whether a number has no account, or a job's."""
    try:
        return pwd.getpwuid(uid).pw_name == f"{ACCOUNT_PREFIX}{uid}"
    except KeyError:
        return True


def _account(uid: int) -> pwd.struct_passwd:
    name = f"{ACCOUNT_PREFIX}{uid}"
    try:
        found = found_or_made(
            partial(pwd.getpwuid, uid),
            name,
            "--uid",
            str(uid),
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
        )
    except LookupError as error:
        raise JobUserError(str(error)) from error
    if found.pw_name != name:
        raise JobUserError(f"the user {uid} is {found.pw_name}, and not a job's")
    return found


def _why_python_fails(uid: int) -> str | None:
    """Returns why a job's user cannot run the platform's Python, if so."""
    program = "import keyscale.jobs.protocol.messages, pyspark"
    tried = subprocess.run(  # noqa: S603 - the platform's own Python
        [sys.executable, "-P", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env={"PYTHONPATH": str(IMPORT_PATH), "PYTHONDONTWRITEBYTECODE": "1"},
        user=uid,
        group=uid,
        extra_groups=[],
    )
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return f"another user than root cannot run {sys.executable}: {said}"


def _mapped_uids() -> list[tuple[int, int]]:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except FileNotFoundError:
        return [(0, _UID_MAX + 1)]
    return [(int(first), int(size)) for first, _, size in map(str.split, lines)]

"""A job's user may read the snapshots that it restores from, whoever's links are in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.api.errors import JobUserError
from keyscale.api.launching.isolation import JobUser, make_directory
from keyscale.api.launching.launcher import Launcher, _reader_of_others
from keyscale.api.launching.shared_snapshots import let_delete, member_of_readers
from keyscale.api.settings import Settings
from keyscale.db.embedded import let_enter
from keyscale.directory_tree import remove_tree
from keyscale.state.objects.s3_grant import Grant
from keyscale.state_io import NewOperator, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")

OWNER, READER, OTHER = (JobUser(uid, uid) for uid in (59_981, 59_982, 59_983))


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """A store with a savepoint of a job."""
    let_enter(tmp_path)
    savepoint = tmp_path / "owner" / "savepoints" / "sp"
    savepoint.mkdir(parents=True)
    (savepoint / "manifest.json").touch()
    for path in (tmp_path / "owner", *(tmp_path / "owner").rglob("*")):
        os.chown(path, OWNER.uid, OWNER.gid)
    make_directory(tmp_path / "owner", owner=OWNER)
    return tmp_path


def can(user: JobUser, program: str) -> bool:
    _, _, *groups = map(int, user.text.split(":"))
    command = [sys.executable, "-I", "-c", f"import os; {program}"]
    done = subprocess.run(
        command, user=user.uid, group=user.gid, extra_groups=groups, stderr=subprocess.DEVNULL, cwd="/", check=False
    )
    return done.returncode == 0


def test_the_users_of_jobs_read_a_written_savepoint_only_to_start_from_it(objects: Path) -> None:
    location = write(f"file://{objects}/written/savepoints/first", [NewOperator("counts", {"user": pa.string()})])
    reading = f"open({location.removeprefix('file://')!r}).read()"
    assert not can(READER, reading)
    assert can(member_of_readers(objects, "written", READER), reading)
    assert not can(OTHER, reading)


def test_the_user_of_a_job_that_restores_reads_and_changes_nothing_and_others_get_nothing(objects: Path) -> None:
    manifest = objects / "owner" / "savepoints" / "sp" / "manifest.json"
    reading, writing = f"open({str(manifest)!r}).read()", f"open({str(manifest)!r} + '-claim', 'x')"
    assert not can(READER, reading)
    member = member_of_readers(objects, "owner", READER)
    assert can(member, reading)
    assert not can(member, writing)
    assert not can(member, f"os.mkdir({str(objects / 'owner' / 'more')!r})")
    assert not can(READER, reading), "not before it is started so"
    assert not can(OTHER, reading)
    make_directory(objects / "owner", owner=OWNER, is_shared=True)  # its own job is started again
    assert can(member, reading)
    further = member_of_readers(objects, "owner", OTHER)
    let_delete(objects, ("owner", "savepoints", "sp"), READER)
    assert can(further, reading)
    assert not can(further, writing), "another job has claimed it"
    assert can(member, reading)
    assert can(member, writing)
    assert not can(OTHER, reading)


def test_jobs_that_start_from_a_deleted_jobs_snapshots_get_no_right_to_each_other(
    objects: Path, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "home", store_url=objects.as_uri())
    Launcher(settings).forget("owner")
    assert (objects / "owner").stat().st_uid == os.geteuid()
    first, second = (member_of_readers(objects, "owner", user) for user in (READER, OTHER))
    reading = f"os.listdir({str(objects / 'owner' / 'savepoints')!r})"
    assert can(first, reading)
    assert can(second, reading)
    assert first.further_gids == second.further_gids == (OWNER.gid,)


def test_snapshots_of_a_job_that_ran_as_the_control_plane_are_read_by_several(objects: Path) -> None:
    make_directory(objects / "owner", owner=JobUser(os.geteuid(), os.getegid()))
    first, second = (member_of_readers(objects, "owner", user) for user in (READER, OTHER))
    reading = f"os.listdir({str(objects / 'owner' / 'savepoints')!r})"
    assert can(first, reading)
    assert can(second, reading)


def test_a_claimed_savepoint_that_its_owner_has_made_endless_is_not_walked(objects: Path) -> None:
    deep = os.open(objects / "owner" / "savepoints" / "sp", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        with pytest.raises(JobUserError, match="more levels than a savepoint"):
            let_delete(objects, ("owner", "savepoints", "sp"), READER)
    finally:
        remove_tree(objects / "owner")  # pytest's own clean-up does not go so deep


def test_a_job_starts_though_the_owner_of_a_savepoint_that_it_once_claimed_has_put_a_link_in_its_place(
    objects: Path,
) -> None:
    (objects / "owner" / "savepoints" / "link").symlink_to(objects)
    claimed = ("reader/", "owner/savepoints/link/", "owner/savepoints/sp/")
    user = _reader_of_others(objects, Grant(objects.as_uri(), claimed, ("owner/",)), READER)
    assert user.further_gids == (OWNER.gid,)
    assert can(user, f"open({str(objects / 'owner' / 'savepoints' / 'sp' / 'manifest.json-claim')!r}, 'x')")


def test_a_directory_that_is_not_there_gives_nothing_and_a_link_is_not_followed(objects: Path) -> None:
    assert member_of_readers(objects, "gone", READER) == READER
    let_delete(objects, ("gone", "savepoints", "sp"), READER)
    secret = objects / "secret"
    secret.mkdir(mode=0o700)
    (objects / "link").symlink_to(secret)
    (objects / "owner" / "savepoints" / "link").symlink_to(secret)
    with pytest.raises(JobUserError, match="not a directory of the control plane"):
        member_of_readers(objects, "link", READER)
    with pytest.raises(JobUserError, match="not a directory of the control plane"):
        let_delete(objects, ("owner", "savepoints", "link"), READER)
    let_delete(objects, ("owner", "savepoints"), READER)
    assert secret.stat().st_mode & 0o777 == 0o700

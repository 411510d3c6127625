from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.errors import JobUserError, SettingInvalidError
from keyscale.api.launching.isolation import JobUser, isolation_of, local_directory, make_directory
from keyscale.api.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.api.launching.isolation import Isolation

ALL_USERS = [(0, 1 << 32)]
NOBODY = 65534


def decided(tmp_path: Path, *, is_root: bool = True, mapped: Any = None, **settings: Any) -> Isolation:
    return isolation_of(Settings(home=tmp_path, **settings), is_root=is_root, mapped_uids=mapped or ALL_USERS)


def test_root_gives_each_job_a_user_of_its_own(tmp_path: Path) -> None:
    isolation = decided(tmp_path)
    assert isolation.why_not is None
    assert [isolation.uid(number) for number in (1, 2, 9_999, 10_000)] == [50_001, 50_002, 59_999, 50_000]
    assert decided(tmp_path, job_users="700-799").uid(1) == 701


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"is_root": False}, "not run as root"),
        ({"spark_master": "spark://master:7077"}, "the cluster's user"),
        ({"mapped": [(0, 50_100)]}, "this container"),
    ],
)
def test_where_jobs_cannot_have_users_the_reason_is_said_and_a_demand_is_refused(
    tmp_path: Path, facts: dict[str, Any], reason: str
) -> None:
    isolation = decided(tmp_path, **facts)
    assert isolation.uid(1) is None
    assert reason in (isolation.why_not or "")
    with pytest.raises(SettingInvalidError, match=reason):
        decided(tmp_path, job_users="50000-59999", **facts)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert decided(tmp_path, job_users="off").why_not == "KEYSCALE_JOB_USERS is off"


@pytest.mark.parametrize("text", ["0-9", "9-1", "1", "-", "a-b", "1-99999999999"])
def test_a_range_that_is_none_or_contains_root_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingInvalidError, match="KEYSCALE_JOB_USERS"):
        decided(tmp_path, job_users=text)


def test_a_directory_is_its_owners_alone_and_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    for _ in range(2):
        make_directory(tmp_path / "own")
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    make_directory(tmp_path / "own", enter=True)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o711
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(JobUserError, match="not a directory of the control plane"):
        make_directory(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_jobs_directory_belongs_to_its_user(tmp_path: Path) -> None:
    make_directory(tmp_path / "job", owner=JobUser(NOBODY, NOBODY))
    found = (tmp_path / "job").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (NOBODY, 0o700)


def test_only_a_store_of_files_is_a_directory() -> None:
    assert str(local_directory("file:///a/b%20c")) == "/a/b c"
    assert local_directory("s3://bucket/prefix") is None

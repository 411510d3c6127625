from __future__ import annotations

import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import JobUserError, SettingInvalidError
from keyscale.api.launching import isolation
from keyscale.api.launching.isolation import (
    Isolation,
    JobUser,
    UserHolder,
    isolation_of,
    local_directory,
    make_directory,
)
from keyscale.api.launching.user_register import UserRegister
from keyscale.api.settings import Settings
from keyscale.db.models import Job

ALL_USERS = [(0, 1 << 32)]
NOBODY = 65534


def decided(tmp_path: Path, *, is_root: bool = True, mapped: Any = None, **settings: Any) -> Isolation:
    settings = {"home": tmp_path, **settings}
    found = isolation_of(Settings(**settings), is_root=is_root, mapped_uids=mapped or ALL_USERS)
    return replace(found, register=UserRegister(tmp_path / "users"))


def job(user_number: int, job_id: str = "") -> UserHolder:
    job = Job(id=job_id or f"job-{user_number}", user_number=user_number, store_url="s3://bucket")
    return Isolation().holder(job)


def test_root_gives_each_job_a_user_of_its_own(tmp_path: Path) -> None:
    found = decided(tmp_path)
    assert found.why_not is None
    assert [found.uid(job(number)) for number in (1, 2, 9_999, 10_000)] == [50_001, 50_002, 59_999, 50_000]
    assert decided(tmp_path, job_users="700-799").uid(job(1)) == 701


def test_two_control_planes_on_a_host_give_their_jobs_different_users(tmp_path: Path) -> None:
    first, second = (decided(tmp_path, home=tmp_path / name) for name in ("first", "second"))
    assert [first.uid(job(1, "a")), second.uid(job(1, "b")), second.uid(job(2, "c"))] == [50_001, 50_002, 50_003]
    assert [first.uid(job(1, "a")), second.uid(job(1, "b"))] == [50_001, 50_002], "a job keeps its user"
    assert second.uid(job(10_001, "d")) == 50_004, "after as many jobs as the range has numbers"


def test_a_number_with_the_account_of_another_program_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = {50_001: "postgres", 50_002: "keyscale-job-50002"}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=accounts[uid]))
    assert decided(tmp_path).uid(job(1)) == 50_002


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
    found = decided(tmp_path, **facts)
    assert found.uid(job(1)) is None
    assert reason in (found.why_not or "")
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


@pytest.mark.parametrize(
    ("options", "mode"),
    [({}, 0o700), ({"is_shared": True}, 0o750), ({"enter": True}, 0o711), ({"enter": True, "is_shared": True}, 0o751)],
)
def test_a_shared_directory_keeps_the_right_of_its_group_to_read(
    tmp_path: Path, options: dict[str, bool], mode: int
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    make_directory(tmp_path / "own", **options)
    assert (tmp_path / "own").stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_jobs_directory_belongs_to_its_user(tmp_path: Path) -> None:
    make_directory(tmp_path / "job", owner=JobUser(NOBODY, NOBODY))
    found = (tmp_path / "job").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (NOBODY, 0o700)


def test_only_a_store_of_files_is_a_directory() -> None:
    assert str(local_directory("file:///a/b%20c")) == "/a/b c"
    assert local_directory("s3://bucket/prefix") is None


def test_a_jobs_user_owns_its_places_and_has_the_group_of_its_account_and_the_group_of_all_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_account", lambda uid: SimpleNamespace(pw_gid=uid + 1000))
    found = decided(tmp_path, job_group=44)
    holder = found.holder(Job(id="j", user_number=3, store_url="file:///objects"))
    assert holder == UserHolder("j", 3, (tmp_path / "runs" / "j", Path("/objects/j")))
    assert found.user(holder) == JobUser(50_003, 51_003, 44)
    assert found.holder(Job(id="j", user_number=3, store_url="s3://b")).places == (tmp_path / "runs" / "j",)
    assert Isolation().user(holder) is None
    assert [JobUser(1, 2, 3, (4, 5)).text, JobUser(1, 2, None, (4,)).text] == ["1:2:3:4:5", "1:2:4"]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"useradd": None}, "the program useradd is not installed"),
        ({"unusable": "the register is not root's"}, "the register is not root's"),
        ({"python": "no Python"}, "no Python"),
        ({"unusable": "first", "python": "second"}, "first"),
        ({"settings": {"job_users": "off"}}, "KEYSCALE_JOB_USERS is off"),
    ],
)
def test_a_host_isolates_its_jobs_if_each_part_of_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], expected: str | None
) -> None:
    entered: list[Any] = []
    known = {"useradd": "/usr/sbin/useradd", "unusable": None, "python": None, "settings": {}} | facts
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_mapped_uids", lambda: ALL_USERS)
    monkeypatch.setattr(isolation.shutil, "which", {"useradd": known["useradd"]}.get)
    monkeypatch.setattr(isolation, "let_enter", entered.append)
    monkeypatch.setattr(UserRegister, "why_unusable", lambda _: known["unusable"])
    monkeypatch.setattr(isolation, "_why_python_fails", lambda uid: {50_000: known["python"]}[uid])
    settings = Settings(home=tmp_path, **known["settings"])
    found = isolation.isolation_here(settings)
    assert (found.why_not, found.count) == (expected, 10_000 if expected is None else 0)
    has_tried = known["useradd"] is not None and not known["settings"]
    assert (isolation.IMPORT_PATH.resolve() in entered) is has_tried
    if has_tried and expected is not None:
        with pytest.raises(SettingInvalidError, match=f"users of their own: {expected}"):
            isolation.isolation_here(replace(settings, job_users="50000-59999"))


def test_the_account_of_a_jobs_user_is_a_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def found_or_made(find: Any, name: str, *options: str) -> Any:
        made.append((name, options[:2]))
        return find()

    accounts = {50_001: "keyscale-job-50001", 50_002: "postgres"}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=accounts[uid], pw_gid=7))
    monkeypatch.setattr(isolation, "found_or_made", found_or_made)
    assert isolation._account(50_001).pw_gid == 7
    with pytest.raises(JobUserError, match="the user 50002 is postgres"):
        isolation._account(50_002)
    assert made == [(f"keyscale-job-{uid}", ("--uid", str(uid))) for uid in (50_001, 50_002)]
    monkeypatch.setattr(isolation, "found_or_made", lambda *_: accounts[0])
    with pytest.raises(JobUserError):
        isolation._account(50_003)


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [(0, "a warning", None), (1, "first\nno module\n", "no module"), (126, "", "exit code 126")],
)
def test_a_user_who_cannot_run_the_platforms_python_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, expected: str | None
) -> None:
    tried: list[dict[str, Any]] = []

    def run(_: list[str], **given: Any) -> Any:
        tried.append(given)
        return SimpleNamespace(returncode=code, stderr=said)

    monkeypatch.setattr(isolation.subprocess, "run", run)
    reason = isolation._why_python_fails(50_001)
    assert reason == (None if expected is None else f"another user than root cannot run {sys.executable}: {expected}")
    [given] = tried
    assert (given["user"], given["group"], given["extra_groups"], given["cwd"]) == (50_001, 50_001, [], "/")

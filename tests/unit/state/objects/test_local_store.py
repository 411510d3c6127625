"""Things that a job puts into its folder of a local store: they mislead nobody, and lead to nothing else."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from keyscale.state.objects import local_store
from keyscale.state.objects.errors import (
    ObjectCorruptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreForbiddenError,
    StoreFullError,
    StoreUnavailableError,
)
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.deep_directories import deepened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATER_MS = 4_000_000_000_000
OTHERS = b"of another job"


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    """Two jobs' objects."""
    store = LocalObjectStore(tmp_path / "store")
    store.put("job/real", b"content")
    store.put("other/log/1", OTHERS)
    return store


@pytest.fixture
def job(store: LocalObjectStore, tmp_path: Path) -> Path:
    """The folder of a job that does what it likes in it."""
    del store
    return tmp_path / "store" / "job"


def strange(job: Path, name: str) -> None:
    """Puts something that is no file into a folder."""
    if name == "pipe":
        os.mkfifo(job / name)
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(job / name))
    elif name == "folder":
        (job / name).mkdir()
    else:
        (job / name).symlink_to({"link": "../other/log/1", "loop": "loop", "nowhere": "none"}[name])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


STRANGE = ("pipe", "socket", "folder", "link", "loop", "nowhere")


@pytest.mark.parametrize("name", STRANGE)
def test_only_a_plain_file_is_an_object(store: LocalObjectStore, job: Path, tmp_path: Path, name: str) -> None:
    strange(job, name)
    path = f"job/{name}"
    with pytest.raises(ObjectNotFoundError):
        store.get(path)
    with pytest.raises(ObjectNotFoundError):
        store.download(path, tmp_path / "target")
    with pytest.raises(ObjectNotFoundError):
        store.check(path, size_bytes=0, sha256="", on_read=lambda _: None)
    with pytest.raises(ObjectNotFoundError):
        store.copy(path, "job/copy")
    assert store.head(path) is None
    assert [info.path for info in store.list("job/")] == ["job/real"]


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_object_goes_with_the_unfinished_writes(store: LocalObjectStore, job: Path, name: str) -> None:
    strange(job, name)
    assert store.remove_unfinished("job/", before_ms=1) == 0, "it is too young"
    store.remove_unfinished("job/", LATER_MS)
    assert names(job) == ["real"]
    assert store.get("other/log/1") == OTHERS


def test_a_deleted_link_is_gone_and_what_it_leads_to_stays(store: LocalObjectStore, job: Path) -> None:
    strange(job, "link")
    store.delete(["job/link"])
    assert names(job) == ["real"]
    assert store.get("other/log/1") == OTHERS


@pytest.fixture
def linked(store: LocalObjectStore, job: Path) -> LocalObjectStore:
    """The store, in which one of the job's folders is a link to another job's."""
    (job / "log").symlink_to("../other/log")
    return store


def test_nothing_is_read_through_a_link_to_a_folder(linked: LocalObjectStore, tmp_path: Path) -> None:
    assert linked.head("job/log/1") is None
    assert list(linked.list("job/log/")) == []
    assert [info.path for info in linked.list("job/")] == ["job/real"]
    for read in (
        lambda: linked.get("job/log/1"),
        lambda: linked.download("job/log/1", tmp_path / "target"),
        lambda: linked.copy("job/log/1", "job/copy"),
    ):
        with pytest.raises(ObjectNotFoundError):
            read()


def test_nothing_is_deleted_through_a_link_to_a_folder(linked: LocalObjectStore, job: Path) -> None:
    linked.delete(["job/log/1"])
    linked.remove_unfinished("job/log/", LATER_MS)
    assert linked.get("other/log/1") == OTHERS
    linked.remove_unfinished("job/", LATER_MS)
    assert linked.get("other/log/1") == OTHERS
    assert names(job) == ["real"]


def test_what_was_listed_in_a_folder_is_not_deleted_where_a_link_in_its_place_leads(
    store: LocalObjectStore, job: Path
) -> None:
    store.put("job/log/1", b"its own")
    listed = [info.path for info in store.list("job/")]
    (job / "log").rename(job / "aside")
    (job / "log").symlink_to("../other/log")
    store.delete(listed)
    assert store.get("other/log/1") == OTHERS


WRITES: dict[str, Callable[[LocalObjectStore, Path, str], None]] = {
    "put": lambda store, _, path: store.put(path, b"x"),
    "create": lambda store, _, path: store.create(path, b"x"),
    "upload": lambda store, source, path: store.upload(source, path),
    "upload of a link": lambda store, source, path: store.upload(source, path, immutable=True),
    "copy": lambda store, _, path: store.copy("job/real", path),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("path", ["job/log/2", "job/log/new/2"])
def test_nothing_is_written_through_a_link_to_a_folder(
    linked: LocalObjectStore, tmp_path: Path, write: Callable[[LocalObjectStore, Path, str], None], path: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(StoreUnavailableError, match="something else has its place"):
        write(linked, source, path)
    assert [info.path for info in linked.list("")] == ["job/real", "other/log/1"]
    assert names(tmp_path / "store" / "other" / "log") == ["1"]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_replaces_a_link_and_not_what_it_leads_to(
    store: LocalObjectStore, job: Path, tmp_path: Path, write: Callable[[LocalObjectStore, Path, str], None]
) -> None:
    strange(job, "link")
    source = tmp_path / "source"
    source.write_bytes(b"x")
    try:
        write(store, source, "job/link")
    except ObjectExistsError:
        assert (job / "link").is_symlink()
    else:
        assert store.head("job/link") is not None
    assert store.get("other/log/1") == OTHERS


def test_a_name_that_no_object_can_have_hides_nothing_else(store: LocalObjectStore, job: Path) -> None:
    for name in (b"back\\slash", b"new\nline", b"\xff not text", b".tmp-x"):
        (job / os.fsdecode(name)).write_bytes(b"x")
        folder = job / os.fsdecode(b"folder " + name)
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    (job / ".tmp-folder").mkdir()
    (job / ".tmp-folder" / "file").write_bytes(b"x")
    assert [info.path for info in store.list("job/")] == ["job/folder .tmp-x/file", "job/real"]
    store.remove_unfinished("job/", LATER_MS)
    assert names(job) == ["folder .tmp-x", "real"]


def test_folders_too_deep_for_an_object_are_neither_listed_nor_left(store: LocalObjectStore, job: Path) -> None:
    with deepened(job):
        assert [info.path for info in store.list("")] == ["job/real", "other/log/1"]
        store.delete(["job/real"])
        store.remove_unfinished("job/", LATER_MS)
        assert names(job.parent) == ["other"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_files_cannot_be_linked_they_are_copied(
    store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, "no links here")

    monkeypatch.setattr(os, "link", refused)
    store.copy("job/real", "job/copy")
    file = tmp_path / "file"
    file.write_bytes(b"uploaded")
    store.upload(file, "job/file", immutable=True)
    assert (store.get("job/copy"), store.get("job/file")) == (b"content", b"uploaded")
    assert names(tmp_path / "store" / "job") == ["copy", "file", "real"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), ObjectNotFoundError),
        (OSError(errno.ENOSPC, "full"), StoreFullError),
        (OSError(errno.EDQUOT, "full"), StoreFullError),
        (OSError(errno.EROFS, "read-only"), StoreFullError),
        (PermissionError(errno.EACCES, "forbidden"), StoreForbiddenError),
        (OSError(errno.EIO, "broken"), StoreUnavailableError),
    ],
)
def test_each_failure_of_the_disk_is_one_of_the_stores_errors(
    store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: OSError, kind: type[Exception]
) -> None:
    store.put("job/x", b"1")
    (tmp_path / "source").write_bytes(b"2")

    def fail(*_: object, **__: object) -> None:
        raise failure

    uses: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("job/x", b"2"),
        "upload": lambda: store.upload(tmp_path / "source", "job/x"),
        "get": lambda: store.get("job/x"),
        "download": lambda: store.download("job/x", tmp_path / "target"),
        "copy": lambda: store.copy("job/x", "job/y"),
        "list": lambda: list(store.list("job/")),
    }
    with monkeypatch.context() as patch:
        patch.setattr("os.open", fail)
        for use, call in uses.items():
            if use == "list" and kind is ObjectNotFoundError:
                assert call() == [], "a folder that is gone has no objects"
                continue
            with pytest.raises(kind) as raised:
                call()
            assert type(raised.value) is kind, use
    assert store.get("job/x") == b"1"
    assert [info.path for info in store.list("job/")] == ["job/real", "job/x"]


def test_a_folder_in_the_place_of_an_object_cannot_be_written_and_is_no_object(store: LocalObjectStore) -> None:
    store.put("job/x/y", b"1")
    with pytest.raises(StoreUnavailableError, match="something else has its place"):
        store.put("job/x", b"2")
    with pytest.raises(StoreUnavailableError, match="something else has its place"):
        store.put("job/x/y/z", b"2")
    for path in ("job/x", "job/x/y/z"):
        assert store.head(path) is None
        with pytest.raises(ObjectNotFoundError):
            store.get(path)
    assert store.get("job/x/y") == b"1"


def test_a_content_is_checked_while_it_is_read_and_little_more_is_read(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_CHUNK_BYTES", 4)
    store.put("job/x", b"0123456789")
    sha256 = hashlib.sha256(b"0123456789").hexdigest()
    read: list[int] = []
    store.check("job/x", size_bytes=10, sha256=sha256, on_read=read.append)
    assert read == [4, 8, 10]
    for size_bytes, wanted, words, expected in (
        (10, "other", "the SHA-256 of job/x differs", [4, 8, 10]),
        (11, sha256, "10 bytes instead of 11", [4, 8, 10]),
        (3, sha256, "more than 3 bytes", [4]),
    ):
        read.clear()
        with pytest.raises(ObjectCorruptError, match=words):
            store.check("job/x", size_bytes=size_bytes, sha256=wanted, on_read=read.append)
        assert read == expected

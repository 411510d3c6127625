"""A directory is deleted whatever is in it, and nothing outside of it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyscale.directory_tree import remove_tree
from tests.support.deep_directories import deepened

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "directory"
    directory.mkdir()
    return directory


def test_everything_in_it_goes_and_the_size_of_its_files_is_told(directory: Path) -> None:
    for name in ("a", "b/c", "b/d/e", "b/d/f"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x" * 10)
    os.mkfifo(directory / "b" / "pipe")
    assert remove_tree(directory) == 40
    assert not directory.exists()
    assert remove_tree(directory) == 0


def test_it_may_be_deeper_than_a_path_is_long_and_a_stack_is_high(directory: Path) -> None:
    with deepened(directory, directory / "other", levels=2500):
        assert remove_tree(directory) == 2
        assert not directory.exists()


def test_no_link_is_followed(directory: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "file").write_bytes(b"stays")
    (directory / "to a folder").symlink_to(outside)
    (directory / "to a file").symlink_to(outside / "file")
    remove_tree(directory)
    assert {path.name for path in outside.iterdir()} == {"inner", "file"}
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="directory"):
        remove_tree(tmp_path / "link")
    assert {path.name for path in outside.iterdir()} == {"inner", "file"}


def test_the_rest_goes_if_something_cannot_be_deleted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/kept", "b/file", "c/file"):
        (directory / name).parent.mkdir()
        (directory / name).write_bytes(b"x")
    unlink = os.unlink

    def refusing(path: str, *, dir_fd: int | None = None) -> None:
        if path == "kept":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    with pytest.raises(PermissionError):
        remove_tree(directory)
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["kept"]

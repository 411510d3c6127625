"""Files on this host are found by content, trusted ones first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex
from keyscale.state.local import file_index
from keyscale.state.local.damage import doubt_local_files, give_up_local_files
from keyscale.state.local.file_index import (
    INDEX_NAME,
    FileIdentity,
    FileIndex,
    IndexedFile,
    distrust_index,
    hash_file,
    known_hashes,
    link_or_copy,
    local_copies,
    read_index,
    write_index,
)
from keyscale.state.local.subtask_directory import (
    SubtaskDirectory,
    local_snapshot_directories,
    snapshots_root,
    subtask_root,
)

if TYPE_CHECKING:
    from pathlib import Path


def indexed(directory: Path, content: str = "content") -> str:
    """Writes a directory of one file and its index; returns the file's SHA-256."""
    directory.mkdir()
    file = directory / "1.sst"
    file.write_text(content)
    sha256 = hash_file(file)
    write_index(directory, [IndexedFile(file.name, FileIdentity.of(file), sha256)])
    return sha256


@pytest.mark.parametrize("distrusted", [["a"], ["b"], ["a", "b"], []])
def test_a_trusted_copy_is_taken_before_others_and_the_first_of_equals(tmp_path: Path, distrusted: list[str]) -> None:
    places = [tmp_path / name for name in ("a", "b", "c")]
    wanted = indexed(places[0])
    assert wanted == indexed(places[1])
    indexed(places[2], "other")
    for name in distrusted:
        distrust_index(tmp_path / name)
    (copy,) = local_copies(places, {wanted}).values()
    trusted = [place for place in places[:2] if place.name not in distrusted]
    assert copy.path.parent == (trusted or places)[0]
    assert (copy.sha256, copy.is_trusted) == (wanted, bool(trusted))


def test_a_file_that_has_changed_since_is_not_found(tmp_path: Path) -> None:
    wanted = indexed(tmp_path / "a")
    (tmp_path / "a" / "1.sst").write_text("more content")
    assert local_copies([tmp_path / "a"], {wanted}) == {}


def test_an_index_that_cannot_be_used_counts_as_empty(tmp_path: Path) -> None:
    sha256 = indexed(tmp_path / "a")
    place = tmp_path / "a" / INDEX_NAME
    index = read_index(tmp_path / "a")
    assert [file.sha256 for file in index.files] == [sha256]
    for content in (
        b"",
        place.read_bytes()[:-5],
        msgspec.json.encode(msgspec.structs.replace(index, format_version=3)),
    ):
        place.write_bytes(content)
        assert read_index(tmp_path / "a") == FileIndex()
    assert read_index(tmp_path / "gone") == FileIndex()
    assert list((tmp_path / "a").glob(f"{INDEX_NAME}.*")) == [], "a written index leaves no temporary file"


def test_hashes_of_distrusted_files_are_still_known(tmp_path: Path) -> None:
    sha256 = indexed(tmp_path / "a")
    assert distrust_index(tmp_path / "a")
    assert not distrust_index(tmp_path / "a"), "it was no longer trusted"
    assert known_hashes([tmp_path / "none", tmp_path / "a"]) == {FileIdentity.of(tmp_path / "a" / "1.sst"): sha256}


def test_a_distrusted_copy_is_sound_only_while_its_content_is_the_same(tmp_path: Path) -> None:
    sha256 = indexed(tmp_path / "a")
    distrust_index(tmp_path / "a")
    (copy,) = local_copies([tmp_path / "a"], {sha256}).values()
    assert copy.is_sound()
    copy.path.write_text("c0ntent")
    assert not copy.is_sound()
    copy.path.unlink()
    assert not copy.is_sound()


def test_a_file_is_linked_or_copied_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    link_or_copy(source, tmp_path / "link")
    assert (tmp_path / "link").samefile(source)

    def across_disks(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", across_disks)
    link_or_copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "content"
    assert not (tmp_path / "copy").samefile(source)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "gone", tmp_path / "never")


def places_of(local_root: Path) -> dict[str, Path]:
    """Local snapshots of two subtasks and attempts of an operator, of another operator and of another job."""
    owners = {
        "same": ("job", 2, "count", 0),
        "other subtask": ("job", 2, "count", 1),
        "earlier attempt": ("job", 1, "count", 0),
        "other operator": ("job", 2, "sum", 0),
        "other job": ("another", 2, "count", 0),
    }
    places = {}
    for name, (job, attempt, uid, subtask) in owners.items():
        root = subtask_root(local_root, JobId(job), Attempt(attempt), OperatorUid(uid), SubtaskIndex(subtask))
        snapshots_root(root).mkdir(parents=True)
        places[name] = snapshots_root(root) / "1-u"
        indexed(places[name])
    return places


OPERATORS_OWN = {"same", "other subtask", "earlier attempt"}


def test_damage_makes_an_operators_files_of_all_subtasks_and_attempts_doubtful(tmp_path: Path) -> None:
    places = places_of(tmp_path)
    found = local_snapshot_directories(tmp_path, JobId("job"), OperatorUid("count"))
    assert {*found} == {places[name] for name in OPERATORS_OWN}
    assert doubt_local_files(places["same"].parent.parent)
    assert {name for name, place in places.items() if not read_index(place).is_trusted} == OPERATORS_OWN
    assert not doubt_local_files(places["same"].parent.parent), "all of them were in doubt already"


def test_a_directory_that_cannot_be_marked_or_is_gone_does_not_hinder_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = places_of(tmp_path)
    write = file_index._write

    def written(directory: Path, index: FileIndex) -> None:
        if directory == places["other subtask"]:
            raise PermissionError(13, "Permission denied")
        if directory == places["earlier attempt"]:
            raise FileNotFoundError(2, "just removed")
        write(directory, index)

    monkeypatch.setattr(file_index, "_write", written)
    assert doubt_local_files(places["same"].parent.parent)
    assert not read_index(places["same"]).is_trusted
    marked = [record.getMessage() for record in caplog.records if "cannot mark" in record.getMessage()]
    assert marked == [f"cannot mark the files in {places['other subtask']} as damaged"]


def test_files_that_are_given_up_lose_their_marker_once_and_are_asked_back(tmp_path: Path) -> None:
    places = places_of(tmp_path)
    root = places["same"].parent.parent
    held = SubtaskDirectory.acquire(root)
    assert not held.is_damaged
    give_up_local_files(root)
    assert (held.is_damaged, held.hand_over_signal.is_requested) == (True, True)
    (held.path / "CLEAN").write_bytes(b"{}")
    assert held.take_clean_marker() is None
    assert (held.is_damaged, (held.path / "CLEAN").exists()) == (False, False)
    held.release()
    assert not read_index(places["other subtask"]).is_trusted

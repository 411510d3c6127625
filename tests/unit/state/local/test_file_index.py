"""Files on this host are found by content, trusted ones first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.state.local.file_index import (
    FileIdentity,
    IndexedFile,
    distrust_index,
    hash_file,
    local_copies,
    write_index,
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

"""Files that a manifest names: its job's own and those that it has claimed are its job's, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import JobId
from keyscale.state.documents.claim import take_claim
from keyscale.state.documents.manifest import FileHandle, Manifest, encode_manifest
from keyscale.state.inspection.foreign_files import foreign_files
from keyscale.state.inspection.verification import Verification, verify
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store")


def savepoint_of(store: LocalObjectStore, job: str, tmp_path: Path) -> Manifest:
    made = StateJob(store, tmp_path / job, JobId(job))
    made.start(1)
    made.run_batch({1: 1})
    return made.checkpoint("s")[0]


def naming(manifest: Manifest, path: str) -> Manifest:
    return msgspec.structs.replace(manifest, positions=FileHandle("positions", path, 1, "0" * 64))


def test_files_of_a_savepoint_belong_to_its_claimer_alone(store: LocalObjectStore, tmp_path: Path) -> None:
    theirs, mine = savepoint_of(store, "theirs", tmp_path), savepoint_of(store, "mine", tmp_path)
    assert foreign_files(store, mine) == []
    file = next(theirs.files()).path
    assert foreign_files(store, naming(mine, file)) == [file]
    take_claim(store, theirs, JobId("another"))
    assert foreign_files(store, naming(mine, file)) == [file]
    store.delete(["theirs/savepoints/s/claim.json"])
    take_claim(store, theirs, JobId("mine"))
    assert foreign_files(store, naming(mine, file)) == []


@pytest.mark.parametrize("path", ["theirs/shared/a", "minebut/shared/a", "../token", "/etc/passwd", "mine", "", "a//b"])
def test_no_other_path_is_a_file_of_a_job(store: LocalObjectStore, tmp_path: Path, path: str) -> None:
    assert foreign_files(store, naming(savepoint_of(store, "mine", tmp_path), path)) == [path]


def test_a_verification_does_not_look_at_foreign_files(store: LocalObjectStore, tmp_path: Path) -> None:
    theirs, mine = savepoint_of(store, "theirs", tmp_path), savepoint_of(store, "mine", tmp_path)
    forged = naming(mine, next(theirs.files()).path)
    for manifest, problem in (
        (forged, "is not a file of its job"),
        (theirs, "is the manifest of theirs/savepoints/s/manifest.json"),
    ):
        store.put(mine.path, encode_manifest(manifest))
        for hashes in (True, False):
            found = verify(store, mine.path, hashes=hashes, goes_on=lambda _: True)
            assert (found.problem_count, problem in found.problems[0]) == (1, True), found.problems


def test_a_verification_tells_what_it_has_read_while_it_reads(store: LocalObjectStore, tmp_path: Path) -> None:
    mine = savepoint_of(store, "mine", tmp_path)
    files = {file.path: file.size_bytes for file in mine.files()}
    assert len(files) > 1
    read: list[tuple[int, int]] = []

    def goes_on(found: Verification) -> bool:
        read.append((found.files_checked, found.bytes_read))
        return True

    found = verify(store, mine.path, hashes=True, goes_on=goes_on)
    assert (found.files, found.files_checked, found.bytes_read) == (len(files), len(files), sum(files.values()))
    assert read == sorted(read)
    assert found.manifest == mine
    ended = verify(store, mine.path, hashes=False, goes_on=lambda found: found.files_checked < 1)
    assert (ended.files, ended.files_checked, ended.bytes_read, ended.problems) == (len(files), 1, 0, [])

"""Source positions come back as they were stored; those of earlier versions are read as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError, FormatTooNewError, encode_document
from keyscale.state.documents.source_positions import (
    KIND,
    BatchEnd,
    ReadFiles,
    SourcePositions,
    decode_positions,
    read_positions,
    write_positions,
)
from keyscale.state.layout import Layout
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import FileHandle

GOLDEN = ROOT / "tests" / "golden" / "source-positions-v1.json"
POSITIONS = SourcePositions(
    sources=("web", "app"),
    query='{"id":"6b5f7a52-4fb3-4ab2-9ba2-6c5b9b0e5b0d"}',
    batches=(
        BatchEnd(6, "v1", '{"batchWatermarkMs":0}', ('{"logOffset":4}', "-"), 'v1\n{"nextBatchWatermarkMs":0}'),
        BatchEnd(7, "v1", '{"batchWatermarkMs":0}', ('{"logOffset":5}', '{"version":1,"splits":{"t/0":[0,9]}}')),
    ),
    read_files={"0": (ReadFiles(9, True, "v1", ('{"path":"é"}', '{"path":"b"}')), ReadFiles(10, False, "v1", ()))},
    others={"unknown": "kept"},
)


def written(store: LocalObjectStore) -> FileHandle:
    layout = Layout(JobId("job"))
    return write_positions(store, layout, POSITIONS, checkpoint_id=CheckpointId(1), savepoint_id=None, unique="u")


def test_positions_come_back_or_are_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    handle = written(store)
    assert read_positions(store, handle) == POSITIONS
    for damaged in (b"{}", store.get(handle.path).replace(b"kept", b"lost")):
        store.put(handle.path, damaged)
        with pytest.raises(ObjectCorruptError):
            read_positions(store, handle)


def test_the_golden_document_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    assert decode_positions(GOLDEN.read_bytes(), "golden") == POSITIONS
    store = LocalObjectStore(tmp_path)
    assert store.get(written(store).path) == GOLDEN.read_bytes().rstrip()


def test_positions_of_version_0_1_are_sparks_files() -> None:
    files = {"metadata": "m", "offsets/3": "v1\n{}\n-", "sources/0/1": "é"}
    assert decode_positions(msgspec.json.encode(files), "old") == files


def test_other_documents_and_newer_ones_are_refused() -> None:
    with pytest.raises(DocumentCorruptError):
        decode_positions(b'{"offsets/3": 1}', "other")
    with pytest.raises(DocumentCorruptError):
        decode_positions(b"[", "cut off")
    with pytest.raises(DocumentCorruptError):
        decode_positions(b'{"offsets/3": "\xff"}', "no UTF-8")
    with pytest.raises(FormatTooNewError):
        decode_positions(encode_document(KIND, 2, POSITIONS), "newer")

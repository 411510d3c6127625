"""A process that reads what others write parses no document that would take much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.state.documents import checked_document
from keyscale.state.documents.checked_document import (
    DOCUMENT_BYTES_MAX,
    STRUCTURES_MAX,
    VALUES_MAX,
    DocumentCorruptError,
    document_bytes,
    is_cheap,
)
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("part", "count_max"),
    [(b"{}", STRUCTURES_MAX), (b"[]", STRUCTURES_MAX), (b"{[", STRUCTURES_MAX // 2), (b"1,", VALUES_MAX)],
)
def test_the_structures_and_values_of_a_document_are_limited(part: bytes, count_max: int) -> None:
    assert is_cheap(part * count_max)
    assert not is_cheap(part * (count_max + 1))


def test_the_bytes_of_a_document_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_document, "DOCUMENT_BYTES_MAX", 10)
    assert is_cheap(b"x" * 10)
    assert not is_cheap(b"x" * 11)


def test_a_driver_reads_its_own_documents_of_any_size(tmp_path: Path) -> None:
    data = b"{}" * (STRUCTURES_MAX + 1)
    LocalObjectStore(tmp_path).put("a", data)
    assert document_bytes(LocalObjectStore(tmp_path), "a", "manifest") == data
    for limit in (DOCUMENT_BYTES_MAX, 10):
        with pytest.raises(DocumentCorruptError, match="too large for a manifest"):
            document_bytes(LocalObjectStore(tmp_path, get_bytes_max=limit), "a", "manifest")

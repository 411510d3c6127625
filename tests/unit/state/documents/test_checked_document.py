"""A process that reads what others write parses no document that would take much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import JobId
from keyscale.state.documents import checked_document
from keyscale.state.documents.checked_document import (
    DOCUMENT_BYTES_MAX,
    STRUCTURES_MAX,
    VALUES_MAX,
    DocumentCorruptError,
    FormatTooNewError,
    decode_document,
    document_bytes,
    encode_document,
    is_cheap,
)
from keyscale.state.documents.claim import Claim
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


def test_a_document_is_read_only_as_what_it_is_and_as_it_was_written() -> None:
    body = Claim(JobId("job"))
    data = encode_document("claim", 2, body)
    assert decode_document(data, "claim", 2, Claim, "here") == body
    with pytest.raises(DocumentCorruptError, match="here is a claim, not a pledge"):
        decode_document(data, "pledge", 2, Claim, "here")
    with pytest.raises(FormatTooNewError, match="here has format 2; this version reads up to 1"):
        decode_document(data, "claim", 1, Claim, "here")
    with pytest.raises(DocumentCorruptError, match="the checksum of here is wrong"):
        decode_document(data.replace(b'"job"', b'"jab"'), "claim", 2, Claim, "here")

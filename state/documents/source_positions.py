"""Source positions: how far a job has read its sources, as a checkpoint or savepoint holds them.

A position has the form that its source gave it, and is kept as text. All else has a form of ours, which does not
depend on the places where Spark keeps such things. Up to version 0.1 the document was a copy of the files of Spark's
own checkpoint directory, by relative path; it is still read.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ..objects.errors import ObjectCorruptError
from .checked_document import decode_document, encode_document
from .manifest import FileHandle

if TYPE_CHECKING:
    from ..identifiers import CheckpointId
    from ..layout import Layout
    from ..objects.object_store import ObjectStore

KIND = "source-positions"
FORMAT_VERSION = 1

SparkFiles: TypeAlias = dict[str, str]
"""Contents of files of Spark's checkpoint directory by relative path: the form up to version 0.1."""


class BatchEnd(msgspec.Struct, frozen=True):
    """Where a batch ended in every input.

    Attributes:
        number: Spark's number of the batch.
        version: Version of the form in which Spark gave the rest.
        facts: What Spark recorded of the batch besides: its time and settings, as JSON.
        ends: The position in each input of the query, in the order of the sources, as the input gave it; "-" where it
            has read nothing.
        commit: What Spark recorded when the batch was done; None if it had not yet.
    """

    number: int
    version: str
    facts: str
    ends: tuple[str, ...]
    commit: str | None = None


class ReadFiles(msgspec.Struct, frozen=True):
    """An entry of what an input keeps itself of the files that it has read.

    Attributes:
        number: The entry's number, which the positions refer to.
        is_whole: Whether it holds the files of all entries before it, too.
        version: Version of the form in which Spark gave the files.
        files: One JSON text per file.
    """

    number: int
    is_whole: bool
    version: str
    files: tuple[str, ...]


class SourcePositions(msgspec.Struct, frozen=True):
    """How far a job has read its sources.

    Attributes:
        sources: The uids of the sources, in the order of their inputs.
        query: Spark's record of the query that read them.
        batches: The last batches, the oldest first.
        read_files: What inputs keep themselves, by the input's number.
        others: Files of Spark's whose purpose is not known, by relative path.
    """

    sources: tuple[str, ...]
    query: str | None
    batches: tuple[BatchEnd, ...]
    read_files: dict[str, tuple[ReadFiles, ...]] = {}
    others: SparkFiles = {}


def write_positions(
    store: ObjectStore,
    layout: Layout,
    positions: SourcePositions,
    *,
    checkpoint_id: CheckpointId,
    savepoint_id: str | None,
    unique: str,
) -> FileHandle:
    """Stores source positions beside the manifest that will name them."""
    data = encode_document(KIND, FORMAT_VERSION, positions)
    path = layout.positions(checkpoint_id, savepoint_id, unique)
    store.put(path, data)
    return FileHandle("positions.json", path, len(data), hashlib.sha256(data).hexdigest())


def read_positions(store: ObjectStore, handle: FileHandle) -> SourcePositions | SparkFiles:
    """Returns the source positions that a manifest names.

    Raises:
        ObjectCorruptError: They are damaged.
        DocumentCorruptError: They were written so.
        FormatTooNewError: A newer version of Keyscale wrote them.
    """
    data = store.get(handle.path)
    if len(data) != handle.size_bytes or hashlib.sha256(data).hexdigest() != handle.sha256:
        raise ObjectCorruptError(f"{handle.path} does not have the length and SHA-256 recorded for it")
    return decode_positions(data, handle.path)


def decode_positions(data: bytes, where: str) -> SourcePositions | SparkFiles:
    """Returns the positions in a document's bytes; `where` names the document in errors.

    Raises:
        DocumentCorruptError: They are no such document.
        FormatTooNewError: A newer version of Keyscale wrote them.
    """
    try:
        return msgspec.json.decode(data, type=SparkFiles)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_document(data, KIND, FORMAT_VERSION, SourcePositions, where)

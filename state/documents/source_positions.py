"""Source positions: how far a job has read its sources.

A position has the form that its source gave it, and is kept as text. The rest has a form of Keyscale's own, which does
not depend on Spark's file layout. Up to version 0.1 the document was a copy of the files of Spark's checkpoint
directory, by relative path; that form is still read.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ..objects.errors import ObjectCorruptError
from .checked_document import decode_document, document_bytes, encode_document
from .manifest import FileHandle

if TYPE_CHECKING:
    from keyscale.identifiers import CheckpointId

    from ..layout import Layout
    from ..objects.object_store import ObjectStore

KIND = "source-positions"
FORMAT_VERSION = 1
ORDER_NAME = "keyscale-sources.json"
"""The name, beside Spark's own files, of the uids of a job's sources in the order of their places."""
KINDS_NAME = "keyscale-source-kinds.json"
"""The name of the kinds of the sources' inputs."""

SparkFiles: TypeAlias = dict[str, str]
"""Contents of files in Spark's checkpoint directory, by relative path (up to version 0.1)."""


class BatchEnd(msgspec.Struct, frozen=True):
    """The end of a batch in every input.

    Attributes:
        number: Spark's number of the batch.
        version: Version of the form in which Spark gave the rest.
        facts: Spark's further record of the batch, its time and settings, as JSON.
        ends: The position in each input of the query, in the order of the sources; "-" for an input that has read
            nothing.
        commit: Spark's record of the finished batch; None before it finished.
    """

    number: int
    version: str
    facts: str
    ends: tuple[str, ...]
    commit: str | None = None


class ReadFiles(msgspec.Struct, frozen=True):
    """An entry of an input's own record of its files.

    Attributes:
        number: The entry's number, which the positions refer to.
        is_whole: Whether the entry includes the files of all earlier entries.
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
        read_files: The inputs' own records of files, by the input's number.
        others: Files of Spark's with an unknown purpose, by relative path.
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
        ObjectCorruptError: The positions are damaged.
        DocumentCorruptError: The positions were already invalid when written.
        FormatTooNewError: A newer version of Keyscale wrote the positions.
    """
    data = document_bytes(store, handle.path, KIND)
    if len(data) != handle.size_bytes or hashlib.sha256(data).hexdigest() != handle.sha256:
        raise ObjectCorruptError(f"{handle.path} does not have the length and SHA-256 recorded for it")
    return decode_positions(data, handle.path)


def decode_positions(data: bytes, where: str) -> SourcePositions | SparkFiles:
    """Returns the positions in a document, which errors call `where`.

    Raises:
        DocumentCorruptError: The bytes are another document.
        FormatTooNewError: A newer version of Keyscale wrote the positions.
    """
    try:
        return msgspec.json.decode(data, type=SparkFiles)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_document(data, KIND, FORMAT_VERSION, SourcePositions, where)

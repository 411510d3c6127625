"""Checked documents: JSON with its kind, format version and checksum.

    {"keyscale": "<kind>", "format_version": 1, "sha256": "<of the body's bytes>", "body": {...}}

A reader refuses a newer format and ignores unknown fields.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from keyscale.errors import KeyscaleError

from ..decoding import json_decoder
from ..objects.errors import ObjectTooLargeError

if TYPE_CHECKING:
    from ..objects.object_store import ObjectStore

DOCUMENT_BYTES_MAX = 32 << 20
STRUCTURES_MAX = 200_000
VALUES_MAX = 1_000_000
"""The largest document that a process parses which others have written.

Parsing such a document takes at most about 200 MB. Without the bounds a manifest of many short values would
take thirty times its size. A manifest has a structure per file.
"""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class DocumentCorruptError(KeyscaleError):
    """A manifest, log entry or claim is truncated, damaged, or another document."""

    code = "STATE_DOCUMENT_CORRUPT"
    domain = "external"
    advice = "The document was damaged in the store; an earlier checkpoint is used where there is one."


class FormatTooNewError(KeyscaleError):
    """A document was written by a newer version of Keyscale."""

    code = "STATE_FORMAT_TOO_NEW"
    domain = "user"
    advice = "Run the version of Keyscale that wrote it, or a newer one."


class _Envelope(msgspec.Struct, frozen=True):
    keyscale: str
    format_version: int
    sha256: str
    body: msgspec.Raw


class _Head(msgspec.Struct, frozen=True):
    keyscale: str
    format_version: int


def encode_document(kind: str, format_version: int, body: msgspec.Struct) -> bytes:
    """Returns a document of some kind; equal bodies give equal bytes."""
    raw = msgspec.json.encode(body, order="deterministic")
    return msgspec.json.encode(_Envelope(kind, format_version, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def document_bytes(store: ObjectStore, path: str, kind: str) -> bytes:
    """Returns the bytes of a document, for `decode_document`.

    Raises:
        ObjectNotFoundError: The document does not exist.
        DocumentCorruptError: The document is larger than this process may read or parse.
    """
    try:
        data = store.get(path)
    except ObjectTooLargeError as error:
        raise DocumentCorruptError(f"too large for a {kind}: {error}") from error
    if store.get_bytes_max is not None and not is_cheap(data):
        raise DocumentCorruptError(
            f"too large for a {kind}: {path} has more than {DOCUMENT_BYTES_MAX >> 20} MiB, {STRUCTURES_MAX} objects and"
            f" lists, or {VALUES_MAX} values"
        )
    return data


def is_cheap(data: bytes) -> bool:
    """Returns whether a JSON document has few structures and values.

    Counting takes hardly any time and no memory. Brackets and commas inside texts count, too.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        return False
    return data.count(b"{") + data.count(b"[") <= STRUCTURES_MAX and data.count(b",") <= VALUES_MAX


def decode_document(data: bytes, kind: str, format_version_max: int, body_type: type[_Body], where: str) -> _Body:
    """Verifies a document and returns its body.

    Args:
        data: The document's bytes.
        kind: The kind that it must be.
        format_version_max: The newest format that can be read.
        body_type: The type of the body; unknown fields are ignored.
        where: The document's path, for the error's message.

    Raises:
        FormatTooNewError: It is of a newer format.
        DocumentCorruptError: It is not a document of this kind, or its checksum is not its body's.
    """
    try:
        head = json_decoder(_Head).decode(data)
        if head.keyscale != kind:
            raise DocumentCorruptError(f"{where} is a {head.keyscale[:40]}, not a {kind}")
        if head.format_version > format_version_max:
            raise FormatTooNewError(
                f"{where} has format {head.format_version}; this version reads up to {format_version_max}"
            )
        envelope = json_decoder(_Envelope).decode(data)
        if hashlib.sha256(envelope.body).hexdigest() != envelope.sha256:
            raise DocumentCorruptError(f"the checksum of {where} is wrong")
        return json_decoder(body_type).decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentCorruptError(f"{where} cannot be read as a {kind}") from error

"""A changelog: one subtask's mutations in one batch, as a file.

Frames format, version 1, integers little endian:

    "KSCL"  u32 version  u32 header length  header (JSON: the runs' families, counts and lengths)
    for each run: its payload, compressed with zstd: u32 key lengths, i32 value lengths (-1: deleted), keys, values
    SHA-256 of all before it

Keys of a run ascend strictly, so that two binary searches clip it to a key group range.

A large run is a separate object: a sorted file of the engine. It is written once, and the writing subtask's own
store ingests the same file.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.identifiers import BatchId, SubtaskIndex

from ..decoding import json_decoder
from ..engine.engine import SortedRun
from ..keyed.schema import KeyedSchema
from ..keys.key_groups import KeyGroupRange
from ..local.file_index import hash_file
from ..objects.errors import ObjectCorruptError
from .checked_document import FormatTooNewError
from .manifest import FileHandle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..objects.object_store import ObjectStore

MAGIC = b"KSCL"
FORMAT_VERSION = 1
_PREFIX = struct.Struct("<4sII")
_DIGEST_BYTES = 32
_CODEC = "zstd"


class ChangelogCorruptError(KeyscaleError):
    """A changelog is truncated, damaged, or another kind of object."""

    code = "STATE_CHANGELOG_CORRUPT"
    domain = "external"
    advice = "The object was damaged in the store; restore from a checkpoint taken after its batch, if there is one."


class ChangelogFormat(StrEnum):
    """The format of a changelog's object."""

    FRAMES = "frames"


class SortedFile(msgspec.Struct, frozen=True):
    """One column family's mutations of a batch, as a file for ingestion."""

    family: str
    path: str
    size_bytes: int
    sha256: str
    mutations: int


class ChangelogHandle(msgspec.Struct, frozen=True):
    """A reference to the objects with one subtask's mutations of one batch.

    Attributes:
        path: The object with the framed runs; its name is unique to the task that wrote it.
        size_bytes: Its length.
        sha256: Hex digest of its content.
        format: Its format.
        batch_id: The batch that made the mutations.
        subtask: Index of the subtask that wrote it.
        key_group_start: First key group of that subtask's range.
        key_group_end: Last one, inclusive.
        mutations: How many there are.
        schema: The schema of the entries if this batch changed it; otherwise None.
        sorted_files: Files of large runs, of other column families than the framed ones.
        operator_state: The subtask's complete operator state after the batch; None if the batch did not change it.
    """

    path: str
    size_bytes: int
    sha256: str
    format: ChangelogFormat
    batch_id: BatchId
    subtask: SubtaskIndex
    key_group_start: int
    key_group_end: int
    mutations: int
    schema: KeyedSchema | None = None
    sorted_files: tuple[SortedFile, ...] = ()
    operator_state: FileHandle | None = None

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)

    def paths(self) -> list[str]:
        """Returns the paths of all of the changelog's objects."""
        operator_state = [] if self.operator_state is None else [self.operator_state.path]
        return [self.path, *(file.path for file in self.sorted_files), *operator_state]


class ChangelogCopies(Protocol):
    """Keeps copies of changelogs on this host, beside the object store."""

    def put(self, path: str, data: bytes) -> None:
        """Keeps a copy of an object that was put into the store."""

    def upload(self, source: Path, path: str) -> None:
        """Keeps a copy of an immutable uploaded file."""

    def give_up(self) -> None:
        """Stops keeping copies, because a copy is missing."""


class _Run(msgspec.Struct, frozen=True):
    family: str
    count: int
    payload_bytes: int
    stored_bytes: int


class _Header(msgspec.Struct, frozen=True):
    runs: list[_Run]
    codec: str = _CODEC


def write_changelog(
    store: ObjectStore,
    path: str,
    runs: Sequence[SortedRun],
    *,
    batch_id: BatchId,
    subtask: SubtaskIndex,
    key_groups: KeyGroupRange,
    schema: KeyedSchema | None = None,
    files: Sequence[tuple[SortedRun, Path]] = (),
    spilled: Sequence[SortedFile] = (),
    operator_state: FileHandle | None = None,
    copies: ChangelogCopies | None = None,
) -> ChangelogHandle:
    """Stores a batch's mutations durably.

    Args:
        store: The object store.
        path: The changelog's path, which no other task uses.
        runs: The mutations, at most one run per column family.
        batch_id: The batch that made them.
        subtask: The subtask that made them.
        key_groups: The subtask's range; every key is in it.
        schema: Recorded in the handle.
        files: Further runs, each with the file that the engine has written of it.
        spilled: Files of the batch that are already stored. All files of a batch are applied in order, after the runs.
            So if there are any, every run must be in `files`.
        operator_state: Recorded in the handle; already stored.
        copies: Keeps a copy of each object on this host.
    """
    uploaded = (upload_sorted(store, f"{path}.{number}.sst", *file) for number, file in enumerate(files))
    sorted_files = (*spilled, *uploaded)
    data = encode_changelog(runs)
    store.put(path, data)
    if copies is not None:
        copies.put(path, data)
        for (_, local), stored in zip(files, sorted_files[len(spilled) :], strict=True):
            copies.upload(local, stored.path)
        if spilled:  # already uploaded
            copies.give_up()
    return ChangelogHandle(
        path=path,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format=ChangelogFormat.FRAMES,
        batch_id=batch_id,
        subtask=subtask,
        key_group_start=key_groups.start,
        key_group_end=key_groups.end,
        mutations=sum(len(run) for run in runs) + sum(file.mutations for file in sorted_files),
        schema=schema,
        sorted_files=sorted_files,
        operator_state=operator_state,
    )


def read_changelog(store: ObjectStore, handle: ChangelogHandle) -> list[SortedRun]:
    """Reads and verifies a changelog's framed runs.

    Raises:
        ObjectNotFoundError: It is gone.
        ObjectCorruptError: Its length or hash differs from the handle's.
        ChangelogCorruptError: It cannot be decoded.
        FormatTooNewError: A newer version wrote it.
    """
    data = store.get(handle.path)
    if len(data) != handle.size_bytes or hashlib.sha256(data).hexdigest() != handle.sha256:
        raise ObjectCorruptError(f"{handle.path} does not have the length and SHA-256 recorded for it")
    return decode_changelog(data, handle.path)


def clip_runs(runs: Sequence[SortedRun], key_groups: KeyGroupRange) -> list[SortedRun]:
    """Returns the non-empty parts of runs inside a key group range."""
    clipped = []
    for run in runs:
        start, end = bisect_left(run.keys, key_groups.start_key), bisect_left(run.keys, key_groups.end_key)
        if start < end:
            whole = end - start == len(run.keys)
            clipped.append(run if whole else SortedRun(run.family, run.keys[start:end], run.values[start:end]))
    return clipped


def encode_changelog(runs: Sequence[SortedRun]) -> bytes:
    """Returns the bytes of a changelog file in the frames format."""
    payloads = [_encode_run(run) for run in runs]
    stored = [pa.compress(payload, codec=_CODEC, asbytes=True) for payload in payloads]
    header = _Header(
        [
            _Run(run.family, len(run), len(payload), len(compressed))
            for run, payload, compressed in zip(runs, payloads, stored, strict=True)
        ]
    )
    encoded = msgspec.json.encode(header)
    parts = [_PREFIX.pack(MAGIC, FORMAT_VERSION, len(encoded)), encoded, *stored]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode_changelog(data: bytes, where: str) -> list[SortedRun]:
    """Returns the runs of a changelog file.

    `where` names the file in errors, which are `read_changelog`'s errors.
    """
    if len(data) < _PREFIX.size + _DIGEST_BYTES:
        raise ChangelogCorruptError(f"{where} is too short for a changelog")
    magic, version, header_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ChangelogCorruptError(f"{where} is not a changelog")
    if version > FORMAT_VERSION:
        raise FormatTooNewError(f"{where} has format {version}; this version reads up to {FORMAT_VERSION}")
    end = len(data) - _DIGEST_BYTES
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise ChangelogCorruptError(f"the checksum of {where} is wrong")
    at = _PREFIX.size + header_bytes
    header = json_decoder(_Header).decode(data[_PREFIX.size : at])
    runs = []
    for run in header.runs:
        payload = pa.decompress(data[at : at + run.stored_bytes], run.payload_bytes, codec=header.codec, asbytes=True)
        runs.append(_decode_run(run, payload))
        at += run.stored_bytes
    return runs


def upload_sorted(store: ObjectStore, path: str, run: SortedRun, file: Path) -> SortedFile:
    """Uploads the sorted file that the engine has written of a run."""
    handle = SortedFile(run.family, path, file.stat().st_size, hash_file(file), len(run))
    store.upload(file, path, immutable=True)
    return handle


def _encode_run(run: SortedRun) -> bytes:
    key_lengths = np.fromiter(map(len, run.keys), "<u4", len(run.keys))
    value_lengths = np.fromiter((-1 if value is None else len(value) for value in run.values), "<i4", len(run.values))
    return b"".join([key_lengths.tobytes(), value_lengths.tobytes(), *run.keys, *filter(None, run.values)])


def _decode_run(run: _Run, payload: bytes) -> SortedRun:
    key_lengths = np.frombuffer(payload, "<u4", run.count)
    value_lengths = np.frombuffer(payload, "<i4", run.count, offset=4 * run.count)
    at = 8 * run.count
    key_ends = list(accumulate(key_lengths.tolist(), initial=at))
    value_ends = accumulate(np.maximum(value_lengths, 0).tolist(), initial=key_ends[-1])
    keys = [payload[start:end] for start, end in pairwise(key_ends)]
    values = [
        None if length < 0 else payload[start:end]
        for length, (start, end) in zip(value_lengths.tolist(), pairwise(value_ends), strict=True)
    ]
    return SortedRun(run.family, keys, values)

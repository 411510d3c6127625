"""The mutations in a changelog, whatever the form of its files."""

from __future__ import annotations

import shutil
import uuid
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

from ..documents.changelog import read_changelog
from ..engine.engine import Mutation
from ..engine.rocksdb import RocksDbEngine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from ..documents.changelog import ChangelogHandle, SortedFile
    from ..objects.object_store import ObjectStore

KeyRange: TypeAlias = tuple[bytes, bytes | None]
_ALL: KeyRange = (b"", None)
_UNTOUCHED = b"\xff"  # no stored value, since it has no format


def changelog_mutations(
    store: ObjectStore,
    handle: ChangelogHandle,
    *,
    known: Collection[tuple[str, bytes]],
    scratch: Path,
    ranges: Mapping[str, KeyRange] | None = None,
) -> Iterator[Mutation]:
    """Yields the mutations of a changelog.

    A sorted file shows which entries it removes only beside known entries: removals of other entries are left out.

    Args:
        store: The object store.
        handle: The changelog.
        known: States and stored keys of entries that the changelog may remove.
        scratch: An existing directory for temporary files.
        ranges: The ranges of stored keys to yield, by state; None: all of all states.

    Raises:
        ObjectNotFoundError: A file is gone.
        ObjectCorruptError, ChangelogCorruptError: A file is damaged.
    """
    for run in read_changelog(store, handle):
        found = _ALL if ranges is None else ranges.get(run.family)
        if found is not None:
            start = bisect_left(run.keys, found[0])
            end = len(run.keys) if found[1] is None else bisect_left(run.keys, found[1])
            for key, value in zip(run.keys[start:end], run.values[start:end], strict=True):
                yield Mutation(run.family, key, value)
    for file in handle.sorted_files:
        found = _ALL if ranges is None else ranges.get(file.family)
        if found is not None:
            before = [key for family, key in known if family == file.family]
            yield from _of_sorted_file(store, file, before, found, scratch / uuid.uuid4().hex)


def _of_sorted_file(
    store: ObjectStore, sorted_file: SortedFile, before: list[bytes], wanted: KeyRange, place: Path
) -> Iterator[Mutation]:
    family = sorted_file.family
    place.mkdir()
    engine = RocksDbEngine(place / "engine")
    try:
        engine.write([Mutation(family, key, _UNTOUCHED) for key in before])
        file = place / "file"
        store.download(sorted_file.path, file, size_bytes=sorted_file.size_bytes, sha256=sorted_file.sha256)
        engine.ingest(family, [file])
        after = dict(engine.scan(family, *wanted))
    finally:
        engine.close()
        shutil.rmtree(place, ignore_errors=True)
    yield from (Mutation(family, key, value) for key, value in after.items() if value != _UNTOUCHED)
    yield from (Mutation(family, key, None) for key in before if key not in after)

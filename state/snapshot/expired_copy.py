"""Removes expired entries from a snapshot's hard-linked copy, beside the batches."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from keyscale.failpoints import failpoint

from ..engine.rocksdb import RocksDbEngine
from ..keyed.cleanup import purge_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..engine.rocksdb_settings import RocksDbSettings

logger = logging.getLogger(__name__)
_COMPACTED_FROM = 10  # a copy is compacted if at least one in this many entries is expired


def clean_copies(
    directories: Sequence[Path], expired: Mapping[str, Callable[[bytes], bool]], settings: RocksDbSettings
) -> None:
    """Removes expired entries from hard-linked copies of stores.

    The stores themselves stay untouched. A complete cleaned copy replaces each copy, so the function may die at any
    step and be repeated.

    Raises:
        StoreLockedError: Another process is cleaning.
        StoreCorruptError, DiskFullError, DiskReadOnlyError, StoreIOError: A copy cannot be read, or a new one cannot be
            written.
    """
    for directory in directories:
        cleaned = directory.with_name(f"{directory.name}.cleaned")
        if cleaned.exists():  # an earlier run died while replacing the copy
            _replace(directory, cleaned)
        if expired:
            _clean(directory, cleaned, expired, settings)
            failpoint("snapshot.copy_cleaned")
            _replace(directory, cleaned)


def _clean(
    directory: Path, cleaned: Path, expired: Mapping[str, Callable[[bytes], bool]], settings: RocksDbSettings
) -> None:
    """Makes a cleaned copy of a copy.

    It replaces the copy even if nothing was removed, because opening the copy has left files in it.
    """
    unfinished = cleaned.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    engine = RocksDbEngine(directory, settings)
    try:
        families = engine.families()
        purged = purge_all(engine, {name: check for name, check in expired.items() if name in families})
        removed = sum(each.removed for each in purged.values())
        for family, each in purged.items():
            if each.removed and each.removed * _COMPACTED_FROM >= each.seen:
                engine.compact(family)
        engine.checkpoint(unfinished)
    finally:
        engine.close()
    unfinished.rename(cleaned)
    logger.info("removed %d expired entries from %s", removed, directory)


def _replace(directory: Path, cleaned: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    failpoint("snapshot.copy_removed")
    cleaned.rename(directory)

"""Leaving expired entries out of a full snapshot: its hard-linked copy is cleaned while the batches go on."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from state.cleanup import purge_all
from state.rocksdb import RocksDbEngine
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from state.settings import RocksDbSettings

logger = logging.getLogger(__name__)
_COMPACTED_FROM = 10  # a copy is rewritten without what is expired if that is one entry in so many, or more


def clean_copies(
    directories: Sequence[Path], expired: Mapping[str, Callable[[bytes], bool]], settings: RocksDbSettings
) -> None:
    """Remove expired entries from hard-linked copies of stores; the stores that they are copies of are not touched.

    A copy is replaced by one that is whole, so that this may die at any step and be done again.

    Raises:
        StoreLockedError: Another process is at it.
        StoreCorruptError, DiskFullError, DiskReadOnlyError, StoreIOError: A copy cannot be read, or no new one written.
    """
    for directory in directories:
        cleaned = directory.with_name(f"{directory.name}.cleaned")
        if cleaned.exists():  # it died while it replaced the copy
            _replace(directory, cleaned)
        if expired:
            _clean(directory, cleaned, expired, settings)
            reach("snapshot.copy_cleaned")
            _replace(directory, cleaned)


def _clean(
    directory: Path, cleaned: Path, expired: Mapping[str, Callable[[bytes], bool]], settings: RocksDbSettings
) -> None:
    """Make a cleaned copy of a copy. It replaces the copy even if nothing was removed: opening that has left files in it."""
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
    logger.info("left %d expired entries out of %s", removed, directory)


def _replace(directory: Path, cleaned: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    reach("snapshot.copy_removed")
    cleaned.rename(directory)

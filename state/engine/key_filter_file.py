"""The file that keeps a closed store's key filters.

Format version 1, integers little endian:

    "KSKF"  u32 version  u32 header length  header (JSON)
    for each family, for each part of its filter: its words, u64

The file is local and short-lived: an unreadable or outdated file is ignored, and filters start empty.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..decoding import json_decoder
from .key_filter import FamilyFilter, KeyFilter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .key_filter import Words

logger = logging.getLogger(__name__)

FILE_NAME = "key-filters"
_MAGIC = b"KSKF"
_FORMAT_VERSION = 1
_PREFIX = struct.Struct("<4sII")


class _Family(msgspec.Struct, frozen=True):
    name: str
    covered: bytes | None
    words: list[int]  # per part
    crc32: int


class _Header(msgspec.Struct, frozen=True):
    sequence: int
    families: list[_Family]


def keep_filters(directory: Path, filters: Mapping[str, FamilyFilter], sequence: int) -> None:
    """Writes a closing store's filters; failures are ignored.

    Args:
        directory: The store's directory.
        filters: The filters by family.
        sequence: The number of the store's last change.
    """
    if not filters:
        return
    header = _Header(sequence, [_family(name, found) for name, found in filters.items()])
    encoded = msgspec.json.encode(header)
    path = directory / FILE_NAME
    try:
        with path.open("wb") as file:
            file.write(_PREFIX.pack(_MAGIC, _FORMAT_VERSION, len(encoded)))
            file.write(encoded)
            for found in filters.values():
                for part in found.keys.parts:
                    file.write(part.astype("<u8", copy=False).data)
    except OSError:
        logger.info("the key filters of %s could not be written", directory, exc_info=True)
        with contextlib.suppress(OSError):
            path.unlink()


def take_filters(directory: Path, sequence: int) -> dict[str, FamilyFilter]:
    """Returns an opening store's filters if current, and removes their file.

    Args:
        directory: The store's directory.
        sequence: The number of the store's last change.
    """
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            path.unlink()  # before the store changes, because the file would then lack the changes
            magic, version, length = _PREFIX.unpack(file.read(_PREFIX.size))
            if (magic, version) != (_MAGIC, _FORMAT_VERSION):
                return {}
            header = json_decoder(_Header).decode(file.read(length))
            if header.sequence != sequence:
                return {}
            filters: dict[str, FamilyFilter] = {}
            for family in header.families:
                parts = [np.fromfile(file, "<u8", count) for count in family.words]
                if [len(part) for part in parts] != family.words or _crc32(parts) != family.crc32:
                    return {}
                filters[family.name] = FamilyFilter(KeyFilter(parts), family.covered)
            return filters
    except FileNotFoundError:
        return {}
    except (OSError, struct.error, msgspec.MsgspecError):
        logger.info("the key filters of %s could not be read", directory, exc_info=True)
        return {}


def _family(name: str, found: FamilyFilter) -> _Family:
    return _Family(name, found.covered, [len(part) for part in found.keys.parts], _crc32(found.keys.parts))


def _crc32(parts: list[Words]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part.data, crc)
    return crc

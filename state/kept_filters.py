"""The file in which a closed store's key filters wait until it is opened again.

Format version 1, integers little endian:

    "KSKF"  u32 version  u32 header length  header (JSON)
    for each family, for each part of its filter: its words, u64

It is local and short-lived: what cannot be read, or does not belong to the store as it is, is left alone, and filters begin anew.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from state.decoding import json_decoder
from state.family_filter import FamilyFilter
from state.key_filter import KeyFilter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from state.key_filter import Words

_log = logging.getLogger(__name__)

FILE_NAME = "key-filters"
_MAGIC = b"KSKF"
_FORMAT_VERSION = 1
_PREFIX = struct.Struct("<4sII")


class _Family(msgspec.Struct, frozen=True):
    name: str
    covered: bytes | None
    words: list[int]  # of each part
    crc32: int


class _Header(msgspec.Struct, frozen=True):
    sequence: int
    families: list[_Family]


def keep_filters(directory: Path, filters: Mapping[str, FamilyFilter], sequence: int) -> None:
    """Write down a store's filters as it is closed. If that fails there is no file.

    Args:
        directory: The store's.
        filters: By family.
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
        _log.info("the key filters of %s are not kept", directory, exc_info=True)
        with contextlib.suppress(OSError):
            path.unlink()


def take_filters(directory: Path, sequence: int) -> dict[str, FamilyFilter]:
    """A store's filters as it is opened; none if they are not of the store as it is now. Their file is gone then.

    Args:
        directory: The store's.
        sequence: The number of its last change.
    """
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            path.unlink()  # before anything changes the store, as they would not know of it
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
        _log.info("the key filters of %s cannot be read", directory, exc_info=True)
        return {}


def _family(name: str, found: FamilyFilter) -> _Family:
    return _Family(name, found.covered, [len(part) for part in found.keys.parts], _crc32(found.keys.parts))


def _crc32(parts: list[Words]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part.data, crc)
    return crc

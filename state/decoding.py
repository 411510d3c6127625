"""Decoders of stored documents, each made by one thread alone.

msgspec works out how to decode a struct when it is first decoded. Two threads that are the first at the same time read what is half
worked out, and the process dies of a segmentation fault. The log, manifests and changelogs are read by several threads.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_lock = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def json_decoder(of_type: type[_T]) -> msgspec.json.Decoder[_T]:
    """The decoder of a type; whoever uses it may do so at the same time as others."""
    with _lock:
        decoder = _decoders.get(of_type)
        if decoder is None:
            decoder = _decoders[of_type] = msgspec.json.Decoder(of_type)
        return decoder

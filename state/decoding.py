"""Decoders of stored documents, each created by a single thread.

msgspec prepares the decoding of a struct type at first use. If two threads decode the same type for the first time at
the same moment, one of them sees half-prepared data and the process dies of a segmentation fault. The log, manifests
and changelogs are read by several threads.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_lock = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def json_decoder(of_type: type[_T]) -> msgspec.json.Decoder[_T]:
    """Returns the decoder of a type. Several threads may use it at the same time."""
    with _lock:
        decoder = _decoders.get(of_type)
        if decoder is None:
            decoder = _decoders[of_type] = msgspec.json.Decoder(of_type)
        return decoder

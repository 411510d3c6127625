"""Decoders of stored documents, each created by a single thread.

msgspec prepares the decoding of a struct type at first use. Two threads that decode the same type for the first time at
the same moment crash the process with a segmentation fault. Several threads read the log, manifests and changelogs.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_lock = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def json_decoder(of_type: type[_T]) -> msgspec.json.Decoder[_T]:
    """Returns the decoder of a type, safe for use by several threads."""
    with _lock:
        decoder = _decoders.get(of_type)
        if decoder is None:
            decoder = _decoders[of_type] = msgspec.json.Decoder(of_type)
        return decoder

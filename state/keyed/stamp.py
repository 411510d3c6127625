"""The stamp of a stored value with a TTL: 6 ordered bytes.

It is the time of the last access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

STAMP_BYTES = 6
STAMP_MAX_MS = (1 << (8 * STAMP_BYTES - 1)) - 1
STAMP_MIN_MS = -STAMP_MAX_MS


def encode_stamp(at_ms: int) -> bytes:
    """Returns the stored form of a time, which orders by time.

    A time too large for 6 bytes becomes the nearest possible time.
    """
    return (max(STAMP_MIN_MS, min(at_ms, STAMP_MAX_MS)) + STAMP_MAX_MS + 1).to_bytes(STAMP_BYTES, "big")


def encode_stamps(at_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Returns the stored forms of times, one per row."""
    numbers = np.clip(at_ms, STAMP_MIN_MS, STAMP_MAX_MS) + (STAMP_MAX_MS + 1)
    return numbers.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - STAMP_BYTES :]


def decode_stamp(raw: bytes) -> int:
    """Returns the time that `encode_stamp` encoded."""
    return int.from_bytes(raw, "big") - STAMP_MAX_MS - 1

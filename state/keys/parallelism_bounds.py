"""Bounds of max parallelism, as in Flink.

Readers of settings import it, so it does not import NumPy.
"""

from __future__ import annotations

from ..errors import KeyGroupError

MAX_PARALLELISM_LOWER_BOUND = 128
MAX_PARALLELISM_UPPER_BOUND = 32768


def default_max_parallelism(parallelism: int) -> int:
    """Returns the default max parallelism of a job.

    It is 1.5 times the parallelism, rounded up to a power of two, within Flink's bounds, 128 to 32768.
    """
    if parallelism < 1:
        raise KeyGroupError(f"parallelism must be at least 1, not {parallelism}")
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, MAX_PARALLELISM_LOWER_BOUND), MAX_PARALLELISM_UPPER_BOUND)

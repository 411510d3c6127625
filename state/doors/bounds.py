"""Bounds of a job's max parallelism.

The protocol and clients import it: it needs neither NumPy nor Arrow.
"""

from __future__ import annotations

from ..keys.parallelism_bounds import MAX_PARALLELISM_UPPER_BOUND, default_max_parallelism

__all__ = ["MAX_PARALLELISM_UPPER_BOUND", "default_max_parallelism"]

"""Key filters that begin, grow and are judged within a few keys, for tests that have few."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def eager_filters(*, judged_lookups: int = 1 << 20, watched_lookups: int = 1) -> Iterator[None]:
    """Any lookup of several keys may begin a filter, which has room for 64 keys at first."""
    with (
        patch("keyscale.state.engine.filtered._LOOKUPS_MIN", 1),
        patch("keyscale.state.engine.filtered._KEYS_MIN", 64),
        patch("keyscale.state.engine.key_filter._JUDGED_LOOKUPS", judged_lookups),
        patch("keyscale.state.engine.filtered._WATCHED_LOOKUPS", watched_lookups),
    ):
        yield

"""Sizes and durations in the words that people read."""

from __future__ import annotations

import pytest

from keyscale.units import bytes_text, duration_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (2048 << 40, "2048.0 TiB"),
    ],
)
def test_sizes(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1040, "1 s"),
        (119_900, "119.9 s"),
        (125_000, "2 min 5 s"),
        (7_200_000, "120 min 0 s"),
    ],
)
def test_durations(ms, text):
    assert duration_text(ms) == text

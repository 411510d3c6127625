"""Readable sizes, durations and counts."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Returns a size with the largest fitting unit, such as `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(ms: float) -> str:
    """Returns a duration in milliseconds, seconds or minutes.

    Milliseconds are used up to one second, seconds up to two minutes.
    """
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f}".removesuffix(".0") + " s"
    return f"{ms // 60_000:,.0f} min {ms % 60_000 / 1000:.0f} s"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, such as `2 files`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"

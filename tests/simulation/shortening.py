"""Shortens a history that fails: leaves out events as long as it still fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.history import Event, History

TRIES_MAX = 150


def shortened(history: History, fails: Callable[[History], bool], tries_max: int = TRIES_MAX) -> History:
    """Returns a history with fewer events that fails, too (delta debugging: halves first, then ever smaller parts).

    Args:
        history: A history that fails.
        fails: Plays a history, and returns whether it fails.
        tries_max: How many histories are played at most.
    """
    events, parts, tries = history.events, 2, 0
    while len(events) > 1 and tries < tries_max:
        size = max(1, len(events) // parts)
        for start in range(0, len(events), size):
            tries += 1
            rest = without(events, start, start + size)
            if fails(history.with_events(rest)):
                events, parts = rest, max(parts - 1, 2)
                break
            if tries >= tries_max:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(events))
    return history.with_events(events)


def without(events: tuple[Event, ...], start: int, end: int) -> tuple[Event, ...]:
    """Returns events without those of a part; the time that the part takes still passes."""
    passed = sum(event.after for event in events[start:end])
    rest = list(events[:start] + events[end:])
    if start < len(rest):
        following = rest[start]
        rest[start] = type(following)(following.kind, following.after + passed, following.given)
    return tuple(rest)

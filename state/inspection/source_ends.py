"""Finds how far a job had read its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..documents.source_positions import KINDS_NAME, ORDER_NAME, SourcePositions, read_positions
from .stored_state import UNNAMED_SOURCE

if TYPE_CHECKING:
    from .state_point import StatePoint

_OFFSETS = "offsets/"
_HEAD_LINES = 2  # the version, and the time and settings of the batch


def source_ends(point: StatePoint) -> dict[str, list[str]]:
    """Returns the end of the last batch in each source, by uid.

    Each input of a source has an end, in the form of the input. Without uids, as in what earlier versions wrote, all
    ends belong to `source`.

    Raises:
        KeyscaleError: The store does not answer, or the positions are damaged.
    """
    files, stored = point.resume.positions, point.manifest.positions if point.manifest is not None else None
    order: tuple[str, ...] = ()
    kinds: dict[str, tuple[str, ...]] = {}
    ends: tuple[str, ...] = ()
    if stored is not None and not point.resume.replaces_positions:
        positions = read_positions(point.store, stored)
        if isinstance(positions, SourcePositions):
            order, ends = positions.sources, positions.batches[-1].ends if positions.batches else ()
            files = {**positions.others, **files}
        else:
            files = {**positions, **files}
    batches = [path for path in files if path.startswith(_OFFSETS) and path.removeprefix(_OFFSETS).isdecimal()]
    if batches:
        newest = max(batches, key=lambda path: int(path.removeprefix(_OFFSETS)))
        ends = tuple(files[newest].splitlines()[_HEAD_LINES:])
    if ORDER_NAME in files:
        order = tuple(msgspec.json.decode(files[ORDER_NAME], type=list[str]))
    if KINDS_NAME in files:
        kinds = msgspec.json.decode(files[KINDS_NAME], type=dict[str, tuple[str, ...]])
    return _by_source(order, kinds, ends)


def _by_source(
    order: tuple[str, ...], kinds: dict[str, tuple[str, ...]], ends: tuple[str, ...]
) -> dict[str, list[str]]:
    """Returns the ends of each source, one per kind of input."""
    counts = [len(kinds.get(uid, ("",))) for uid in order]
    if sum(counts) != len(ends):
        return {UNNAMED_SOURCE: list(ends)} if ends else {}
    upcoming = iter(ends)
    return {uid: [next(upcoming) for _ in range(count)] for uid, count in zip(order, counts, strict=True)}

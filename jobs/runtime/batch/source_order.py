"""The order of a job's sources, so that each finds its recorded positions when the sources have changed. Pure.

Spark knows the sources of a query by their places. So the uids of a job's sources are recorded beside Spark's files,
in the order of their places. A new source gets the places after all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from keyscale.jobs.graph.nodes import ONLY_SOURCE_UID
from keyscale.jobs.runtime.errors import RestoreRefusedError
from keyscale.jobs.spark_internals.checkpoint_directory import (
    PositionsCorruptError,
    files_of,
    inputs_of,
    is_offsets,
    positions_of,
    with_new_inputs,
)
from keyscale.state.documents.source_positions import SourcePositions
from keyscale.state.identifiers import OperatorUid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.state.documents.source_positions import SparkFiles

ORDER_NAME = "keyscale-sources.json"


def recorded_order(positions: Mapping[str, str]) -> tuple[OperatorUid, ...]:
    """Returns the uids of the sources that positions belong to, by place; none for a job that has never run.

    Raises:
        PositionsCorruptError: The recorded uids cannot be read.
    """
    if not positions:
        return ()
    try:
        recorded = msgspec.json.decode(positions.get(ORDER_NAME, f'["{ONLY_SOURCE_UID}"]'), type=list[str])
    except msgspec.MsgspecError as error:
        raise PositionsCorruptError("the uids in the recorded source positions cannot be read") from error
    return tuple(OperatorUid(uid) for uid in recorded)


def stored_positions(positions: Mapping[str, str]) -> SourcePositions:
    """Returns recorded positions in the form that a checkpoint holds. Raises as `recorded_order`."""
    files = {name: content for name, content in positions.items() if name != ORDER_NAME}
    return positions_of(files, recorded_order(positions))


def recorded_positions(stored: SourcePositions | SparkFiles) -> dict[str, str]:
    """Returns the recorded positions that a checkpoint holds."""
    if not isinstance(stored, SourcePositions):
        return stored
    files = files_of(stored)
    return files if stored.sources == (ONLY_SOURCE_UID,) else {**files, ORDER_NAME: _encoded(stored.sources)}


def order_of(declared: Sequence[OperatorUid], recorded: Sequence[OperatorUid]) -> tuple[OperatorUid, ...]:
    """Returns the declared sources by place: those with recorded positions where they were, new ones after them.

    A job's only source that had no uid may get one.

    Raises:
        RestoreRefusedError: The job no longer has a source that has positions.
    """
    if tuple(recorded) == (ONLY_SOURCE_UID,) and len(declared) == 1:
        return tuple(declared)
    gone = [uid for uid in recorded if uid not in declared]
    if gone:
        raise RestoreRefusedError(
            f"there are positions of source {', '.join(map(repr, gone))}, which the job no longer has;"
            f" its sources are {', '.join(map(repr, declared))}"
        )
    return (*recorded, *(uid for uid in declared if uid not in recorded))


def positions_for(positions: Mapping[str, str], order: Sequence[OperatorUid], inputs: Sequence[int]) -> dict[str, str]:
    """Returns the files that Spark starts from with sources in this order. A new source has read nothing so far.

    Args:
        positions: The recorded files.
        order: The order of the sources now.
        inputs: How many of Spark's inputs there are up to and including each source, in this order.

    Raises:
        RestoreRefusedError: The earlier sources have more or fewer inputs now.
    """
    if not positions:
        return {} if tuple(order) == (ONLY_SOURCE_UID,) else {ORDER_NAME: _encoded(order)}
    before = inputs[len(recorded_order(positions)) - 1]
    files = {
        name: _padded(content, before, inputs[-1]) if is_offsets(name) else content
        for name, content in positions.items()
    }
    if ORDER_NAME in files or tuple(order) != (ONLY_SOURCE_UID,):
        files[ORDER_NAME] = _encoded(order)
    return files


def _padded(offsets: str, before: int, now: int) -> str:
    found = inputs_of(offsets)
    if found != before:
        raise RestoreRefusedError(
            f"the sources had {found} of Spark's inputs in all and now have {before}; a source must keep the inputs"
            " that it began with, and a further input must be a source of its own"
        )
    return with_new_inputs(offsets, now - found)


def _encoded(order: Sequence[str]) -> str:
    return msgspec.json.encode(list(order)).decode()

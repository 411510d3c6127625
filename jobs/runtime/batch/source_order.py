"""The order of a job's sources, as pure functions.

The order lets each source find its recorded positions when the sources have changed.

Spark knows the sources of a query by their places. So the uids of a job's sources are recorded beside Spark's files,
in the order of their places. A new source gets the places after all other sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import OperatorUid
from keyscale.state.doors.catalogue import SourcePositions
from keyscale.state.doors.commits import KINDS_NAME, ORDER_NAME

from ...graph.nodes import ONLY_SOURCE_UID
from ...spark_internals.checkpoint_directory import (
    PositionsCorruptError,
    files_of,
    inputs_of,
    is_offsets,
    positions_of,
    with_inputs_kept,
    with_new_inputs,
)
from ..errors import RestoreRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.state.doors.commits import SparkFiles


@dataclass(frozen=True, slots=True)
class SourceInputs:
    """A source of the program.

    Attributes:
        uid: Its uid.
        inputs: How many of Spark's inputs it has.
        kinds: The kind of each input, such as FileSource or kafka. Positions of one kind mean nothing to another kind.
    """

    uid: OperatorUid
    inputs: int = 1
    kinds: tuple[str, ...] = ()


def recorded_order(positions: Mapping[str, str]) -> tuple[OperatorUid, ...]:
    """Returns the uids of the sources with recorded positions, by place.

    Returns none for a job that has never run.

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
    """Converts recorded positions to the form in a checkpoint.

    Raises as `recorded_order`.
    """
    files = {name: content for name, content in positions.items() if name != ORDER_NAME}
    return positions_of(files, recorded_order(positions))


def recorded_positions(stored: SourcePositions | SparkFiles) -> dict[str, str]:
    """Returns the recorded positions that a checkpoint holds."""
    if not isinstance(stored, SourcePositions):
        return stored
    files = files_of(stored)
    return files if stored.sources == (ONLY_SOURCE_UID,) else {**files, ORDER_NAME: _encoded(stored.sources)}


def order_of(declared: Sequence[OperatorUid], recorded: Sequence[OperatorUid]) -> tuple[OperatorUid, ...]:
    """Returns the declared sources by place.

    Sources with recorded positions keep their places; new sources follow.

    A job's only source without a uid may get a uid.

    Raises:
        RestoreRefusedError: The job no longer has a source that has positions.
    """
    if _gets_a_uid(declared, recorded):
        return tuple(declared)
    gone = gone_sources(declared, recorded)
    if gone:
        raise RestoreRefusedError(
            f"there are positions of source {', '.join(map(repr, gone))}, which the job no longer has; its sources are"
            f" {', '.join(map(repr, declared))}"
        )
    return (*recorded, *(uid for uid in declared if uid not in recorded))


def gone_sources(declared: Sequence[OperatorUid], recorded: Sequence[OperatorUid]) -> tuple[OperatorUid, ...]:
    """Returns the sources with positions that the job no longer has."""
    return () if _gets_a_uid(declared, recorded) else tuple(uid for uid in recorded if uid not in declared)


def _gets_a_uid(declared: Sequence[OperatorUid], recorded: Sequence[OperatorUid]) -> bool:
    return tuple(recorded) == (ONLY_SOURCE_UID,) and len(declared) == 1


def check_kinds(positions: Mapping[str, str], declared: Sequence[SourceInputs]) -> None:
    """Refuses a source that reads another kind under its old uid.

    Raises:
        RestoreRefusedError: A source is of another kind; the message names all of them.
        PositionsCorruptError: The recorded kinds cannot be read.
    """
    recorded = recorded_order(positions)
    before = _recorded_kinds(positions)
    if _gets_a_uid([source.uid for source in declared], recorded):
        before = {declared[0].uid: before.get(ONLY_SOURCE_UID, ())}
    wrong = [
        f"source {source.uid!r} was of kind {', '.join(before[source.uid])} and is now {', '.join(source.kinds)}"
        for source in declared
        if before.get(source.uid) and source.kinds and before[source.uid] != source.kinds
    ]
    if wrong:
        raise RestoreRefusedError(f"{'; '.join(wrong)}: give a source of another kind its own uid")


def _recorded_kinds(positions: Mapping[str, str]) -> dict[OperatorUid, tuple[str, ...]]:
    try:
        recorded = msgspec.json.decode(positions.get(KINDS_NAME, "{}"), type=dict[str, tuple[str, ...]])
    except msgspec.MsgspecError as error:
        raise PositionsCorruptError("the kinds in the recorded source positions cannot be read") from error
    return {OperatorUid(uid): kinds for uid, kinds in recorded.items()}


def without_sources(
    positions: Mapping[str, str], gone: Sequence[OperatorUid], declared: Sequence[SourceInputs]
) -> dict[str, str]:
    """Returns positions without the positions of some sources.

    Args:
        positions: The recorded files.
        gone: The sources that are dropped.
        declared: The job's sources.

    Raises:
        RestoreRefusedError: It is unknown which of Spark's inputs belonged to these sources.
    """
    recorded = recorded_order(positions)
    inputs = {source.uid: source.inputs for source in declared}
    found = {inputs_of(content) for name, content in positions.items() if is_offsets(name)}
    left = max(found, default=0) - sum(inputs[uid] for uid in recorded if uid not in gone)
    if len(found) != 1 or left < 0 or left % len(gone) or (len(gone) > 1 and left > len(gone)):
        raise RestoreRefusedError(
            f"it is unknown which of Spark's {found} inputs belonged to {', '.join(map(repr, gone))}: drop one source"
            " at a time, and keep the inputs of the other sources"
        )
    counts = [inputs[uid] if uid not in gone else left // len(gone) for uid in recorded]
    kept = [uid not in gone for uid, count in zip(recorded, counts, strict=True) for _ in range(count)]
    files = with_inputs_kept(positions, kept)
    files[ORDER_NAME] = _encoded([uid for uid in recorded if uid not in gone])
    return files


def positions_for(
    positions: Mapping[str, str],
    order: Sequence[OperatorUid],
    inputs: Sequence[int],
    kinds: Mapping[OperatorUid, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Returns the files that Spark starts from with sources in this order.

    A new source has read nothing so far.

    Args:
        positions: The recorded files.
        order: The order of the sources now.
        inputs: How many of Spark's inputs there are up to and including each source, in this order.
        kinds: The kinds that each source reads, to be recorded; None or empty if unknown.

    Raises:
        RestoreRefusedError: The earlier sources have more or fewer inputs now.
    """
    known = {KINDS_NAME: msgspec.json.encode(dict(kinds), order="sorted").decode()} if kinds else {}
    if not positions:
        return known if tuple(order) == (ONLY_SOURCE_UID,) else {ORDER_NAME: _encoded(order), **known}
    recorded = recorded_order(positions)
    before = inputs[len(recorded) - 1] if recorded else 0
    files = {
        name: _padded(content, before, inputs[-1]) if is_offsets(name) else content
        for name, content in positions.items()
    }
    if ORDER_NAME in files or tuple(order) != (ONLY_SOURCE_UID,):
        files[ORDER_NAME] = _encoded(order)
    return {**files, **known}


def _padded(offsets: str, before: int, now: int) -> str:
    found = inputs_of(offsets)
    if found != before:
        raise RestoreRefusedError(
            f"the sources had {found} of Spark's inputs in all and now have {before}; a source must keep the inputs"
            " that it began with, and a further input must be a separate source"
        )
    return with_new_inputs(offsets, now - found)


def _encoded(order: Sequence[str]) -> str:
    return msgspec.json.encode(list(order)).decode()

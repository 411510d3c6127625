"""Which of the recorded source positions are whose, when the sources of a job have changed. Pure.

Spark knows the sources of a query by their places: line i of `offsets/N`, directory `sources/i`. So the uids of a job's sources
are kept beside these files, in the order of their places. A source that is new gets the places after all others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from jobs.nodes import ONLY_SOURCE_UID
from jobs.runtime.errors import PositionsCorruptError, RestoreRefusedError
from state.identifiers import OperatorUid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ORDER_NAME = "keyscale-sources.json"
_OFFSETS = re.compile(r"offsets/\d+")
_NOTHING_READ = "-"  # Spark's own sign for a source that a batch has read nothing of
_HEADER_LINES = 2


def recorded_order(positions: Mapping[str, str]) -> tuple[OperatorUid, ...]:
    """The uids of the sources that positions are of, by place; none for a job that has never run.

    Raises:
        PositionsCorruptError: They do not say.
    """
    if not positions:
        return ()
    try:
        recorded = msgspec.json.decode(positions.get(ORDER_NAME, f'["{ONLY_SOURCE_UID}"]'), type=list[str])
    except msgspec.MsgspecError as error:
        message = "the recorded source positions do not say whose they are"
        raise PositionsCorruptError(message) from error
    return tuple(OperatorUid(uid) for uid in recorded)


def order_of(declared: Sequence[OperatorUid], recorded: Sequence[OperatorUid]) -> tuple[OperatorUid, ...]:
    """The places of the declared sources: those that have positions where they were, new ones after them.

    An only source that had no uid may get one.

    Raises:
        RestoreRefusedError: A source that has positions is no longer there.
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
    """What Spark starts from with sources in this order: a new one has read nothing in any recorded batch.

    Args:
        positions: As recorded.
        order: Of the sources now.
        inputs: How many inputs of Spark's there are up to and with each source, in this order.

    Raises:
        RestoreRefusedError: The sources that were there before have more or fewer inputs now.
    """
    if not positions:
        return {} if tuple(order) == (ONLY_SOURCE_UID,) else {ORDER_NAME: _encoded(order)}
    before = inputs[len(recorded_order(positions)) - 1]
    files = {
        name: _padded(content, before, inputs[-1]) if _OFFSETS.fullmatch(name) else content
        for name, content in positions.items()
    }
    if ORDER_NAME in files or tuple(order) != (ONLY_SOURCE_UID,):
        files[ORDER_NAME] = _encoded(order)
    return files


def _padded(offsets: str, before: int, now: int) -> str:
    lines = offsets.splitlines()
    found = len(lines) - _HEADER_LINES
    if found != before:
        raise RestoreRefusedError(
            f"the sources were {found} of Spark's inputs together and are now {before}; a source must go on with the inputs"
            " that it has begun with, and further ones need sources of their own"
        )
    return "\n".join([*lines, *[_NOTHING_READ] * (now - found)])


def _encoded(order: Sequence[OperatorUid]) -> str:
    return msgspec.json.encode(list(order)).decode()

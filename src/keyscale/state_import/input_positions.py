"""Converts the positions of a Spark query for a program's sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from keyscale.jobs.sources.kafka import positions_at
from keyscale.jobs.spark_internals.checkpoint_directory import positions_of
from keyscale.units import counted

from .errors import ImportUnmappedError, ImportUnsupportedError
from .spark_checkpoint import NOTHING_READ, file_log_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.state.doors.catalogue import SourcePositions

    from .spark_checkpoint import SparkCheckpoint

FILES = "FileSource"
KAFKA = "kafka"
KAFKA_SOURCE = "KafkaSource"
"""The kinds of inputs whose positions are understood; the last is Keyscale's own source."""

_SETTINGS_OF_STATE = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")
"""Settings that Spark would restore with the positions, and that concern only the state of the Spark query."""
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


class InputKind(StrEnum):
    """The form of the positions of an input of a Spark query."""

    FILES = "files"
    KAFKA = "kafka"
    OTHER = "other"
    NOTHING = "nothing read"

    @classmethod
    def of(cls, end: str | None) -> InputKind:
        """Returns the form of the end of a batch."""
        if end is None:
            return cls.NOTHING
        if file_log_entry(end) is not None:
            return cls.FILES
        return cls.OTHER if _kafka_offsets(end) is None else cls.KAFKA

    def fits(self, kind: str) -> bool:
        """Returns whether an input of a kind can continue from them."""
        match self:
            case InputKind.FILES:
                return kind == FILES
            case InputKind.KAFKA:
                return kind in {KAFKA, KAFKA_SOURCE}
            case InputKind.OTHER:
                return kind not in {FILES, KAFKA, KAFKA_SOURCE}
            case InputKind.NOTHING:
                return True


@dataclass(frozen=True, slots=True)
class TargetSource:
    """A source of the program.

    Attributes:
        uid: Its uid.
        kinds: The kind of each of its inputs, in order.
    """

    uid: str
    kinds: tuple[str, ...]


def assigned_inputs(
    kinds: Sequence[InputKind], sources: Sequence[TargetSource], chosen: Mapping[int, str | None]
) -> dict[str, list[int]]:
    """Returns the Spark inputs of each source, by uid.

    Args:
        kinds: The kind of each input of the Spark query.
        sources: The sources of the program.
        chosen: The source of an input as the user names it; None leaves the input out.

    Raises:
        ImportUnmappedError: The source of an input is unknown, or has another number or kind of inputs.
    """
    known = {source.uid: source for source in sources}
    _check_chosen(kinds, known, chosen)
    assigned: dict[str, list[int]] = {uid: [] for uid in known}
    for number, kind in enumerate(kinds):
        uid = chosen.get(number) if number in chosen else _only_source(kind, number, sources)
        if uid is not None:
            assigned[uid].append(number)
    for uid, numbers in assigned.items():
        expected = known[uid].kinds
        if numbers and len(numbers) != len(expected):
            raise ImportUnmappedError(
                f"source {uid!r} has {counted(len(expected), 'input')}, and the query has {len(numbers)} for it; leave"
                " an input out that reads the same records as another one"
            )
        for number, wanted in zip(numbers, expected, strict=False):
            if not kinds[number].fits(wanted):
                raise ImportUnmappedError(
                    f"input {number} of the query has positions of {kinds[number]}, and source {uid!r} reads {wanted}"
                )
    return {uid: numbers for uid, numbers in assigned.items() if numbers}


def _check_chosen(
    kinds: Sequence[InputKind], known: Mapping[str, TargetSource], chosen: Mapping[int, str | None]
) -> None:
    for number, uid in chosen.items():
        if number not in range(len(kinds)):
            raise ImportUnmappedError(f"the query has no input {number}; its inputs are 0 to {len(kinds) - 1}")
        if uid is not None and uid not in known:
            raise ImportUnmappedError(f"the program has no source {uid!r}; its sources are {_listed(known)}")


def _only_source(kind: InputKind, number: int, sources: Sequence[TargetSource]) -> str:
    fitting = [source.uid for source in sources if any(map(kind.fits, source.kinds))]
    candidates = [source.uid for source in sources] if len(sources) == 1 else fitting
    if len(candidates) != 1:
        raise ImportUnmappedError(
            f"input {number} of the query ({kind}) may be of several sources or of none; the sources of the program"
            f" are {_listed(source.uid for source in sources)}"
        )
    return candidates[0]


def converted_positions(
    checkpoint: SparkCheckpoint, sources: Sequence[TargetSource], assigned: Mapping[str, Sequence[int]]
) -> SourcePositions | None:
    """Returns the positions of a program's sources; None without any.

    The sources have the order of the program, and their inputs are numbered anew.

    Raises:
        ImportUnsupportedError: Positions cannot be converted.
    """
    uids = [source.uid for source in sources if source.uid in assigned]
    if not uids:
        return None
    kinds = {source.uid: source.kinds for source in sources}
    moved = [(number, kind) for uid in uids for number, kind in zip(assigned[uid], kinds[uid], strict=True)]
    files = {"metadata": checkpoint.files["metadata"], f"commits/{checkpoint.batch.number}": _COMMIT}
    for name, content in checkpoint.files.items():
        folder, _, entry = name.removeprefix("sources/").partition("/")
        if name.startswith("offsets/"):
            version, facts, *ends = content.splitlines()
            lines = [_converted(ends[number], kind) for number, kind in moved]
            files[name] = "\n".join([version, _facts_without_state(facts), *lines])
        elif name.startswith("sources/"):
            for place, (number, _) in enumerate(moved):
                if folder == str(number):
                    files[f"sources/{place}/{entry}"] = content
    return positions_of(files, uids)


def _converted(end: str, kind: str) -> str:
    if kind != KAFKA_SOURCE or end == NOTHING_READ:
        return end
    offsets = _kafka_offsets(end)
    if offsets is None:
        raise ImportUnsupportedError("the positions of a Kafka input cannot be read")
    return msgspec.json.encode(positions_at(offsets).to_json()).decode()


def _kafka_offsets(end: str) -> dict[str, dict[str, int]] | None:
    try:
        return msgspec.json.decode(end, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return None


def _facts_without_state(facts: str) -> str:
    found: dict[str, Any] = json.loads(facts)
    settings = {name: value for name, value in found.get("conf", {}).items() if name not in _SETTINGS_OF_STATE}
    return json.dumps({**found, "batchWatermarkMs": 0, "conf": settings}, separators=(",", ":"))


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"

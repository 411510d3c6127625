"""Repeated faults of a user's code.

A fault repeats if it is the same exception, at the same place, on the same batch. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from keyscale.jobs.protocol.restart import CODE_FAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPETITIONS_MAX: Final = 3
"""A job without a restart strategy is given up when its code has failed in the same way this often in a row."""

_FRAME = re.compile(r'^ *File "(?:[^"]*[/\\])?([^"/\\]+)", line (\d+), in (.*)$', re.MULTILINE)
_FROM_OUTSIDE = re.compile(r"Connect|Timeout|TimedOut|Unavailable|Network|Operational|BrokenPipe|Memory")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier attempt: its failure, and whether it committed a batch."""

    failure: Mapping[str, Any] | None
    has_committed: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """The comparable part of an exception of a user's code.

    Attributes:
        code: The code of the error that the exception led to.
        operator_uid: The operator that called the code.
        kind: The exception's type. Its message is left out: it may hold an address or the time.
        frames: The places in the code: file name, line and function. The directory differs between attempts.
    """

    code: str
    operator_uid: str | None
    kind: str
    frames: tuple[tuple[str, ...], ...]


def fault_of(failure: Mapping[str, Any] | None) -> Fault | None:
    """Returns the fault of the user's code in a failure.

    None if the cause may lie elsewhere: in Spark, in a store or a sink, or in a system that the code calls, as with
    `ConnectionError`, `ReadTimeout` or `OperationalError`.
    """
    if failure is None or failure["code"] not in CODE_FAULTS or not failure.get("traceback"):
        return None
    kind = str(failure["message"]).partition(":")[0].partition(",")[0]
    if _FROM_OUTSIDE.search(kind):
        return None
    frames = tuple(_FRAME.findall(failure["traceback"]))
    return Fault(failure["code"], failure.get("operator_uid"), kind, frames) if frames else None


def is_repeated(failure: Mapping[str, Any], *, has_committed: bool, earlier: Sequence[EarlierRun]) -> bool:
    """Returns whether a fault has ended `REPETITIONS_MAX` runs in a row.

    All runs must have failed on the same batch.

    It is the same batch if no later run has committed a batch: a restart repeats the failed batch.

    Args:
        failure: Why the present run ended.
        has_committed: Whether the present run had committed a batch.
        earlier: The runs before the present run, newest first.
    """
    fault, before = fault_of(failure), earlier[: REPETITIONS_MAX - 1]
    if fault is None or has_committed or len(before) < REPETITIONS_MAX - 1:
        return False
    return all(fault_of(run.failure) == fault for run in before) and not any(run.has_committed for run in before[:-1])

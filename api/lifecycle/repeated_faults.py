"""Faults of a user's code that come back: the same exception, at the same place, on the same batch. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from keyscale.jobs.protocol.restart import CODE_FAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPETITIONS_MAX: Final = 3
"""A job whose code has failed in the same way so often in a row is given up, unless it has a restart strategy."""

_FRAME = re.compile(r'^ *File "(?:[^"]*[/\\])?([^"/\\]+)", line (\d+), in (.*)$', re.MULTILINE)
_FROM_OUTSIDE = re.compile(r"Connect|Timeout|TimedOut|Unavailable|Network|Operational|BrokenPipe|Memory")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An attempt that ran the job before the present one: its failure, and whether it had committed a batch."""

    failure: Mapping[str, Any] | None
    has_committed: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception of a user's code, as far as it can be compared with another one.

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
    """Returns the fault of the user's code that a failure tells of.

    None if the cause may lie elsewhere: in Spark, in a store or a sink, or in a system that the code calls, as an
    exception such as `ConnectionError`, `ReadTimeout` or `OperationalError` says.
    """
    if failure is None or failure["code"] not in CODE_FAULTS or not failure.get("traceback"):
        return None
    kind = str(failure["message"]).partition(":")[0].partition(",")[0]
    if _FROM_OUTSIDE.search(kind):
        return None
    frames = tuple(_FRAME.findall(failure["traceback"]))
    return Fault(failure["code"], failure.get("operator_uid"), kind, frames) if frames else None


def is_repeated(failure: Mapping[str, Any], *, has_committed: bool, earlier: Sequence[EarlierRun]) -> bool:
    """Whether the same fault has ended `REPETITIONS_MAX` runs in a row, all of them on the same batch.

    It is the same batch if no run after the first of them has committed one: a restart repeats the batch that failed.

    Args:
        failure: Why the present run ended.
        has_committed: Whether the present run had committed a batch.
        earlier: The runs before it, the newest first.
    """
    fault, before = fault_of(failure), earlier[: REPETITIONS_MAX - 1]
    if fault is None or has_committed or len(before) < REPETITIONS_MAX - 1:
        return False
    return all(fault_of(run.failure) == fault for run in before) and not any(run.has_committed for run in before[:-1])

"""Breakpoints in a program, in this terminal."""

from __future__ import annotations

import bdb
import pdb  # noqa: T100 - it is the user's
import sys
from typing import TYPE_CHECKING, TypeVar

from keyscale.jobs.operators.process_operator import ProcessOperator

from .errors import BreakpointInvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

_Result = TypeVar("_Result")


class Debugger(pdb.Pdb):
    """A debugger that stops at its breakpoints only."""

    def stop_at(self, places: Iterable[str], script: Path) -> None:
        """Sets breakpoints.

        Args:
            places: Lines of the script, such as `17`, or functions, such as `Count.process_element`.
            script: The script, which has run.

        Raises:
            BreakpointInvalidError: There is no such line or function.
        """
        for place in places:
            file, line = (str(script), int(place)) if place.isdecimal() else _first_line(place)
            if (refused := self.set_break(file, line)) is not None:
                raise BreakpointInvalidError(f"{place}: {refused}")

    def run_until_break(self, operation: Callable[[], _Result]) -> _Result:
        """Runs an operation, and stops at the breakpoints."""
        if not self.breaks:
            return operation()
        self.reset()
        self.botframe = sys._getframe()
        self.set_continue()
        outer = sys.gettrace()  # of an editor's debugger, or of a measurement of coverage
        sys.settrace(self.trace_dispatch)
        try:
            return operation()
        finally:
            sys.settrace(outer)


def is_left(error: BaseException) -> bool:
    """Returns whether the user has left a debugger with `quit`."""
    return isinstance(error, bdb.BdbQuit) or isinstance(error.__context__, bdb.BdbQuit)


def failed_input(traceback: TracebackType | None) -> str | None:
    """Returns the record or timer that a function has failed on.

    None: it is unknown.
    """
    while traceback is not None:
        code, values = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
        if code is ProcessOperator._run.__code__ and "row" in values:
            return f"record: {values['row'].as_dict()}"
        if code is ProcessOperator.fire.__code__ and "timer" in values:
            timer = values["timer"]
            return f"timer: key {timer.key[0] if len(timer.key) == 1 else timer.key}, time {timer.timestamp_ms}"
        traceback = traceback.tb_next
    return None


def _first_line(name: str) -> tuple[str, int]:
    """Returns the file of a function, and its first statement's line."""
    found: object = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part, None)
    code = getattr(found, "__code__", None)
    if code is None:
        raise BreakpointInvalidError(f"{name}: the program has no such function")
    lines = [line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno]
    return code.co_filename, min(lines, default=code.co_firstlineno)

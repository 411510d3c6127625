"""A debugger stops at its breakpoints in a job's function, and names the record on which a function has failed."""

from __future__ import annotations

import bdb
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from keyscale import KeyedProcessFunction
from keyscale.jobs.errors import UserFunctionError
from keyscale.jobs.operators.failures import user_code
from keyscale.replay.debugger import Debugger, failed_input, is_left
from keyscale.replay.errors import BreakpointInvalidError
from keyscale.testing import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = '''
class Count:
    def add(self, number):
        """Adds."""
        doubled = 2 * number
        return doubled

def last():
    return 1
'''


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """A script that has run as the module `__main__`; its breakpoints outlive a debugger."""
    file = tmp_path / "counts.py"
    file.write_text(SCRIPT)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(SCRIPT, str(file), "exec"), module.__dict__)  # noqa: S102 - as a driver runs a script
    yield file
    Debugger().clear_all_breaks()


@pytest.fixture
def outer() -> Iterator[Any]:
    """A tracer, such as an editor's, that the program runs under."""

    def trace(*_: Any) -> None: ...

    before = sys.gettrace()
    sys.settrace(trace)
    yield trace
    sys.settrace(before)


class Watched(Debugger):
    """Notes where it stops, and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[str, int]] = []

    def interaction(self, frame: Any, _: Any) -> None:  # type: ignore[override]  # of typeshed's several forms
        self.stops.append((frame.f_code.co_name, frame.f_lineno))
        self.set_continue()


@pytest.mark.parametrize(
    ("places", "stops"), [(["5"], [("add", 5)]), (["Count.add", "last"], [("add", 5), ("last", 9)]), ([], [])]
)
def test_it_stops_at_lines_and_in_functions_only(
    script: Path, outer: Any, places: list[str], stops: list[tuple[str, int]]
) -> None:
    main: Any = sys.modules["__main__"]
    debugger = Watched()
    debugger.stop_at(places, script)
    assert debugger.run_until_break(lambda: main.Count().add(3) + main.last()) == 7
    assert debugger.stops == stops
    assert sys.gettrace() is outer


@pytest.mark.parametrize("place", ["99", "Count.other", "nothing", "Count"])
def test_a_place_that_the_program_lacks_is_refused(script: Path, place: str) -> None:
    with pytest.raises(BreakpointInvalidError):
        Debugger().stop_at([place], script)


class Fussy(KeyedProcessFunction):
    def process_element(self, row: Any, context: Any) -> None:
        if row.at == 3:
            raise ValueError("three")
        context.timer_service().register_event_time_timer(row.at)

    def on_timer(self, timestamp: int, _: Any) -> None:
        raise ValueError(timestamp)


def fussy() -> OperatorHarness:
    return OperatorHarness(Fussy(), input={"key": "string", "at": "bigint"}, key=["key"], output={"key": "string"})


def failure_of(call: Any, *arguments: Any) -> BaseException | None:
    with pytest.raises(UserFunctionError) as failure:
        call(*arguments)
    return failure.value.__cause__


def test_the_record_of_a_failure_is_known() -> None:
    cause = failure_of(fussy().process, ("ada", 1), ("bob", 3))
    assert cause is not None
    assert failed_input(cause.__traceback__) == "record: {'key': 'bob', 'at': 3}"


def test_the_timer_of_a_failure_is_known() -> None:
    harness = fussy()
    harness.process(("ada", 1))
    cause = failure_of(harness.advance_watermark, 5)
    assert cause is not None
    assert failed_input(cause.__traceback__) == "timer: key ada, time 1"
    assert failed_input(None) is None


def test_leaving_the_debugger_is_no_failure_of_the_function() -> None:
    with pytest.raises(UserFunctionError) as left, user_code():
        raise bdb.BdbQuit
    assert is_left(left.value)
    with pytest.raises(UserFunctionError) as failed, user_code():
        raise ValueError
    assert not is_left(failed.value)

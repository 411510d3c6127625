"""Mistakes that first programs have are refused where they are made, with a sentence that mends them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import (
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    SlidingWindows,
    Ttl,
    TumblingWindows,
    ValueStateDescriptor,
)
from keyscale.errors import KeyscaleError
from keyscale.jobs.errors import OutputTypeError
from keyscale.jobs.functions.given_function import check_aggregation
from keyscale.jobs.operators.aggregate import Aggregate, Reduce
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.operators.window_contents import Aggregated, Collected, Reduced
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.testing import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Callable

INT: Any = int
SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
STRUCT = pa.struct([("amount", pa.int64()), ("place", pa.string())])
NESTED = pa.struct([("order", STRUCT)])


class Returning(KeyedProcessFunction):
    def __init__(self, result: Any) -> None:
        self._result = result

    def process_element(self, _row: Any, _context: Any) -> Any:
        return self._result


class Opening(Returning):
    def __init__(self, opens: Callable[[Any], Any]) -> None:
        super().__init__([])
        self._opens = opens

    def open(self, context: Any) -> None:
        self._opens(context)


class Updating(KeyedProcessFunction):
    def __init__(self, of_type: pa.DataType, value: Any) -> None:
        self._type, self._value = of_type, value

    def open(self, context: Any) -> None:
        self._state = context.get_state(ValueStateDescriptor("held", self._type))

    def process_element(self, _row: Any, _context: Any) -> list[Any]:
        self._state.update(self._value)
        return []


def run(function: Any, *records: Any, output: Any = None) -> None:
    harness = OperatorHarness(
        function,
        input={"user": "string", "amount": "bigint"},
        key=["user"],
        output=output or {"user": "string", "total": "bigint"},
    )
    harness.process(*(records or [("ada", 1)]))


def returning(result: Any) -> Callable[[], None]:
    return lambda: run(Returning(result))


def opening(opens: Callable[[Any], Any]) -> Callable[[], None]:
    return lambda: run(Opening(opens))


def updating(of_type: pa.DataType, value: Any) -> Callable[[], None]:
    return lambda: run(Updating(of_type, value))


DECLARATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "a class for a function": (lambda: run(Returning), r"the class Returning is given .* write Returning\(\.\.\.\)"),
    "a lambda for a function": (
        lambda: run(lambda *_: []),
        "the function <lambda> is given in the place of a KeyedProcessFunction",
    ),
    "a class of Python for a type": (
        lambda: ValueStateDescriptor("n", INT),
        r"the type of state 'n' is declared as int; declare pa\.int64\(\)",
    ),
    "a name of Spark for a type": (
        lambda: ValueStateDescriptor("n", "bigint"),  # type: ignore[arg-type]  # the mistake
        r"'bigint'; declare pa\.int64\(\)",
    ),
    "a type without parentheses": (
        lambda: ListStateDescriptor("n", pa.int64),
        r"declare pa\.int64\(\), with its parentheses",
    ),
    "the second type of a map": (
        lambda: MapStateDescriptor("n", pa.string(), "text"),  # type: ignore[arg-type]  # the mistake
        "'text'; declare an Arrow type",
    ),
    "a number for a TTL": (
        lambda: ValueStateDescriptor("n", pa.int64(), ttl=3600),  # type: ignore[arg-type]  # the mistake
        r"a TTL is declared as int; use Ttl\.hours\(1\)",
    ),
    "a timedelta for a TTL": (
        lambda: ValueStateDescriptor("n", pa.int64(), ttl=dt.timedelta(hours=1)),  # type: ignore[arg-type]
        r"a TTL is declared as timedelta; use Ttl\.hours\(1\)",
    ),
    "a timedelta within a TTL": (
        lambda: Ttl(dt.timedelta(hours=1)),  # type: ignore[arg-type]  # the mistake
        "a whole number of milliseconds, not a timedelta",
    ),
    "a map state from get_state": (
        opening(lambda context: context.get_state(MapStateDescriptor("m", pa.string(), pa.int64()))),
        "a MapStateDescriptor is given in the place of a ValueStateDescriptor; get_map_state takes it",
    ),
    "a value state from get_map_state": (
        opening(lambda context: context.get_map_state(ValueStateDescriptor("m", pa.string()))),
        "get_state takes it",
    ),
    "a name for a descriptor": (
        opening(lambda context: context.get_list_state("events")),
        "a str is given in the place of a ListStateDescriptor\n",
    ),
    "a class of Python for the type of a column": (
        lambda: run(Returning([]), output={"total": INT}),
        "column 'total' has the type int; Spark's name of it is 'bigint'",
    ),
    "a type of a column without parentheses": (
        lambda: run(Returning([]), output={"total": pa.float32}),
        "column 'total' has the type float32; Spark's name of it is 'float'",
    ),
    "an object for the type of a column": (
        lambda: run(Returning([]), output={"total": Ttl(1)}),
        "column 'total' has the type Ttl; give the name of a Spark type, such as 'bigint', or an Arrow type",
    ),
    "names for columns": (
        lambda: run(Returning([]), output=["user", "total"]),
        r"a harness are declared as a list; give \{\"column\": \"type\", ...\} or a pyarrow schema",
    ),
    "a type for the name of a state": (
        lambda: ValueStateDescriptor(pa.int64(), "n"),  # type: ignore[arg-type]  # the mistake
        "a state is named by a DataType; give its name as text, before its type",
    ),
    "a timedelta for the size of windows": (
        lambda: TumblingWindows(dt.timedelta(seconds=1)),  # type: ignore[arg-type]  # the mistake
        "the sizes of windows are whole numbers of milliseconds, not a timedelta",
    ),
    "a float for the size of windows": (
        lambda: SlidingWindows(10, 2.5),  # type: ignore[arg-type]  # the mistake
        "the sizes of windows are whole numbers of milliseconds, not a float",
    ),
    "an aggregation without merge for sessions": (
        lambda: check_aggregation(Wrong(), merges=True),
        "the aggregation Wrong lacks the method merge",
    ),
    "a type of Arrow by its name": (
        lambda: run(Returning([]), output={"total": "int64"}),
        "column 'total' has the type 'int64'; Spark's name of it is 'bigint'",
    ),
}


@pytest.mark.parametrize("mistake", DECLARATIONS)
def test_a_wrong_declaration_is_refused_with_what_to_write(mistake: str) -> None:
    make, message = DECLARATIONS[mistake]
    with pytest.raises(KeyscaleError, match=message) as refusal:
        make()
    assert refusal.value.domain == "user"


VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "a dict that is returned": (
        returning({"user": "ada", "total": 1}),
        "the function returned a dict; it yields records, or returns a list of them",
    ),
    "names that are returned": (
        returning(["ada", "bob"]),
        "a result is a str; yield a dict .* or return a list of them",
    ),
    "a number that is returned": (returning(5), "the function returned an int; it yields records, or returns a list"),
    "a missing column": (returning([{"user": "ada"}]), "a result comes without the column 'total'"),
    "a misspelt column": (
        returning([{"user": "ada", "totl": 1}]),
        r"without the column 'total' \(it has 'totl'\), key",
    ),
    "a column too many": (returning([("ada", 1, 2)]), "3 values for the 2 columns user, total"),
    "an undeclared column": (
        returning([{"user": "ada", "total": 1, "secret name": 2}]),
        "a result comes with 1 column that the declaration lacks",
    ),
    "a number out of range": (returning([("ada", 1 << 70)]), "'total' is declared int64: an int out of range"),
    "a state out of range": (updating(pa.int32(), 1 << 40), "an int out of range is not a value of type int32"),
    "a missing field": (updating(STRUCT, {"amount": 1}), "a dict without the field 'place' is not a value"),
    "a misspelt field": (updating(STRUCT, {"amount": 1, "plase": ""}), r"'place' \(it has 'plase'\) is not a value"),
    "an undeclared field": (
        updating(STRUCT, {"amount": 1, "place": "", "secret name": 1}),
        "a dict with 1 field that the declaration lacks",
    ),
    "a field of another type": (
        updating(NESTED, {"order": {"amount": "1", "place": ""}}),
        "field 'order': field 'amount': a str is not a value of type int64",
    ),
}


@pytest.mark.parametrize("mistake", VALUES)
def test_a_wrong_value_is_refused_with_its_name(mistake: str) -> None:
    make, message = VALUES[mistake]
    with pytest.raises(KeyscaleError, match=message) as refusal:
        make()
    assert refusal.value.domain == "user"
    assert "secret name" not in str(refusal.value)


@pytest.mark.parametrize("result", [5, {"user": "ada"}, [{"user": "ada"}], [("ada", "one")], ["ada"]])
def test_a_wrong_result_is_reported_with_the_place_of_its_function(result: Any) -> None:
    with pytest.raises(OutputTypeError) as refusal:
        run(Returning(result))
    first_line = Returning.process_element.__code__.co_firstlineno
    place = f'  File "{__file__}", line {first_line}, in process_element\n    def process_element('
    assert str(origin_of(refusal.value).user_traceback).startswith(f"Results of:\n{place}")


class Wrong:
    """Functions of all kinds whose results lack a column."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, _row: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, _: int) -> Any:
        return {"usr": 1}

    def __call__(self, _first: Any, _second: Any) -> Any:
        return {"user": "ada"}


class WrongBatches(KeyedBatchFunction):
    def process_batch(self, _: Any) -> Any:
        return pa.RecordBatch.from_pydict({"usr": ["ada"]})


class WrongWindows(ProcessWindowFunction):
    def process(self, _key: Any, _window: Any, _elements: Any) -> Any:
        return [{"usr": "ada"}]


class WrongProcessor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        """Declares no state."""

    def handleInputRows(self, _key: Any, _rows: Any, _timers: Any) -> Any:  # noqa: N802 - Spark's name
        return [("ada",)]


WINDOWS = TumblingWindows(10)
RESULTS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "batches": (WrongBatches(), WrongBatches.process_batch),
    "a reduction": (Reduce(Wrong(), None), Wrong.__call__),
    "an aggregation": (Aggregate(Wrong(), pa.int64(), None), Wrong.get_result),  # type: ignore[arg-type]  # no merge
    "aggregated windows": (Windowing(WINDOWS, Aggregated(Wrong(), pa.int64())), Wrong.get_result),  # type: ignore[arg-type]
    "reduced windows": (Windowing(WINDOWS, Reduced(Wrong(), SCHEMA)), Wrong.__call__),
    "windows of all records": (Windowing(WINDOWS, Collected(WrongWindows(), SCHEMA)), WrongWindows.process),
    "a processor of Spark": (TransformWithState(WrongProcessor()), WrongProcessor.handleInputRows),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_wrong_result_of_any_function_is_reported_with_its_place(kind: str) -> None:
    logic, function = RESULTS[kind]
    is_timed = isinstance(logic, Windowing)
    columns = {"window_start": "bigint", "window_end": "bigint"} if is_timed else {}
    output = {"user": "string", **columns, "amount": "bigint"}
    tested = OperatorHarness(logic, input=SCHEMA, key=["user"], output=output, timestamp="amount" if is_timed else None)

    def run_batches() -> None:
        tested.process(("ada", 1), ("ada", 2))
        tested.advance_watermark(9)

    with pytest.raises(OutputTypeError) as refusal:
        run_batches()
    code = function.__code__
    place = f'Results of:\n  File "{__file__}", line {code.co_firstlineno}, in {code.co_name}\n'
    assert str(origin_of(refusal.value).user_traceback).startswith(place)


class Yielding(KeyedProcessFunction):
    def process_element(self, row: Any, _context: Any) -> Any:
        if row.amount > 1:
            yield {"user": row.user, "total": row.amount}
        yield {"user": row.user, "totl": row.amount}


def test_a_wrong_result_is_reported_with_the_lines_that_yield() -> None:
    with pytest.raises(OutputTypeError) as refusal:
        run(Yielding())
    line = Yielding.process_element.__code__.co_firstlineno
    assert origin_of(refusal.value).user_traceback == (
        f'Results of:\n  File "{__file__}", line {line + 2}, in process_element\n'
        '    yield {"user": row.user, "total": row.amount}\n'
        f'  File "{__file__}", line {line + 3}, in process_element\n'
        '    yield {"user": row.user, "totl": row.amount}'
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"usr": "ada", "amount": 1}, r"a record comes without the column 'user' \(it has 'usr'\); the input has"),
        (("ada",), "a record has 1 value for the 2 columns user, amount"),
        (("ada", "1"), "column 'amount' is declared int64: a str is not a value"),
        ("ada", "a record is a str; the input has the columns user, amount"),
    ],
)
def test_a_record_of_a_test_that_does_not_fit_is_refused_as_the_tests_own(record: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Returning([]), record)

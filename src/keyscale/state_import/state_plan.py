"""Plans the rows of a program's states; pure.

The columns of states are SQL expressions over a frame of Spark's state: `key`, `value`, `map_key`, `list_index` and
`time_ms`, and, where Spark has them, `expires_ms` and `timeout_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType, TimestampType

from keyscale.jobs.functions.windows import WINDOW_TYPE, SessionWindows
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.state_name import stored_name
from keyscale.jobs.transform_with_state.time_mode import TimeMode
from keyscale.state.doors.keyed import EVENT_TIMERS, TimeDomain
from keyscale.state.doors.writing import STAMP_MAX_MS, StateKind, type_from_json

from .errors import ImportUnmappedError, ImportUnsupportedError
from .spark_operator import EXPIRES, TIMEOUT, OperatorKind, VariableKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructField

    from keyscale.jobs.operators.window_operator import Windowing
    from keyscale.state.doors.writing import StateSchema

    from .spark_checkpoint import BatchFacts
    from .spark_operator import SparkOperator, SparkState
    from .target_program import TargetOperator

_KINDS = {
    VariableKind.VALUE: StateKind.VALUE,
    VariableKind.LIST: StateKind.LIST,
    VariableKind.MAP: StateKind.MAP,
}
_ONE_VALUE = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)
_SEEN = "seen"


@dataclass(frozen=True, slots=True)
class Expressions:
    """The user's SQL expressions, for what does not follow from names.

    Attributes:
        keys: The expression of a column of an operator's key, by uid and column.
        values: The expression of the values of a state, or of the time of timers, by uid and name.
    """

    keys: Mapping[tuple[str, str], str] = field(default_factory=dict)
    values: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The rows of a state, or of timers.

    Attributes:
        name: The state or the timers of the program's operator.
        source: The state of the Spark operator.
        key: The expression of each column of the key.
        columns: The expressions of the other columns; a row without `time_ms` is no timer.
        schema: The state as the program declares it; None for timers.
        namespace_type: The type of the namespaces of timers; None: the void namespace.
    """

    name: str
    source: SparkState
    key: Mapping[str, str]
    columns: Mapping[str, str]
    schema: StateSchema | None = None
    namespace_type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """The plan of an operator's states.

    Attributes:
        uid: The operator of the program.
        operator: The Spark operator.
        states: The states and timers that are written.
        notes: What is left out or begins anew, and why.
    """

    uid: str
    operator: SparkOperator
    states: tuple[StatePlan, ...]
    notes: tuple[str, ...] = ()


def plan_operator(
    operator: SparkOperator, target: TargetOperator, given: Expressions, batch: BatchFacts
) -> OperatorPlan:
    """Plans the states of an operator of the program.

    Raises:
        ImportUnmappedError: A column of the key, or the value of a state, does not follow from Spark's columns.
        ImportUnsupportedError: The operator of the program cannot take the state.
    """
    if target.has_compact_keys:
        raise ImportUnsupportedError(
            f"operator {target.uid!r} keeps hashes or filters; declare an exact deduplicate() for Spark's keys"
        )
    _check_names(target, given)
    planner = _Planner(operator, target, given, batch)
    if operator.kind is OperatorKind.PROCESSOR:
        states = planner.processor_states()
    elif operator.kind in {OperatorKind.DEDUPLICATION, OperatorKind.DEDUPLICATION_WITHIN_WATERMARK}:
        states = planner.seen_keys()
    else:
        states = planner.states_of_store()
    plans = tuple(states)
    if not plans:
        raise ImportUnmappedError(
            f"no state of operator {target.uid!r} follows from operator {operator.number}: its states are"
            f" {', '.join(each.name for each in target.schema.states) or 'none'}, and Spark's values have the columns"
            f" {_columns_text(operator.states)}"
        )
    return OperatorPlan(target.uid, operator, plans, tuple(planner.notes))


def missing_columns(state: SparkState, target: TargetOperator, given: Expressions) -> list[str]:
    """Returns the columns of a key that Spark's key lacks."""
    return [name for name in target.key.names if _key_expression(state, target, name, given) is None]


def is_window(column: StructField) -> bool:
    """Returns whether a column of a key is a window of time."""
    of_type = column.dataType
    return (
        isinstance(of_type, StructType)
        and of_type.names == ["start", "end"]
        and all(isinstance(each.dataType, TimestampType) for each in of_type)
    )


def _key_expression(state: SparkState, target: TargetOperator, name: str, given: Expressions) -> str | None:
    if (expression := given.keys.get((target.uid, name))) is not None:
        return expression
    plain = [column for column in state.key if target.windowing is None or not is_window(column)]
    if any(column.name == name for column in plain):
        return f"key.{quoted(name)}"
    if len(plain) == len(target.key) == 1:
        return f"key.{quoted(plain[0].name)}"
    return None


class _Planner:
    """Plans the states of one operator of the program."""

    def __init__(self, operator: SparkOperator, target: TargetOperator, given: Expressions, batch: BatchFacts) -> None:
        self._operator = operator
        self._target = target
        self._given = given
        self._batch = batch
        self.notes: list[str] = []

    def seen_keys(self) -> Iterator[StatePlan]:
        """Yields the keys that a deduplication has seen."""
        (source,) = self._operator.states
        seen = self._target.schema.state(_SEEN)
        if seen is None or not self._target.continues(OperatorKind.DEDUPLICATION):
            yield from self.states_of_store()
            return
        yield self._state(seen, source, {"value": "true"})

    def states_of_store(self) -> Iterator[StatePlan]:
        """Yields the states that follow from a store's columns."""
        (source,) = self._operator.states
        candidates = [each for each in self._target.schema.states if each.kind in _ONE_VALUE]
        namespace = {} if self._target.windowing is None else self._namespace(source, self._target.windowing)
        for state in self._target.schema.states:
            value = self._value(state, source, is_only=len(candidates) == 1)
            if value is None:
                self.notes.append(f"state {state.name!r} starts empty: no column of Spark's state has its name")
            else:
                yield self._state(state, source, {**namespace, "value": value})
        if self._target.windowing is not None:
            yield self._window_timers(source, self._target.windowing, namespace)
        for timers in self._target.schema.timers or ():
            if (time_ms := self._given.values.get((self._target.uid, timers.name))) is not None:
                yield StatePlan(timers.name, source, self._key(source), {"time_ms": time_ms})
            elif TIMEOUT in source.extra:
                self.notes.append(
                    f"timeouts are not taken over as {timers.name!r}: Spark does not record by which time they count;"
                    f" give --value {self._target.uid} {timers.name} {TIMEOUT}"
                )

    def processor_states(self) -> Iterator[StatePlan]:
        """Yields the states and timers of a processor, by their names."""
        for source in self._operator.states:
            if source.kind is VariableKind.TIMERS:
                yield from self._processor_timers(source)
                continue
            name = stored_name(source.name)
            state = self._target.schema.state(name)
            if state is None:
                self.notes.append(
                    f"state {source.name!r} is left out: operator {self._target.uid!r} does not declare it"
                )
                continue
            if state.kind is not _KINDS[source.kind]:
                raise ImportUnmappedError(
                    f"state {source.name!r} is a {source.kind} in Spark and a {state.kind} in {self._target.uid!r}"
                )
            columns = {"value": self._required_value(state, source)}
            if source.kind is VariableKind.LIST:
                columns["list_index"] = "list_index"
            if state.map_key is not None:
                columns["map_key"] = self._required(
                    state.name, type_from_json(state.map_key), "map_key", source.map_key
                )
            yield self._state(state, source, columns)

    def _processor_timers(self, source: SparkState) -> Iterator[StatePlan]:
        mode = TimeMode.of(self._operator.time_mode or "none")
        logic = self._target.logic
        if isinstance(logic, TransformWithState) and logic.time_mode is not mode:
            raise ImportUnmappedError(
                f"the processor of operator {self._operator.number} has the time mode {self._operator.time_mode}, and"
                f" operator {self._target.uid!r} has {logic.time_mode}"
            )
        if self._target.schema.timers_of(mode.timers) is None:
            self.notes.append(f"timers are left out: operator {self._target.uid!r} has none")
            return
        # Spark's watermark is one millisecond later than Keyscale's.
        time_ms = "time_ms - 1" if mode is TimeMode.EVENT_TIME else "time_ms"
        yield StatePlan(mode.timers, source, self._key(source), {"time_ms": time_ms})
        registered = self._target.schema.state(f"_registered{mode.timers}")
        if registered is not None:
            yield self._state(registered, source, {"map_key": "time_ms", "value": "true"})

    def _window_timers(self, source: SparkState, windowing: Windowing, namespace: Mapping[str, str]) -> StatePlan:
        """Returns the timers at the ends of windows and of their lateness."""
        column = _window_column(source)
        last = f"unix_millis(key.{column}.end) - 1"
        lateness_ms = windowing.allowed_lateness_ms
        times = f"explode(array({last}, {last} + {lateness_ms}))" if lateness_ms else last
        if windowing.early_every_ms is not None:
            self.notes.append("the early results of a window begin with its next record")
        return StatePlan(EVENT_TIMERS, source, self._key(source), {**namespace, "time_ms": times}, None, WINDOW_TYPE)

    def _namespace(self, source: SparkState, windowing: Windowing) -> dict[str, str]:
        if windowing.assigner.time_domain is not TimeDomain.EVENT or isinstance(windowing.assigner, SessionWindows):
            raise ImportUnsupportedError(
                f"operator {self._target.uid!r} has session windows or windows by processing time; Spark's windows are"
                " tumbling or sliding windows by event time"
            )
        column = _window_column(source)
        if column is None:
            raise ImportUnmappedError(f"the key of operator {self._operator.number} has no window")
        size_ms = windowing.assigner.size_ms
        start, end = (f"unix_millis(key.{column}.{edge})" for edge in ("start", "end"))
        checked = f"if({end} - {start} = {size_ms}, {end}, raise_error('a window of Spark is not {size_ms} ms long'))"
        return {"namespace": f"named_struct('start', {start}, 'end', {checked})"}

    def _state(self, state: StateSchema, source: SparkState, columns: Mapping[str, str]) -> StatePlan:
        columns = {**columns, **self._stamps(state, source)}
        return StatePlan(state.name, source, self._key(source), columns, state)

    def _stamps(self, state: StateSchema, source: SparkState) -> dict[str, str]:
        """Returns when the time to live of each row began.

        It is what makes the row expire when it would in Spark, or else the present.
        """
        domain = state.formats[-1].stamps
        if domain is None:
            if EXPIRES in source.extra:
                self.notes.append(f"state {state.name!r} keeps all rows: it has no TTL in the program")
            return {}
        if EXPIRES in source.extra:
            # Spark's watermark is one millisecond later than Keyscale's.
            earlier_ms = self._target.ttls_ms[state.name] + (domain == TimeDomain.EVENT)
            # A record with a date such as 9999-12-31 expires later than a stamp can say: never, in both.
            return {"ttl_started_at": f"timestamp_millis(least({EXPIRES} - {earlier_ms}, {STAMP_MAX_MS}))"}
        self.notes.append(f"the TTL of state {state.name!r} begins with the import: Spark has none")
        if domain == TimeDomain.EVENT:
            return {"ttl_started_at": f"timestamp_millis({self._batch.next_watermark_ms or self._batch.timestamp_ms})"}
        return {}

    def _key(self, source: SparkState) -> dict[str, str]:
        found = {name: _key_expression(source, self._target, name, self._given) for name in self._target.key.names}
        missing = [name for name, expression in found.items() if expression is None]
        if missing:
            raise ImportUnmappedError(
                f"column {missing[0]!r} of the key of {self._target.uid!r} is missing in Spark's key, which has"
                f" {', '.join(column.name for column in source.key)}; give --key {self._target.uid} {missing[0]}"
                " EXPRESSION"
            )
        return {name: expression for name, expression in found.items() if expression is not None}

    def _value(self, state: StateSchema, source: SparkState, *, is_only: bool) -> str | None:
        if (expression := self._given.values.get((self._target.uid, state.name))) is not None:
            return expression
        if state.kind not in _ONE_VALUE:
            return None
        if not is_only:
            return f"value.{quoted(state.name)}" if state.name in {each.name for each in source.value} else None
        return self._required_value(state, source)

    def _required_value(self, state: StateSchema, source: SparkState) -> str:
        given = self._given.values.get((self._target.uid, state.name))
        return given or self._required(state.name, type_from_json(state.formats[-1].type), "value", source.value)

    def _required(self, name: str, of_type: object, column: str, fields: Sequence[StructField]) -> str:
        expression = derived(of_type, column, [each.name for each in fields])
        if expression is None:
            raise ImportUnmappedError(
                f"state {name!r} of {self._target.uid!r} holds {of_type}, and Spark's {column} has the columns"
                f" {_fields_text(fields)}; give --value {self._target.uid} {name} EXPRESSION"
            )
        return expression


def derived(of_type: object, column: str, names: Sequence[str]) -> str | None:
    """Returns the expression of a value over a struct's fields.

    A struct has its fields by name; another type is the struct's only field.
    """
    if isinstance(of_type, pa.StructType):
        wanted = [each.name for each in of_type]
        if set(wanted) <= set(names):
            return f"named_struct({', '.join(f'{_text(name)}, {column}.{quoted(name)}' for name in wanted)})"
        return None
    return f"{column}.{quoted(names[0])}" if len(names) == 1 else None


def quoted(name: str) -> str:
    """Returns a name as SQL quotes it."""
    return f"`{name.replace('`', '``')}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _window_column(source: SparkState) -> str | None:
    found = [quoted(column.name) for column in source.key if is_window(column)]
    return found[0] if len(found) == 1 else None


def _check_names(target: TargetOperator, given: Expressions) -> None:
    known = {*(each.name for each in target.schema.states), *(each.name for each in target.schema.timers or ())}
    for what, names, expressions in (
        ("column of the key", set(target.key.names), given.keys),
        ("state", known, given.values),
    ):
        unknown = sorted(name for uid, name in expressions if uid == target.uid and name not in names)
        if unknown:
            raise ImportUnmappedError(
                f"operator {target.uid!r} has no {what} {unknown[0]!r}; it has {', '.join(sorted(names)) or 'none'}"
            )


def _columns_text(states: Iterable[SparkState]) -> str:
    return "; ".join(_fields_text(state.value) for state in states)


def _fields_text(fields: Iterable[StructField]) -> str:
    return ", ".join(f"{each.name} ({each.dataType.simpleString()})" for each in fields) or "none"

"""Plans the rows of a program's states from a Flink operator; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.doors.keyed import EVENT_TIMERS, PROCESSING_TIMERS, TimeDomain
from keyscale.state.doors.writing import StateKind, type_from_json
from keyscale.state_io.new_operator import DeclaredState, NewTimers

from .column_conversion import columns_of_key, converted
from .errors import ImportUnmappedError
from .flink_keyed_state import FlinkKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from keyscale.state.doors.writing import StateSchema

    from .flink_keyed_state import FlinkRow, FlinkState, KeyedHeader
    from .flink_serializers import FlinkType
    from .target_program import TargetOperator

_KINDS = {
    FlinkKind.VALUE: {StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING},
    FlinkKind.LIST: {StateKind.LIST},
    FlinkKind.MAP: {StateKind.MAP},
    FlinkKind.REDUCING: {StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING},
    FlinkKind.AGGREGATING: {StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING},
}
_TIMERS = {"_timer_state/event": EVENT_TIMERS, "_timer_state/processing": PROCESSING_TIMERS}
_NAMES = {"window-contents": "window_contents"}
"""The states of Keyscale's own operators, by the names that Flink's own operators give them."""
_STAMP = pa.timestamp("ms", "UTC")


@dataclass(frozen=True, slots=True)
class FlinkPlan:
    """The plan of a state's rows, or of timers.

    Attributes:
        source: The state of Flink.
        flink_key: The type of Flink's keys.
        key_columns: The columns of the program's key.
        name: The state or the timers of the program.
        schema: The state as the program declares it; None for timers.
        namespace: The type of the namespaces; None: the void namespace.
    """

    source: FlinkState
    flink_key: FlinkType
    key_columns: pa.Schema
    name: str
    schema: StateSchema | None
    namespace: pa.DataType | None = None

    @property
    def declared(self) -> DeclaredState | NewTimers:
        """The declaration of the state or timers, without rows."""
        if self.schema is not None:
            return DeclaredState(self.schema, ())
        return NewTimers(self.name, (), self.namespace)

    def batch(self, rows: Sequence[FlinkRow], now_ms: int) -> pa.RecordBatch:
        """Returns rows with the columns that a new savepoint has.

        Args:
            rows: The rows.
            now_ms: When a TTL begins that Flink does not have.

        Raises:
            ImportUnmappedError: A value does not fit the type in the program.
        """
        keys = columns_of_key(pa.array([row.key for row in rows], self.flink_key.arrow), self.key_columns)
        columns: dict[str, pa.Array] = {"key": pa.StructArray.from_arrays(keys, names=self.key_columns.names)}
        if self.namespace is not None:
            columns["namespace"] = pa.array([row.namespace for row in rows], self.namespace)
        if self.schema is None:
            columns["time_ms"] = pa.array([row.place for row in rows], pa.int64())
            return pa.RecordBatch.from_pydict(columns)
        if self.source.value is not None:
            values = pa.array([row.value for row in rows], self.source.value.arrow)
            columns["value"] = converted(values, type_from_json(self.schema.formats[-1].type))
        if self.schema.kind is StateKind.LIST:
            columns["list_index"] = pa.array([row.place for row in rows], pa.int64())
        if self.source.map_key is not None and self.schema.map_key is not None:
            map_keys = pa.array([row.map_key for row in rows], self.source.map_key.arrow)
            columns["map_key"] = converted(map_keys, type_from_json(self.schema.map_key))
        if self.schema.formats[-1].stamps is not None:
            stamps = [now_ms if row.accessed_ms is None else row.accessed_ms for row in rows]
            columns["ttl_started_at"] = pa.array(stamps, _STAMP)
        return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class FlinkOperatorPlan:
    """The plan of a file of keyed state.

    Attributes:
        states: The plan of each state that is taken, by its number in the file.
        notes: What is left out, and why.
    """

    states: Mapping[int, FlinkPlan]
    notes: tuple[str, ...]


def plan_states(
    header: KeyedHeader, target: TargetOperator, chosen: Mapping[tuple[str, str], str | None]
) -> FlinkOperatorPlan:
    """Plans the states of a file of a Flink operator.

    A state goes to the state of the same name.

    Args:
        header: The header of the file.
        target: The operator of the program.
        chosen: The state of the program for a state of Flink, by uid and Flink's name; None leaves it out.

    Raises:
        ImportUnmappedError: The types or kinds of a key or a state differ.
    """
    if header.key.problem:
        raise ImportUnmappedError(f"the keys of operator {target.uid!r} cannot be read: {header.key.problem}")
    columns_of_key(pa.array([], header.key.arrow), target.key)
    notes: list[str] = [header.problem] if header.problem else []
    plans = dict(_plans(header, target, chosen, notes))
    names = [plan.name for plan in plans.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ImportUnmappedError(f"two states of Flink would go to state {twice[0]!r} of operator {target.uid!r}")
    taken = {*names}
    notes.extend(f"state {each.name!r} starts empty" for each in target.schema.states if each.name not in taken)
    return FlinkOperatorPlan(plans, tuple(notes))


def _plans(
    header: KeyedHeader, target: TargetOperator, chosen: Mapping[tuple[str, str], str | None], notes: list[str]
) -> Iterator[tuple[int, FlinkPlan]]:
    for number, source in enumerate(header.states):
        name = chosen.get((target.uid, source.name), _NAMES.get(source.name, source.name))
        if name is None:
            notes.append(f"Flink's state {source.name!r} is left out, as asked")
        elif source.problem:
            notes.append(f"Flink's state {source.name!r} is left out: {source.problem}")
        elif source.kind is FlinkKind.TIMERS:
            if (timers := _timers(source, target, notes)) is not None:
                yield number, FlinkPlan(source, header.key, target.key, timers[0], None, timers[1])
        elif (schema := target.schema.state(name)) is None:
            if (target.uid, source.name) in chosen:
                raise ImportUnmappedError(f"operator {target.uid!r} has no state {name!r}")
            notes.append(f"Flink's state {source.name!r} is left out: operator {target.uid!r} does not declare it")
        else:
            plan = FlinkPlan(source, header.key, target.key, name, schema, _namespace(source, schema, target))
            _check_types(plan, target)
            notes.extend(_note_of_ttl(source, schema))
            yield number, plan


def _note_of_ttl(source: FlinkState, schema: StateSchema) -> Iterator[str]:
    domain = schema.formats[-1].stamps
    if domain is not None and not source.has_ttl:
        yield f"the TTL of state {schema.name!r} begins with the import: Flink's state has none"
    elif domain == TimeDomain.EVENT:
        yield f"the TTL of state {schema.name!r} counts in event time from the time of Flink's last access"
    elif domain is None and source.has_ttl:
        yield f"state {schema.name!r} keeps all rows: it has no TTL in the program"


def _timers(source: FlinkState, target: TargetOperator, notes: list[str]) -> tuple[str, pa.DataType | None] | None:
    name = next((name for prefix, name in _TIMERS.items() if source.name.startswith(prefix)), None)
    declared = None if name is None else target.schema.timers_of(name)
    namespace = _type_of_namespace(source)
    if name is None or declared is None or target.schema.state(f"_registered{name}") is not None:
        notes.append(f"Flink's timers {source.name!r} are left out: operator {target.uid!r} has no such timers")
        return None
    known = None if declared.namespace is None else type_from_json(declared.namespace)
    if known != namespace:
        notes.append(f"Flink's timers {source.name!r} are left out: operator {target.uid!r} has other namespaces")
        return None
    return name, namespace


def _namespace(source: FlinkState, schema: StateSchema, target: TargetOperator) -> pa.DataType | None:
    found = _type_of_namespace(source)
    known = None if schema.namespace is None else type_from_json(schema.namespace)
    if known != found:
        raise ImportUnmappedError(
            f"state {source.name!r} has the namespace {found or 'void'} in Flink, and {known or 'void'} in"
            f" {target.uid!r}"
        )
    return found


def _type_of_namespace(source: FlinkState) -> pa.DataType | None:
    """Returns the type of the namespaces; None for the void namespace."""
    if source.namespace is None or pa.types.is_null(source.namespace.arrow):
        return None
    return source.namespace.arrow


def _check_types(plan: FlinkPlan, target: TargetOperator) -> None:
    schema, source = plan.schema, plan.source
    if schema is None or source.value is None:
        return
    if schema.kind not in _KINDS[source.kind]:
        raise ImportUnmappedError(
            f"state {source.name!r} is a {source.kind} in Flink and a {schema.kind} in {target.uid!r}"
        )
    pairs: list[tuple[pa.DataType, Any]] = [(source.value.arrow, type_from_json(schema.formats[-1].type))]
    if source.map_key is not None and schema.map_key is not None:
        pairs.append((source.map_key.arrow, type_from_json(schema.map_key)))
    for found, wanted in pairs:
        try:
            converted(pa.array([], found), wanted)
        except ImportUnmappedError:
            raise ImportUnmappedError(
                f"state {source.name!r} holds {found} in Flink, and {wanted} in operator {target.uid!r}; give the state"
                " this type, or leave it out"
            ) from None

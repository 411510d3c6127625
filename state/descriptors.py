"""Descriptors: immutable declarations of states.

Every descriptor may have a `ttl` (how long entries live; None: for ever) and a `namespace_type` (the type of a scope under a
key, such as a window; None: the void namespace, which costs nothing).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from state.errors import DescriptorError

if TYPE_CHECKING:
    import pyarrow as pa

    from state.ttl import Ttl

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


class StateKind(StrEnum):
    """The kinds of keyed state."""

    VALUE = "value"
    MAP = "map"
    LIST = "list"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"


@runtime_checkable
class ReduceFunction(Protocol):
    """Combines two values into one of the same type; associative."""

    def __call__(self, left: Any, right: Any, /) -> Any: ...


class AggregateFunction(Protocol):
    """Folds inputs into an accumulator, from which a result is read; as in Flink."""

    def create_accumulator(self) -> Any: ...

    def add(self, value: Any, accumulator: Any, /) -> Any:
        """The accumulator with `value` added; it may be the same, changed object."""
        ...

    def get_result(self, accumulator: Any, /) -> Any: ...

    def merge(self, left: Any, right: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
    """One value a key."""

    kind: ClassVar[StateKind] = StateKind.VALUE
    name: str
    type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor:
    """A map a key; each entry is stored, read and expires apart."""

    kind: ClassVar[StateKind] = StateKind.MAP
    name: str
    key_type: pa.DataType
    value_type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class ListStateDescriptor:
    """A list a key; each element is stored and expires apart."""

    kind: ClassVar[StateKind] = StateKind.LIST
    name: str
    element_type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor:
    """One value a key, into which every added value is reduced."""

    kind: ClassVar[StateKind] = StateKind.REDUCING
    name: str
    type: pa.DataType
    reduce: ReduceFunction
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor:
    """One accumulator a key, to which every added value is added; `get` reads the result."""

    kind: ClassVar[StateKind] = StateKind.AGGREGATING
    name: str
    accumulator_type: pa.DataType
    aggregate: AggregateFunction
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


StateDescriptor = (
    ValueStateDescriptor
    | MapStateDescriptor
    | ListStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
)


def check_name(name: str) -> None:
    """Refuse a name that no state can have.

    Raises:
        DescriptorError: It is `default`, too long, or has other characters than letters, digits, `_`, `.` and `-`.
    """
    if not _NAME.fullmatch(name) or name == "default":
        message = (
            f"{name!r} cannot name a state: use 1 to 128 letters, digits, '_', '.' or '-', "
            "beginning with a letter or '_', and not 'default'"
        )
        raise DescriptorError(message)

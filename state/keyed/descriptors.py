"""Descriptors: immutable declarations of states.

Every descriptor may have a `ttl` (how long entries live; None: without limit) and a `namespace_type` (the type of a
scope under a key, such as a window; None: the void namespace, which takes no space).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ..errors import DescriptorError

if TYPE_CHECKING:
    import pyarrow as pa

    from .ttl import Ttl

_NAME = re.compile(r"[A-Za-z_%][A-Za-z0-9_.%-]{0,127}")


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
    """Folds inputs into an accumulator with a result, as in Flink."""

    def create_accumulator(self) -> Any:
        """Returns the accumulator of a key without input."""
        ...

    def add(self, value: Any, accumulator: Any, /) -> Any:
        """Returns the accumulator with `value` added.

        It may be the same object, changed.
        """
        ...

    def get_result(self, accumulator: Any, /) -> Any:
        """Returns the result of an accumulator."""
        ...

    def merge(self, left: Any, right: Any, /) -> Any:
        """Returns one accumulator for the inputs of two.

        For example when two session windows merge.
        """
        ...


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
    """One value per key."""

    kind: ClassVar[StateKind] = StateKind.VALUE
    name: str
    type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor:
    """One map per key; each entry is stored, read and expired separately."""

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
    """One list per key; each element is stored and expired separately."""

    kind: ClassVar[StateKind] = StateKind.LIST
    name: str
    element_type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor:
    """One value per key, combined with every added value."""

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
    """One accumulator per key, updated with every added value.

    `get` returns its result.
    """

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
    """Checks the name of a state.

    Raises:
        DescriptorError: The name is `default`, too long, or has characters other than letters, digits, `_`, `.`, `-`,
            `%`.
    """
    if not _NAME.fullmatch(name) or name == "default":
        raise DescriptorError(
            f"{name!r} cannot name a state: use 1 to 128 letters, digits, '_', '.', '-' or '%', "
            "beginning with a letter, '_' or '%', and not 'default'"
        )

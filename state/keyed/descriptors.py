"""Descriptors: immutable declarations of states.

A descriptor says all that is special about its kind: the types of its entries, and the class of its state. To add a
kind, write a module with a class of `KeyedState` and a descriptor that creates it, and name its `StateKind`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import pyarrow as pa

from ..errors import DescriptorError
from ..serializers.key_codecs import key_codec_for
from ..serializers.type_names import type_to_json
from .aggregating import AggregateFunction, AggregatingState, ReduceFunction, ReducingState
from .keyed_state import KeyedState
from .list import ListState
from .map import MapState
from .schema import StateKind, StateSchema, ValueFormat
from .ttl import Ttl, check_ttl
from .value import ValueState

if TYPE_CHECKING:
    from typing import Self

    from ..serializers.key_codecs import KeyCodec
    from .entries import Entries
    from .keyed_state import CurrentKey

State = TypeVar("State", bound=KeyedState)

_NAME = re.compile(r"[A-Za-z_%][A-Za-z0-9_.%-]{0,127}")


class StateDescriptor(Generic[State]):
    """Declares a state.

    Attributes:
        kind: The kind of state, as manifests name it.
        name: The state's name, unique within the operator.
        ttl: How long entries live; None: without limit.
        namespace_type: The type of a scope under a key, such as a window; None: the void namespace.
    """

    __slots__ = ()

    kind: ClassVar[StateKind]
    name: str
    ttl: Ttl | None
    namespace_type: pa.DataType | None

    @property
    def entry_type(self) -> pa.DataType:
        """The type of the value of one stored entry."""
        raise NotImplementedError

    @property
    def map_key_type(self) -> pa.DataType | None:
        """The type of the map key that ends stored keys, or None."""
        return None

    def without_function(self) -> Self:
        """Returns the descriptor without its function, which is not stored."""
        return self

    def stored(self) -> StateSchema:
        """Returns the schema of the newly declared state."""
        ttl, map_key, namespace = self.ttl, self.map_key_type, self.namespace_type
        stamps = str(ttl.time_domain) if ttl is not None and ttl.enabled else None
        return StateSchema(
            name=self.name,
            kind=self.kind,
            formats=(ValueFormat(type_to_json(self.entry_type), stamps),),
            map_key=None if map_key is None else type_to_json(map_key),
            namespace=None if namespace is None else type_to_json(namespace),
        )

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> State:
        """Returns the state over its entries, for the context's current key."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(StateDescriptor[ValueState]):
    """One value per key."""

    kind: ClassVar[StateKind] = StateKind.VALUE
    name: str
    type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        _check_declaration(self, self.type)

    @property
    def entry_type(self) -> pa.DataType:
        return self.type

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> ValueState:
        return ValueState(entries, context, namespace)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(StateDescriptor[MapState]):
    """One map per key; each entry is stored, read and expired separately."""

    kind: ClassVar[StateKind] = StateKind.MAP
    name: str
    key_type: pa.DataType
    value_type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        _check_declaration(self, self.key_type, self.value_type)

    @property
    def entry_type(self) -> pa.DataType:
        return self.value_type

    @property
    def map_key_type(self) -> pa.DataType:
        return self.key_type

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> MapState:
        return MapState(entries, context, namespace, key_codec_for(self.key_type))


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(StateDescriptor[ListState]):
    """One list per key; each element is stored and expired separately."""

    kind: ClassVar[StateKind] = StateKind.LIST
    name: str
    element_type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        _check_declaration(self, self.element_type)

    @property
    def entry_type(self) -> pa.DataType:
        return self.element_type

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> ListState:
        return ListState(entries, context, namespace)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(StateDescriptor[ReducingState]):
    """One value per key, combined with every added value."""

    kind: ClassVar[StateKind] = StateKind.REDUCING
    name: str
    type: pa.DataType
    reduce: ReduceFunction
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        _check_declaration(self, self.type)

    @property
    def entry_type(self) -> pa.DataType:
        return self.type

    def without_function(self) -> Self:
        return replace(self, reduce=max)

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> ReducingState:
        return ReducingState(entries, context, namespace, self.reduce)


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(StateDescriptor[AggregatingState]):
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
        _check_declaration(self, self.accumulator_type)

    @property
    def entry_type(self) -> pa.DataType:
        return self.accumulator_type

    def without_function(self) -> Self:
        return replace(self, aggregate=cast("AggregateFunction", None))

    def create(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None) -> AggregatingState:
        return AggregatingState(entries, context, namespace, self.aggregate)


_ARROW: dict[object, str] = {
    bool: "pa.bool_()",
    bytes: "pa.binary()",
    dict: "pa.struct([...]) or pa.map_(...)",
    float: "pa.float64()",
    int: "pa.int64()",
    list: "pa.list_(...)",
    str: "pa.string()",
    "bigint": "pa.int64()",
    "boolean": "pa.bool_()",
    "double": "pa.float64()",
    "int": "pa.int32()",
    "long": "pa.int64()",
    "string": "pa.string()",
    "timestamp": 'pa.timestamp("us", "UTC")',
}
"""Arrow types for types that other languages of declaration have."""


def check_type(given: object, what: str) -> None:
    """Checks that a declared type is an Arrow type.

    Args:
        given: The declared type.
        what: What has the type, for the message.

    Raises:
        DescriptorError: The type is something else.
    """
    if isinstance(given, pa.DataType):
        return
    is_known = isinstance(given, (str, type))
    shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if is_known and given in _ARROW:
        hint = _ARROW[given]
    elif callable(given) and getattr(pa, shown, None) is given:
        hint = f"pa.{shown}(), with its parentheses"
    else:
        hint = "an Arrow type, such as pa.int64() or pa.string()"
    raise DescriptorError(f"{what} is declared as {shown}; declare {hint}")


def _check_declaration(descriptor: StateDescriptor[Any], *types: object) -> None:
    check_name(descriptor.name)
    for given in types:
        check_type(given, f"the type of state {descriptor.name!r}")
    if descriptor.namespace_type is not None:
        check_type(descriptor.namespace_type, f"the namespace of state {descriptor.name!r}")
    check_ttl(descriptor.ttl)


def check_name(name: str) -> None:
    """Checks the name of a state.

    Raises:
        DescriptorError: The name is no text, is `default`, too long, or has characters other than letters, digits, `_`,
            `.`, `-`, `%`.
    """
    if not isinstance(name, str):
        raise DescriptorError(f"a state is named by a {type(name).__name__}; give its name as text, before its type")
    if not _NAME.fullmatch(name) or name == "default":
        raise DescriptorError(
            f"{name!r} cannot name a state: use 1 to 128 letters, digits, '_', '.', '-' or '%', "
            "beginning with a letter, '_' or '%', and not 'default'"
        )

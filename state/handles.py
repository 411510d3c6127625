"""The handle of each kind of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.aggregating import AggregatingState, ReducingState
from state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from state.list import ListState
from state.map import MapState
from state.serializers import key_codec_for
from state.value import ValueState

if TYPE_CHECKING:
    from state.descriptors import StateDescriptor
    from state.entries import Entries
    from state.handle import KeyContext

AnyState = ValueState | MapState | ListState | ReducingState | AggregatingState


def handle_of(descriptor: StateDescriptor, entries: Entries, context: KeyContext) -> AnyState:
    """The handle on the entries of a state, bound to the context's current key."""
    namespace = None if descriptor.namespace_type is None else key_codec_for(descriptor.namespace_type)
    match descriptor:
        case ValueStateDescriptor():
            return ValueState(entries, context, namespace)
        case MapStateDescriptor():
            return MapState(entries, context, namespace, key_codec_for(descriptor.key_type))
        case ListStateDescriptor():
            return ListState(entries, context, namespace)
        case ReducingStateDescriptor():
            return ReducingState(entries, context, namespace, descriptor.reduce)
        case AggregatingStateDescriptor():
            return AggregatingState(entries, context, namespace, descriptor.aggregate)

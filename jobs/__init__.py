"""What users write jobs with.

Every name is imported when it is first used: the control plane, which reads only the wire contract, never loads Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.environment import StreamEnvironment
    from jobs.functions import KeyedProcessFunction, ProcessContext, Row, RuntimeContext
    from jobs.sinks import FileSink, ForeachBatchSink, Sink, SinkContext
    from jobs.stream import DataStream, KeyedStream
    from state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
    from state.ttl import Ttl

_HOMES = {
    "DataStream": "jobs.stream",
    "FileSink": "jobs.sinks",
    "ForeachBatchSink": "jobs.sinks",
    "KeyedProcessFunction": "jobs.functions",
    "KeyedStream": "jobs.stream",
    "ListStateDescriptor": "state.descriptors",
    "MapStateDescriptor": "state.descriptors",
    "ProcessContext": "jobs.functions",
    "Row": "jobs.functions",
    "RuntimeContext": "jobs.functions",
    "Sink": "jobs.sinks",
    "SinkContext": "jobs.sinks",
    "StreamEnvironment": "jobs.environment",
    "Ttl": "state.ttl",
    "ValueStateDescriptor": "state.descriptors",
}

__all__ = [
    "DataStream",
    "FileSink",
    "ForeachBatchSink",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ProcessContext",
    "Row",
    "RuntimeContext",
    "Sink",
    "SinkContext",
    "StreamEnvironment",
    "Ttl",
    "ValueStateDescriptor",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

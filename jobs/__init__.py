"""What users write jobs with.

Every name is imported when it is first used: the control plane, which reads only the wire contract, never loads Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.batch_function import KeyedBatch, KeyedBatchFunction
    from jobs.bloom_filter import BloomFilter
    from jobs.broadcast import (
        BroadcastContext,
        KeyedBroadcastProcessFunction,
        KeyedReadOnlyContext,
        KeyedReadOnlyTimerContext,
    )
    from jobs.co_process import KeyedCoProcessFunction
    from jobs.connected_streams import BroadcastStream
    from jobs.environment import StreamEnvironment
    from jobs.functions import KeyedProcessFunction, OnTimerContext, OutputTag, ProcessContext, Row, RuntimeContext
    from jobs.keyed_stream import KeyedStream
    from jobs.secret import Secret
    from jobs.sinks import FileSink, ForeachBatchSink, Sink, SinkContext
    from jobs.sinks.kafka import KafkaSink
    from jobs.sinks.postgres import PostgresSink
    from jobs.sources import Source
    from jobs.sources.kafka import KafkaSource
    from jobs.stream import DataStream
    from jobs.timers import TimerService
    from jobs.window_contents import ProcessWindowFunction
    from jobs.windowed_stream import WindowedStream
    from jobs.windows import SessionWindows, SlidingWindows, TumblingWindows, Window
    from jobs.wire import ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart, NoRestart
    from state.descriptors import (
        AggregateFunction,
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from state.settings import CompactionStyle, Compression, Profile, RocksDbSettings
    from state.ttl import TimeDomain, Ttl

_HOMES = {
    "AggregateFunction": "state.descriptors",
    "AggregatingStateDescriptor": "state.descriptors",
    "BloomFilter": "jobs.bloom_filter",
    "BroadcastContext": "jobs.broadcast",
    "BroadcastStream": "jobs.connected_streams",
    "CompactionStyle": "state.settings",
    "Compression": "state.settings",
    "DataStream": "jobs.stream",
    "ExponentialDelayRestart": "jobs.wire",
    "FailureRateRestart": "jobs.wire",
    "FileSink": "jobs.sinks",
    "FixedDelayRestart": "jobs.wire",
    "ForeachBatchSink": "jobs.sinks",
    "KafkaSink": "jobs.sinks.kafka",
    "KafkaSource": "jobs.sources.kafka",
    "KeyedBatch": "jobs.batch_function",
    "KeyedBatchFunction": "jobs.batch_function",
    "KeyedBroadcastProcessFunction": "jobs.broadcast",
    "KeyedCoProcessFunction": "jobs.co_process",
    "KeyedProcessFunction": "jobs.functions",
    "KeyedReadOnlyContext": "jobs.broadcast",
    "KeyedReadOnlyTimerContext": "jobs.broadcast",
    "KeyedStream": "jobs.keyed_stream",
    "ListStateDescriptor": "state.descriptors",
    "MapStateDescriptor": "state.descriptors",
    "NoRestart": "jobs.wire",
    "OnTimerContext": "jobs.functions",
    "OutputTag": "jobs.functions",
    "PostgresSink": "jobs.sinks.postgres",
    "ProcessContext": "jobs.functions",
    "ProcessWindowFunction": "jobs.window_contents",
    "Profile": "state.settings",
    "ReducingStateDescriptor": "state.descriptors",
    "RocksDbSettings": "state.settings",
    "Row": "jobs.functions",
    "RuntimeContext": "jobs.functions",
    "Secret": "jobs.secret",
    "SessionWindows": "jobs.windows",
    "Sink": "jobs.sinks",
    "SinkContext": "jobs.sinks",
    "SlidingWindows": "jobs.windows",
    "Source": "jobs.sources",
    "StreamEnvironment": "jobs.environment",
    "TimeDomain": "state.ttl",
    "TimerService": "jobs.timers",
    "Ttl": "state.ttl",
    "TumblingWindows": "jobs.windows",
    "ValueStateDescriptor": "state.descriptors",
    "Window": "jobs.windows",
    "WindowedStream": "jobs.windowed_stream",
}

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "BloomFilter",
    "BroadcastContext",
    "BroadcastStream",
    "CompactionStyle",
    "Compression",
    "DataStream",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FileSink",
    "FixedDelayRestart",
    "ForeachBatchSink",
    "KafkaSink",
    "KafkaSource",
    "KeyedBatch",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedReadOnlyContext",
    "KeyedReadOnlyTimerContext",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "NoRestart",
    "OnTimerContext",
    "OutputTag",
    "PostgresSink",
    "ProcessContext",
    "ProcessWindowFunction",
    "Profile",
    "ReducingStateDescriptor",
    "RocksDbSettings",
    "Row",
    "RuntimeContext",
    "Secret",
    "SessionWindows",
    "Sink",
    "SinkContext",
    "SlidingWindows",
    "Source",
    "StreamEnvironment",
    "TimeDomain",
    "TimerService",
    "Ttl",
    "TumblingWindows",
    "ValueStateDescriptor",
    "Window",
    "WindowedStream",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

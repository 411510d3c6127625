"""The stateful operators of a Spark query, and frames of their state.

Spark's own data sources `state-metadata` and `statestore` read them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.types import ArrayType, StructField, StructType

from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory

from .errors import ImportUnsupportedError, SparkCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from .spark_checkpoint import SparkCheckpoint

_GROUP_STATE = "groupState"
_TIMEOUT = "timeoutTimestamp"
_EXPIRES_MICROS = "expiresAtMicros"
_TTL = "ttlExpirationMs"
_NO_VALUE = "__dummy__"
EXPIRES = "expires_ms"
TIMEOUT = "timeout_ms"
"""Columns of the frames: when a row expires, and when its group times out."""


class OperatorKind(StrEnum):
    """The kinds of Spark's stateful operators that a savepoint can take."""

    DEDUPLICATION = "dropDuplicates"
    DEDUPLICATION_WITHIN_WATERMARK = "dropDuplicatesWithinWatermark"
    AGGREGATION = "aggregation"
    GROUP_STATE = "flatMapGroupsWithState"
    PROCESSOR = "transformWithState"


_KINDS = {
    "dedupe": OperatorKind.DEDUPLICATION,
    "dedupeWithinWatermark": OperatorKind.DEDUPLICATION_WITHIN_WATERMARK,
    "stateStoreSave": OperatorKind.AGGREGATION,
    "flatMapGroupsWithState": OperatorKind.GROUP_STATE,
    "applyInPandasWithState": OperatorKind.GROUP_STATE,
    "transformWithStateExec": OperatorKind.PROCESSOR,
    "transformWithStateInPandasExec": OperatorKind.PROCESSOR,
    "transformWithStateInPySparkExec": OperatorKind.PROCESSOR,
}
_REASONS = {
    "symmetricHashJoin": "a join of two streams keeps the rows of both sides; write it as a KeyedCoProcessFunction",
    "sessionWindowStateStoreSaveExec": "the gap of a session window is not in the checkpoint",
    "globalLimit": "a limit of a whole stream has no key",
}


class VariableKind(StrEnum):
    """The kinds of a Spark operator's state, by Spark's names."""

    VALUE = "ValueState"
    LIST = "ListState"
    MAP = "MapState"
    TIMERS = "TimerState"


@dataclass(frozen=True, slots=True)
class SparkState:
    """A state of a Spark operator: its store, or a processor's variable.

    Attributes:
        name: The name of the variable; empty for the only store of an operator.
        kind: Its kind.
        key: The columns of its key.
        value: The columns of its values, with a number behind a name that is used twice.
        map_key: The columns of the keys of a map.
        extra: Further columns of its frame: EXPIRES or TIMEOUT.
    """

    name: str
    kind: VariableKind
    key: tuple[StructField, ...]
    value: tuple[StructField, ...] = ()
    map_key: tuple[StructField, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkOperator:
    """A stateful operator of a Spark query.

    Attributes:
        number: Its id in the checkpoint.
        name: Spark's name of it.
        kind: Its kind; None if it cannot be imported.
        states: Its states.
        time_mode: The time mode of a processor.
    """

    number: int
    name: str
    kind: OperatorKind | None
    states: tuple[SparkState, ...] = ()
    time_mode: str | None = None

    @property
    def reason(self) -> str:
        """Why it cannot be imported."""
        return _REASONS.get(self.name, "a savepoint has no such state")


@dataclass(frozen=True, slots=True)
class SparkStateReader:
    """Reads the state of a query after its last committed batch."""

    spark: SparkSession
    checkpoint: SparkCheckpoint

    def operators(self) -> list[SparkOperator]:
        """Returns the stateful operators of the query.

        Raises:
            SparkCheckpointError: Spark cannot read the checkpoint.
        """
        if not HadoopDirectory(self.spark, self.checkpoint.location).child("state").exists():
            return []
        try:
            rows = self.spark.read.format("state-metadata").load(self.checkpoint.location).collect()
        except PySparkException as error:
            raise SparkCheckpointError(f"Spark cannot read the state of {self.checkpoint.location}: {error}") from None
        found: dict[int, SparkOperator] = {}
        for row in rows:
            properties = json.loads(row.operatorProperties or "{}")
            operator = SparkOperator(
                row.operatorId, row.operatorName, _KINDS.get(row.operatorName), (), properties.get("timeMode")
            )
            if operator.number not in found:
                states = () if operator.kind is None else self._states(operator, properties)
                found[operator.number] = replace(operator, states=states)
        return [found[number] for number in sorted(found)]

    def frame(self, operator: SparkOperator, state: SparkState) -> DataFrame:
        """Returns a frame of a state.

        It has a column `key`, then `value`, `map_key`, `list_index` and `time_ms` as the kind of the state requires,
        and the state's further columns.
        """
        rows = self._load(operator.number, state.name, state.kind)
        if state.kind is VariableKind.TIMERS:
            return rows.select("key", F.col("expiration_timestamp_ms").alias("time_ms"))
        if state.kind is VariableKind.LIST:
            rows = rows.select("key", F.posexplode("list_value").alias("list_index", "value"))
        elif state.kind is VariableKind.MAP:
            rows = rows.select("key", F.col("user_map_key").alias("map_key"), F.col("user_map_value").alias("value"))
        named = rows.withColumn("value", F.col("value").cast(_with_unique_names(_struct(rows.schema, "value"))))
        columns = [name for name in named.columns if name not in {"value", "partition_id"}]
        value, extra = _parts(state, _struct(named.schema, "value"))
        frame = named.select(*columns, value.alias("value"), *extra)
        return frame.where("value IS NOT NULL") if operator.kind is OperatorKind.GROUP_STATE else frame

    def _states(self, operator: SparkOperator, properties: Mapping[str, Any]) -> tuple[SparkState, ...]:
        if operator.kind is not OperatorKind.PROCESSOR:
            return (self._state(operator, "", VariableKind.VALUE),)
        variables = properties.get("stateVariables", [])
        return tuple(
            self._state(operator, each["stateName"], VariableKind(each["stateVariableType"])) for each in variables
        )

    def _state(self, operator: SparkOperator, name: str, kind: VariableKind) -> SparkState:
        schema = self._load(operator.number, name, kind).schema
        key = tuple(_struct(schema, "key").fields)
        if kind is VariableKind.TIMERS:
            return SparkState(name, kind, key)
        of_map = tuple(_struct(schema, "user_map_key").fields) if kind is VariableKind.MAP else ()
        column = {VariableKind.LIST: "list_value", VariableKind.MAP: "user_map_value"}.get(kind, "value")
        value, extra = _columns_of(_with_unique_names(_struct(schema, column)))
        return SparkState(name, kind, key, value, of_map, extra)

    def _load(self, operator: int, variable: str, kind: VariableKind) -> DataFrame:
        options = {"batchId": str(self.checkpoint.batch.number), "operatorId": str(operator)}
        if kind is VariableKind.TIMERS:
            options["readRegisteredTimers"] = "true"
        elif variable:
            options |= {"stateVarName": variable, "flattenCollectionTypes": str(kind is not VariableKind.LIST).lower()}
        try:
            return self.spark.read.format("statestore").options(**options).load(self.checkpoint.location)
        except PySparkException as error:
            raise SparkCheckpointError(f"Spark cannot read the state of operator {operator}: {error}") from None


def _columns_of(value: StructType) -> tuple[tuple[StructField, ...], tuple[str, ...]]:
    """Returns the columns of a state's values, and its further columns."""
    names = value.names
    if _TTL in names:
        return tuple(_struct(value, "value").fields), (EXPIRES,)
    if _GROUP_STATE in names:
        return tuple(_struct(value, _GROUP_STATE).fields), ((TIMEOUT,) if _TIMEOUT in names else ())
    fields = tuple(field for field in value.fields if field.name != _NO_VALUE)
    return fields, ((EXPIRES,) if names == [_EXPIRES_MICROS] else ())


def _parts(state: SparkState, value: StructType) -> tuple[Column, list[Column]]:
    """Returns the columns of a state's frame from Spark's column `value`."""
    names = value.names
    if _TTL in names:
        return F.col("value.value"), [F.col(f"value.{_TTL}").alias(EXPIRES)]
    if _GROUP_STATE in names:
        return F.col(f"value.{_GROUP_STATE}"), [F.col(f"value.{_TIMEOUT}").alias(each) for each in state.extra]
    expires = (F.col(f"value.{_EXPIRES_MICROS}") / 1000).cast("bigint") if state.extra else None
    return F.col("value"), [] if expires is None else [expires.alias(EXPIRES)]


def _struct(schema: StructType, name: str) -> StructType:
    of_type = schema[name].dataType
    if isinstance(of_type, ArrayType):
        of_type = of_type.elementType
    if not isinstance(of_type, StructType):
        raise ImportUnsupportedError(f"the column {name!r} of Spark's state is {of_type.simpleString()}, not a struct")
    return of_type


def _with_unique_names(struct: StructType) -> StructType:
    return StructType(
        [
            StructField(name, field.dataType, field.nullable)
            for name, field in zip(unique_names(struct.names), struct.fields, strict=True)
        ]
    )


def unique_names(names: Sequence[str]) -> list[str]:
    """Returns names with a number behind each name that is used before."""
    found: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def described(operators: Iterable[SparkOperator]) -> str:
    """Returns the operators of a query as text."""
    return ", ".join(f"{each.number} ({each.kind or each.name})" for each in operators) or "none"

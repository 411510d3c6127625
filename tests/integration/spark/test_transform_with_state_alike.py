"""A processor that does and says all it can gives the same in Spark's own operator and in ours, over random histories.

Both run the same batches: all types, both forms, all time modes, several sizes of chunks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.spark_internals.arrow_schemas import spark_schema_of
from keyscale.jobs.transform_with_state import record_form
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.time_mode import TimeMode
from tests.support.short_form import short_form
from tests.support.spark.own_operator import of_ours, of_spark
from tests.support.spark.scripted_processor import (
    KEYS,
    OUTPUT,
    SCHEMA,
    TYPES,
    ScriptedProcessor,
    batches,
    initial_state,
    shown,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

CHUNKS = "spark.sql.execution.arrow.maxRecordsPerBatch"
STATE_CHUNKS = "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch"


@dataclass(frozen=True)
class Trial:
    """A history, and how it is run."""

    form: RecordForm
    mode: TimeMode
    chunk: int
    state_chunk: int
    begins: bool = False
    seed: int = 20_261_124
    batches: int = 3
    rows: int = 40

    def __str__(self) -> str:
        return f"{self.form}-{self.mode}-{self.chunk}-{self.state_chunk}-{self.seed}"


def assert_alike(spark: SparkSession, home: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial) -> None:
    in_pandas = trial.form is RecordForm.PANDAS
    # With null keys Spark's own operator over pandas fails.
    history = batches(trial.seed, count=trial.batches, rows=trial.rows, nulls_in_keys=not in_pandas)
    options: dict[str, Any] = {
        "key": list(KEYS),
        "output": T.StructType([*OUTPUT.fields, *spark_schema_of(SCHEMA).fields[-len(TYPES) :]]),
        "mode": trial.mode,
        "form": trial.form,
        "initial": initial_state(history) if trial.begins else None,
    }
    processor = ScriptedProcessor(trial.mode, in_pandas=in_pandas, echo=list(TYPES))
    settings = {CHUNKS: str(trial.chunk), STATE_CHUNKS: str(trial.state_chunk)}
    theirs = of_spark(spark, home, processor, history, settings=settings, **options)
    monkeypatch.setattr(record_form, "FRAME_ROWS", trial.chunk)
    ours = of_ours(processor, history, **options)
    for number, (own, wanted) in enumerate(zip(map(by_key, ours), map(by_key, theirs), strict=True)):
        assert own.keys() == wanted.keys()
        for key, lines in wanted.items():
            different = list(unified_diff(lines, own[key], "Spark", "ours", n=0, lineterm=""))
            assert not different, f"batch {number}, key {key}:\n" + "\n".join(different)


def by_key(rows: list[tuple[Any, ...]]) -> dict[str, list[str]]:
    """Returns the lines that each key has said, with the other values that it has emitted."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, number, said, *values in rows:
        found[key] += [str(number), *str(said).splitlines()]
        found[key] += [shown(plain(value, kind)) for value, kind in zip(values, TYPES.values(), strict=True)]
    return found


def plain(value: Any, kind: pa.DataType) -> Any:
    """Returns an emitted value in one form: a driver and a test's harness have different classes for nested ones."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {name: plain(each, kind.item_type) for name, each in dict(value).items()}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=None)
    return bytes(value) if pa.types.is_binary(kind) else value


TRIALS = [
    Trial(RecordForm.ROWS, TimeMode.NONE, chunk=10_000, state_chunk=2, begins=True, batches=2, rows=15),
    Trial(RecordForm.ROWS, TimeMode.PROCESSING_TIME, chunk=1, state_chunk=500, batches=2, rows=15),
    Trial(RecordForm.PANDAS, TimeMode.EVENT_TIME, chunk=10_000, state_chunk=1, begins=True, batches=2, rows=15),
]


@pytest.mark.parametrize("trial", short_form(TRIALS, [TRIALS[0], TRIALS[2]]), ids=str)
def test_a_processor_says_the_same_in_both(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    assert_alike(spark, tmp_path, monkeypatch, trial)


def many_trials() -> list[Trial]:
    """Returns trials of every form and mode, with random histories and chunks."""
    chance = random.Random(20_261_125)
    return [
        Trial(
            form,
            mode,
            # With an initial state Spark's operator calls the processor once per chunk, and not once per key.
            chunk=chance.choice([1, 2, 3, 7, 10_000]) if seed % 2 else 10_000,
            state_chunk=chance.choice([1, 2, 500]),
            begins=seed % 2 == 0,
            seed=seed,
            batches=6,
            rows=chance.choice([5, 40, 150]),
        )
        for seed in range(10)
        for form in RecordForm
        for mode in TimeMode
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", many_trials(), ids=str)
def test_a_processor_says_the_same_in_both_over_many_histories(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    assert_alike(spark, tmp_path, monkeypatch, trial)

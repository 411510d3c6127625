"""Writes and reads many keys as a savepoint and as plain files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bench.store.keys import BATCH_KEYS, MAX_PARALLELISM, SEED, key_column
from keyscale.api.control_plane.key_readers import KeyReaders
from keyscale.state.engine.rocksdb import SortedFiles
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.writing.entry_sorter import EntrySorter
from keyscale.state.writing.row_encoder import KeyHashing, encoder_of
from keyscale.state_io import NewOperator, NewState, StateReader, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEY = pa.schema([("id", pa.int64())])
COUNT = ValueStateDescriptor("count", pa.int64())
SINGLE_READS = 1000
_JOB = "history"
_ROWS = pa.schema([("id", pa.int64()), ("value", pa.int64())])


def run(*, work: str, action: str, keys: int) -> Mapping[str, Any]:
    """Carries out one action on the keys number 0 to `keys`.

    Args:
        work: A fresh folder.
        action: `sorted files`, `savepoint`, `read`, `parquet` or `one key`.
        keys: The number of keys.

    Returns:
        `rate`: keys per second; `cpu_rate`: keys per second of the processors. Of `one key`: `first_ms`, `p50_ms` and
        `p99_ms` of reads.
    """
    if action == "one key":
        return _one_key(Path(work), keys)
    actions = {"sorted files": _sorted_files, "savepoint": _savepoint, "read": _read, "parquet": _parquet}
    stopwatch = _Stopwatch()
    actions[action](Path(work), keys, stopwatch)
    return {"rate": keys / stopwatch.seconds, "cpu_rate": keys / stopwatch.cpu_seconds}


class _Stopwatch:
    """Adds up the time of `with` blocks, and of the processors."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started[0]
        self.cpu_seconds += time.process_time() - self._started[1]


def _sorted_files(work: Path, keys: int, stopwatch: _Stopwatch) -> None:
    """Writes the same sorted files, and measures neither encoding nor sorting."""
    schema = NewOperator("counts", KEY, [NewState(COUNT, None)]).schema
    encoder = encoder_of(schema, COUNT.name, KeyHashing(MAX_PARALLELISM), now_ms=0)
    sorter = EntrySorter(COUNT.name, work, KeyGroupRange(0, MAX_PARALLELISM - 1))
    for batch in _rows(keys):
        sorter.add(encoder.encode(batch))
    files = SortedFiles(work)
    for each in sorter.runs():
        with stopwatch:
            files.append(each)
    with stopwatch:
        files.finish()


def _savepoint(work: Path, keys: int, stopwatch: _Stopwatch) -> None:
    rows = list(_rows(keys))
    with stopwatch:
        _write(work, rows)


def _read(work: Path, keys: int, stopwatch: _Stopwatch) -> None:
    location = _write(work, _rows(keys))
    with stopwatch, StateReader.open(location, scratch=work) as reader:
        found = sum(batch.num_rows for batch in reader.table("counts", COUNT.name).batches())
    _check(found, keys)


def _parquet(work: Path, keys: int, stopwatch: _Stopwatch) -> None:
    with parquet.ParquetWriter(work / "rows.parquet", _ROWS) as writer:
        for batch in _rows(keys):
            writer.write_batch(batch)
    with stopwatch:
        found = sum(batch.num_rows for batch in parquet.ParquetFile(work / "rows.parquet").iter_batches())
    _check(found, keys)


def _one_key(work: Path, keys: int) -> Mapping[str, float]:
    """Reads single keys in the control plane's process for reads.

    The first read fetches a shard.
    """
    _write(work, _rows(keys))
    numbers = np.random.default_rng(SEED).integers(keys, size=SINGLE_READS + 1, dtype=np.uint64)
    request = {"store_url": f"file://{work}/store", "job_id": _JOB, "operator": "counts", "wait_s_max": 0.0}
    took_ms, readers = [], KeyReaders()
    for key in key_column(numbers).keys.to_pylist():
        started = time.perf_counter()
        answer = readers.ask(_JOB, {**request, "key": str(key)})
        took_ms.append((time.perf_counter() - started) * 1000)
        _check(len(answer["answer"]["states"][0]["rows"]), 1)
    readers.close()
    first_ms, *others_ms = took_ms
    return {"first_ms": first_ms, "p50_ms": np.quantile(others_ms, 0.5), "p99_ms": np.quantile(others_ms, 0.99)}


def write_savepoint(work: Path, keys: int, *, parallelism: int) -> str:
    """Writes a savepoint with as many keys; returns its location."""
    return _write(work, _rows(keys), parallelism)


def _write(work: Path, rows: Iterable[pa.RecordBatch], parallelism: int = 1) -> str:
    operator = NewOperator("counts", KEY, [NewState(COUNT, rows)])
    place = f"file://{work}/store/{_JOB}/savepoints/counts"
    return write(place, [operator], max_parallelism=MAX_PARALLELISM, parallelism=parallelism, scratch=work)


def _rows(keys: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, keys, BATCH_KEYS):
        column = key_column(np.arange(first, min(first + BATCH_KEYS, keys), dtype=np.uint64))
        yield pa.RecordBatch.from_arrays([column.keys, column.keys], schema=_ROWS)


def _check(found: int, keys: int) -> None:
    if found != keys:
        raise ValueError(f"{found:,} rows were read instead of {keys:,}")

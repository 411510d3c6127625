"""The input files of the deduplication benchmark, and their right output."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DUPLICATE_SHARE = 0.1
FIRST_EVENT_MS = 1_700_000_000_000
FILES_PER_BATCH = 2
SEED = 1


class WrongOutputError(AssertionError):
    """A contender's output is wrong; its measurements do not count.

    The right output is the input without its duplicates.
    """


@dataclass(frozen=True, slots=True)
class DedupInput:
    """A folder of Parquet files.

    The columns are `id` (canonical UUID string), `ts_ms` (event time, rising) and `payload` (20 characters).

    Attributes:
        folder: Holds FILES_PER_BATCH files per batch, each with the same number of events.
        events: The number of rows.
        batches: The number of batches in micro-batch engines.
        distinct: The number of ids.
        fingerprint: SHA-256 of all distinct ids in order.
    """

    folder: str
    events: int
    batches: int
    distinct: int
    fingerprint: str


def dedup_input(root: Path, events: int, batches: int, *, only_ends: bool = False) -> DedupInput:
    """Creates the files, or reuses existing ones.

    Nine in ten ids are new; a repeated id was seen at any earlier time.

    Args:
        root: The parent folder.
        events: The number of rows.
        batches: The number of batches.
        only_ends: Only the first and the last batch have rows; the files between them are empty.
    """
    folder = root / f"dedup-{events}-{batches}-{SEED}{'-ends' if only_ends else ''}"
    facts = folder.with_suffix(".json")
    if facts.exists():
        return DedupInput(**json.loads(facts.read_text(encoding="utf-8")))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ids = _ids(events)
    files = batches * FILES_PER_BATCH
    edges = np.linspace(0, events, files + 1).astype(np.int64)
    if only_ends:
        edges = np.repeat([0, events // 2, events], [1, files - 1, 1])
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        rows = range(int(first), int(end))
        table = pa.table(
            {
                "id": pa.array([ids[row] for row in rows]),
                "ts_ms": pa.array(np.arange(first, end, dtype=np.int64) + FIRST_EVENT_MS),
                "payload": pa.array([f"payload {row % 1000:012d}" for row in rows]),
            }
        )
        write_durably(table, folder / f"part-{number:05d}.parquet")
    distinct, fingerprint = _fingerprint(np.array(ids, dtype="S36"))
    made = DedupInput(str(folder), events, batches, distinct, fingerprint)
    facts.write_text(json.dumps(asdict(made)), encoding="utf-8")
    return made


def check_output(expected: DedupInput, files: Iterable[Path]) -> None:
    """Checks that the output has every id exactly once.

    Args:
        expected: The input.
        files: The Parquet files that the contender has committed.

    Raises:
        WrongOutputError: An id is missing, doubled or invented.
    """
    paths = [str(path) for path in files]
    column: Any = (
        ds.dataset(paths, format="parquet").to_table(columns=["id"])["id"]
        if paths
        else pa.chunked_array([[]], pa.string())
    )
    ids = np.array(column.to_numpy(), dtype="S36")
    distinct, fingerprint = _fingerprint(ids)
    if (len(ids), distinct, fingerprint) != (expected.distinct, expected.distinct, expected.fingerprint):
        raise WrongOutputError(f"{len(ids)} rows with {distinct} distinct ids came out; {expected.distinct} are right")


def check_rows(answer: Mapping[str, Any], _folder: Path) -> None:
    """Checks the number of rows that a contender counted in its output.

    Raises:
        WrongOutputError: Rows are missing or doubled.
    """
    if answer["output_rows"] != answer["expected_rows"]:
        raise WrongOutputError(f"{answer['output_rows']} rows came out; {answer['expected_rows']} are right")


def _ids(events: int) -> list[str]:
    random = np.random.default_rng(SEED)
    digits = random.bytes(16 * events).hex()
    fresh = (digits[at : at + 32] for at in range(0, 32 * events, 32))
    ids = [f"{i[:8]}-{i[8:12]}-4{i[13:16]}-a{i[17:20]}-{i[20:]}" for i in fresh]
    repeated = np.flatnonzero(random.random(events) < DUPLICATE_SHARE)
    sources = (repeated * random.random(len(repeated))).astype(np.int64)
    for row, source in zip(repeated.tolist(), sources.tolist(), strict=True):
        ids[row] = ids[source]
    return ids


def _fingerprint(ids: np.ndarray[Any, np.dtype[np.bytes_]]) -> tuple[int, str]:
    distinct = np.unique(ids)
    return len(distinct), hashlib.sha256(distinct.tobytes()).hexdigest()


def write_durably(table: pa.Table, path: Path) -> None:
    """Writes a Parquet file durably, so that later measurements are undisturbed."""
    pq.write_table(table, path, use_dictionary=["payload"])
    with path.open("rb") as written:
        os.fsync(written.fileno())

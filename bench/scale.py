"""`./keyscale bench scale`: deduplication's throughput by size of state.

The state is restored from a savepoint.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.dedup_input import FILES_PER_BATCH, FIRST_EVENT_MS, DedupInput, WrongOutputError, write_durably
from bench.measure import Contender, Rounds, measure, run_child
from bench.store.keys import batches_of_keys
from bench.table import Table, count, decimal, mebibytes, times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

TTL_HOURS = 36
EVENTS_PER_DAY = 10_000_000_000
NEW_SHARE = 0.9
OPERATOR_UID = "first-of-key"


@dataclass(frozen=True, slots=True)
class ScaleSizes:
    """The size of the measurement.

    Attributes:
        keys: The numbers of keys in state, one measurement each.
        events: Events that the job then reads.
        batches: Micro-batches of the events.
        rounds: The number of runs of each size.
        cores: The cores of each run.
    """

    keys: Sequence[int]
    events: int
    batches: int
    rounds: int
    cores: int


def run_scale(root: Path, sizes: ScaleSizes, say: Callable[[str], None]) -> list[Table]:
    """Measures each size, and extrapolates to ten billion events per day.

    Missing savepoints are written first.
    """
    savepoints = {keys: filled_savepoint(root, keys, sizes.cores, say) for keys in sizes.keys}
    contenders = [_contender(root, keys, savepoints[keys], sizes) for keys in sizes.keys]
    rounds = measure(contenders, sizes.rounds, root / "work", sizes.cores, say)
    table = Table(
        f"deduplicate by UUID with a TTL of {TTL_HOURS} hours, {sizes.events:,} events on top of the state; "
        f"median of {len(rounds)}",
        ("keys in state", "warm records/s", "of the first", "bytes per key", "restore", "CPU s", "peak memory"),
    )
    first = _name(sizes.keys[0])
    for keys in sizes.keys:
        name = _name(keys)
        table.add(
            name,
            count(rounds.median(name, "warm_rate")),
            times(rounds.ratio(name, first, "warm_rate")),
            decimal(savepoints[keys]["state_bytes"] / keys),
            f"{decimal(rounds.median(name, 'restore_seconds'))} s",
            count(rounds.median(name, "cpu_seconds")),
            mebibytes(rounds.median(name, "memory_peak_bytes")),
        )
    return [table, _on_paper(rounds, sizes, savepoints)]


def _name(keys: int) -> str:
    return f"{keys:,}"


def filled_savepoint(root: Path, keys: int, parallelism: int, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Returns the location and size of a savepoint, written if missing.

    A separate process writes it.
    """
    folder = root / "savepoints" / f"{keys}-{parallelism}"
    facts = folder / "facts.json"
    if not facts.exists():
        say(f"writing a savepoint of {keys:,} keys")
        shutil.rmtree(folder, ignore_errors=True)
        work = root / "work" / f"savepoint-{keys}"
        work.mkdir(parents=True, exist_ok=True)
        options = {
            "target": str(folder),
            "keys": keys,
            "parallelism": parallelism,
            "operator_uid": OPERATOR_UID,
            "ttl_hours": TTL_HOURS,
        }
        run = run_child(Contender(f"savepoint of {keys}", "bench.store.savepoint", options), work, parallelism)
        shutil.rmtree(work)
        facts.write_text(json.dumps(run.answer), encoding="utf-8")
    answer: Mapping[str, Any] = json.loads(facts.read_text(encoding="utf-8"))
    return answer


def _contender(root: Path, keys: int, savepoint: Mapping[str, Any], sizes: ScaleSizes) -> Contender:
    files = _input(root / "inputs", keys, sizes)
    options = {
        "input": files.folder,
        "events": files.events,
        "files_per_batch": FILES_PER_BATCH,
        "cores": sizes.cores,
        "checkpoint_interval_ms": 10_000,
        "form": "batch",
        "restore_from": savepoint["location"],
        "ttl_hours": TTL_HOURS,
    }

    def check(answer: Mapping[str, Any], _folder: Path) -> None:
        if answer["output_rows"] != files.distinct:
            message = f"{answer['output_rows']} rows came out; {files.distinct} are right"
            raise WrongOutputError(message)

    return Contender(_name(keys), "bench.peers.keyscale", options, check=check)


def _input(root: Path, keys: int, sizes: ScaleSizes) -> DedupInput:
    """Returns the input with ids that continue the savepoint's ids.

    Nine in ten are new; the rest are in the savepoint or came before.
    """
    folder = root / f"scale-{keys}-{sizes.events}-{sizes.batches}"
    facts = folder.with_suffix(".json")
    if not facts.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        per_file = math.ceil(sizes.events / (sizes.batches * FILES_PER_BATCH))
        end = keys + sizes.events
        new: set[str] = set()
        for number, column in enumerate(batches_of_keys(keys, end, uuids=True, batch_keys=per_file)):
            times_ms = pa.array(np.arange(len(column), dtype=np.int64) + number * per_file + FIRST_EVENT_MS)
            payload = pa.array([f"payload {row % 1000:012d}" for row in range(len(column))])
            table = pa.table({"id": column.keys, "ts_ms": times_ms, "payload": payload})
            write_durably(table, folder / f"part-{number:05d}.parquet")
            new.update(key for key, is_new in zip(column.keys.to_pylist(), column.beyond(keys), strict=True) if is_new)
        facts.write_text(json.dumps({"distinct": len(new)}), encoding="utf-8")
    distinct = json.loads(facts.read_text(encoding="utf-8"))["distinct"]
    return DedupInput(str(folder), sizes.events, sizes.batches, distinct, fingerprint="")


def _on_paper(rounds: Rounds, sizes: ScaleSizes, savepoints: Mapping[int, Mapping[str, Any]]) -> Table:
    """Extrapolates from the largest measured state, without allowance for peaks."""
    largest = max(sizes.keys)
    events_per_second = EVENTS_PER_DAY / 86_400
    rate_per_core = rounds.median(_name(largest), "warm_rate") / sizes.cores
    keys = EVENTS_PER_DAY * NEW_SHARE * TTL_HOURS / 24
    bytes_per_key = savepoints[largest]["state_bytes"] / largest
    table = Table(
        f"On paper: {EVENTS_PER_DAY:,} events per day, nine in ten new, TTL {TTL_HOURS} hours", ("what", "how much")
    )
    table.add("events per second", count(events_per_second))
    table.add("cores at the measured rate per core", decimal(events_per_second / rate_per_core))
    table.add("keys in state", count(keys))
    table.add("bytes per key, measured", decimal(bytes_per_key))
    table.add("state", f"{count(keys * bytes_per_key / 1e9)} GB")
    table.notes.append(
        f"measured with up to {largest:,} keys in {sizes.cores} subtasks; "
        f"with as many keys per subtask, {count(keys / largest * sizes.cores)} subtasks"
    )
    return table

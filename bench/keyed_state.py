"""`./keyscale bench state`: the state library, rocksdict and the heap.

It also compares the state library with its own goals.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.measure import Contender, Rounds, measure, run_child
from bench.table import Table, count, decimal, mebibytes, percent, times
from keyscale.state.engine.rocksdb_settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MILLION = 1_000_000
MAP = "MapState, record by record"
INSERT = "bench.store.insert"
WINDOW_MILLIONS = 5  # in which a store merges its files several times
SMALL, LARGE = "a small store", "a growing store"
RESCALE = "rescale"


@dataclass(frozen=True, slots=True)
class StateSizes:
    """The size of the measurement.

    Attributes:
        insert_keys: Keys inserted beside the plain loop and the heap.
        large_keys: The number of keys to which Keyscale's store grows; 0 skips that part.
        large_memory_mib: Memory budget of the stores of that part, including the small stores.
        sized_keys: Keys for the bytes on disk.
        records: Records of the per-record measurements.
        memory_mib: Size of the values that one batch reads, writes or replays.
        rescale_keys: The larger of the two rescaled states; the smaller has 1,000,000.
        checkpoint_keys: Keys of which 1 % change between checkpoints.
        merge_keys: Keys of the two shards that are merged.
        rounds: The number of runs. Sizes on disk are measured once; one state is rescaled and checkpointed this often.
        cores: The cores of each run.
    """

    insert_keys: int
    large_keys: int
    large_memory_mib: int
    sized_keys: int
    records: int
    memory_mib: int
    rescale_keys: int
    checkpoint_keys: int
    merge_keys: int
    rounds: int
    cores: int


def run_state(root: Path, sizes: StateSizes, only: Sequence[str], say: Callable[[str], None]) -> Iterator[Table]:
    """Measures each wanted part, one table per part."""
    work = root / "work"
    parts: dict[str, Callable[[Path, StateSizes, Callable[[str], None]], Table]] = {
        "insert": _insert,
        "large": _large,
        "record": _per_record,
        "small": _small,
        "bytes": _bytes,
        "map": _map,
        "memory": _memory,
        "rescale": _rescale,
        "checkpoint": _checkpoint,
        "consolidate": _consolidate,
    }
    chosen = [name for name in parts if (not only or name in only) and (name != "large" or sizes.large_keys)]
    return (parts[name](work, sizes, say) for name in chosen)


def _insert(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    options = {"keys": sizes.insert_keys}
    names = {
        "Keyscale, with its changelog": "keyscale",
        "plain rocksdict loop": "plain",
        "Keyscale on the heap": "heap",
    }
    rounds = _run({name: ("insert", {**options, "engine": engine}) for name, engine in names.items()}, work, sizes, say)
    table = _rates(f"insert_if_absent_many, {sizes.insert_keys:,} 64-bit keys in batches of 100,000", rounds)
    ratio = rounds.ratio("Keyscale, with its changelog", "plain rocksdict loop", "rate")
    table.notes.append(f"over the plain loop: {times(ratio)} (target 2.50x)")
    return table


def _large(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    """Measures a growing store, with a small store before and after.

    The growing store runs once, because it takes minutes, in which the machine's speed drifts. So before and after each
    million keys of a window it is stopped with its merges, and a small store runs.
    """
    last = sizes.large_keys
    windows = [size for size in (10 * MILLION, 40 * MILLION) if size <= last - WINDOW_MILLIONS * MILLION] + [last]
    stops = [window - back * MILLION for window in windows for back in range(WINDOW_MILLIONS, -1, -1)]
    small_end = 3 * MILLION // 2
    ours = {"engine": "keyscale", "budget_bytes": sizes.large_memory_mib * MEBIBYTE}
    small = Contender(SMALL, INSERT, {**ours, "keys": small_end, "windows": [MILLION, small_end]})
    grown = Contender(LARGE, INSERT, {**ours, "keys": sizes.large_keys, "windows": windows, "stops": stops})
    beside: list[Rounds] = []

    def run_small() -> None:
        beside.append(measure([small], 1, work / "small", sizes.cores, say))

    folder = work / "large"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answer = run_child(grown, folder, sizes.cores, run_small).answer
    shutil.rmtree(folder)
    table = Table(
        f"insert_if_absent_many as the state grows, with a memory budget of {sizes.large_memory_mib:,} MiB, over five "
        f"million keys; in turn with small stores (median of {WINDOW_MILLIONS + 1}): the first million, and a million "
        "around 1 million keys in state",
        ("keys in state", "keys/s", "the first million", "share of it", "around 1 million", "share of it"),
    )
    runs = WINDOW_MILLIONS + 1
    for number, window in enumerate(windows):
        meanwhile = Rounds.joined(beside[number * runs : (number + 1) * runs])
        rate = answer[f"rate_near_{window}"]
        first, around = (meanwhile.median(SMALL, f"rate_at_{end}") for end in (MILLION, small_end))
        table.add(
            f"{window:,}", count(rate), count(first), percent(rate / first), count(around), percent(rate / around)
        )
    everywhere = Rounds.joined(beside)
    table.notes.append(f"spread of the small stores' rate: {percent(everywhere.spread(SMALL, f'rate_at_{small_end}'))}")
    table.notes.append("target: at 100 million keys at least 50 % of the rate at 1 million")
    return table


def _per_record(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    options = {"keys": 200_000, "records": sizes.records}
    names = {
        "Keyscale, with its changelog": "keyscale",
        "Keyscale on the heap": "heap",
        "plain rocksdict get and put": "plain",
    }
    rounds = _run(
        {name: ("per_record", {**options, "engine": engine}) for name, engine in names.items()}, work, sizes, say
    )
    table = _rates(f"ValueState.value and update, record by record, {sizes.records:,} records of 200,000 keys", rounds)
    table.notes.append("target: 100,000 per second")
    return table


def _small(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    names = {"store left open": True, "store closed after each batch": False}
    options = {"batches": 100, "records": 100}
    rounds = _run(
        {name: ("small_batch", {**options, "stays_open": stays_open}) for name, stays_open in names.items()},
        work,
        sizes,
        say,
    )
    table = Table(
        "One subtask's batch of 100 records, its changelog included",
        ("store", "ms per batch", "processor ms per batch"),
    )
    for name in names:
        table.add(name, *(decimal(rounds.median(name, figure)) for figure in ("batch_ms", "batch_cpu_ms")))
    return table


def _bytes(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    options = {"keys": sizes.sized_keys, "engine": "keyscale", "ttl": True, "size": True}
    rounds = _run(
        {"64-bit": ("insert", options), "UUID string": ("insert", {**options, "uuids": True})},
        work,
        replace(sizes, rounds=1),  # sizes are the same each time
        say,
    )
    table = Table(
        f"Bytes on disk after compaction, TTL on, {sizes.sized_keys:,} keys inserted",
        ("key", "bytes per key", "reach", "published for a JVM stack"),
    )
    for name, reach, published in (("64-bit", "12", "16.1"), ("UUID string", "26", "38")):
        table.add(name, decimal(rounds.median(name, "bytes_per_key")), reach, published)
    return table


def _map(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    """Measures reads and writes of single map entries.

    Each form writes 60 bytes to 4 KiB per record, enough to fill its write buffers ten times and to merge once.
    """
    keys, records = 20_000, 3 * sizes.records
    options: dict[str, dict[str, Any]] = {
        MAP: {"form": "map", "records": records},
        "MapState, each entry read by itself": {"form": "lone", "records": records},
        "MapState, in batches": {"form": "columns", "records": records},
        "ValueState of a dict": {"form": "dict", "records": records // 25},
        "ValueState of a dict packed by msgspec": {"form": "packed", "records": records // 25},
    }
    rounds = _run({name: ("map_entry", {**each, "keys": keys}) for name, each in options.items()}, work, sizes, say)
    in_memory = {f"{name}, in memory": {**each, "keys": 2000, "heap": True} for name, each in options.items()}
    for each in in_memory.values():
        each["records"] //= 30
    on_heap = _run({name: ("map_entry", each) for name, each in in_memory.items()}, work, sizes, say)
    table = Table(
        f"Read-modify-write of one entry of a map of 100, {keys:,} keys; median of {len(rounds)}",
        ("form", "per second", "spread", "CPU µs per record", "MapState is faster by, wall", "by, CPU"),
    )
    for measured, base in ((rounds, MAP), (on_heap, f"{MAP}, in memory")):
        for name in measured.contenders():
            table.add(
                name,
                count(measured.median(name, "rate")),
                percent(measured.spread(name, "rate")),
                decimal(measured.median(name, "record_cpu_us")),
                times(measured.ratio(base, name, "rate")),
                times(measured.ratio(name, base, "record_cpu_us")),
            )
    table.notes.append(
        "target: MapState 20 times as fast as ValueState of a dict, the changelog, flushes and compactions counted"
    )
    table.notes.append(
        "in memory: our heap backend with 2,000 keys: the cost of reading, changing and encoding without a store"
    )
    return table


def _memory(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    budget = 32 * MEBIBYTE
    values = {"100 B": 100, "10 KiB": 10 << 10, "1 MiB": MEBIBYTE}
    options = {"total_bytes": sizes.memory_mib * MEBIBYTE, "budget_bytes": budget}
    forms = ("write", "read", "columns", "replay")
    cases = {
        f"{form}, {name}": ("value_memory", {**options, "form": form, "value_bytes": size})
        for name, size in values.items()
        for form in forms
    }
    rounds = _run(cases, work, replace(sizes, rounds=1), say)
    table = Table(
        f"Peak memory of one batch over {sizes.memory_mib} MiB of values, with a memory budget of {mebibytes(budget)}",
        ("values of", "written one by one", "read one by one", "read in columns", "replayed"),
    )
    for name in values:
        table.add(name, *(mebibytes(rounds.median(f"{form}, {name}", "peak_bytes")) for form in forms))
    table.notes.append("beyond what the process took before: the whole budget, and copies on their way")
    return table


def _rescale(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    compared = (MILLION, sizes.rescale_keys)
    turns = 5 * sizes.rounds
    options = {"keys": compared, "times": turns}
    once = replace(sizes, rounds=1)  # filling takes minutes, restoring milliseconds
    rounds = _run({RESCALE: ("rescale", options)}, work, once, say)
    table = Table(
        f"Rescale from 2 to 4 on one host; median of {turns}",
        ("state", "size", "manifest to first read, slowest subtask", "all four, in turn", "bytes rewritten"),
    )
    for keys in compared:
        seconds = [rounds.median(RESCALE, f"{figure}_{keys}") for figure in ("first_read_seconds", "all_seconds")]
        table.add(
            f"{keys:,} keys",
            mebibytes(rounds.median(RESCALE, f"state_bytes_{keys}")),
            *(f"{decimal(each * 1000, 0)} ms" for each in seconds),
            count(rounds.median(RESCALE, f"rewritten_bytes_{keys}")),
        )
    table.notes.append(
        f"larger over smaller, in turn: {times(rounds.median(RESCALE, 'growth'))} (target: 500 ms and 1.50x)"
    )
    return table


def _checkpoint(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    changes = {"in one batch": 0, "in batches of 9,000, into write buffers": 9000}
    cases = {
        f"{keys:,} keys, {how}": ("checkpoint", {"keys": keys, "batch_keys": batch, "checkpoints": 5 * sizes.rounds})
        for keys in (MILLION, sizes.checkpoint_keys)
        for how, batch in changes.items()
    }
    rounds = _run(cases, work, replace(sizes, rounds=1), say)  # filling takes minutes, a checkpoint milliseconds
    table = Table(
        f"{5 * sizes.rounds} checkpoints, 1 % of the keys changed at random before each",
        ("state", "size", "uploaded", "writers stopped, median", "longest"),
    )
    for name in rounds.contenders():
        table.add(
            name,
            mebibytes(rounds.median(name, "state_bytes")),
            f"{decimal(rounds.median(name, 'uploaded_share') * 100)} %",
            f"{decimal(rounds.median(name, 'stop_seconds_median') * 1000)} ms",
            f"{decimal(rounds.median(name, 'stop_seconds_max') * 1000)} ms",
        )
    table.notes.append("target: 5 % and 50 ms")
    return table


def _consolidate(work: Path, sizes: StateSizes, say: Callable[[str], None]) -> Table:
    name = f"2 shards of {sizes.merge_keys // 2:,} keys"
    rounds = _run({name: ("consolidate", {"keys": sizes.merge_keys})}, work, sizes, say)
    table = Table(
        "Merging shards beside batches that change 10,000 random keys each",
        (
            "state",
            "size",
            "start to take-over",
            "CPU s of it",
            "batch before",
            "batch beside",
            "batch that takes over",
        ),
    )
    figures = ("before_batch_seconds", "beside_batch_seconds", "take_over_seconds")
    table.add(
        name,
        mebibytes(rounds.median(name, "state_bytes")),
        f"{decimal(rounds.median(name, 'merge_seconds'))} s",
        decimal(rounds.median(name, "merge_cpu_seconds")),
        *(f"{decimal(rounds.median(name, figure) * 1000, 0)} ms" for figure in figures),
    )
    return table


def _rates(title: str, rounds: Rounds) -> Table:
    table = Table(f"{title}; median of {len(rounds)}", ("contender", "per second", "spread", "CPU s", "peak memory"))
    for name in rounds.contenders():
        table.add(
            name,
            count(rounds.median(name, "rate")),
            percent(rounds.spread(name, "rate")),
            decimal(rounds.median(name, "cpu_seconds")),
            mebibytes(rounds.median(name, "memory_peak_bytes")),
        )
    return table


def _run(
    cases: dict[str, tuple[str, dict[str, Any]]], work: Path, sizes: StateSizes, say: Callable[[str], None]
) -> Rounds:
    contenders = [Contender(name, f"bench.store.{module}", options) for name, (module, options) in cases.items()]
    return measure(contenders, sizes.rounds, work, sizes.cores, say)

"""Processing-time timers in a real driver on idle input."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from bench.peers.driver import Driver
from keyscale.vocabulary import DriverState

if TYPE_CHECKING:
    from collections.abc import Mapping

ARTIFACT = Path(__file__).with_name("timers_job.py")
CHECKPOINT_INTERVAL_MS = 10_000
LEAD_SECONDS = 10.0
GIVE_UP_SECONDS = 60.0
POLL_SECONDS = 0.2


class TimersLostError(AssertionError):
    """Some timers have not fired exactly once."""


def run(*, work: str, timers: int, apart_ms: int, cores: int) -> Mapping[str, Any]:
    """Registers all timers with one file of records on otherwise idle input.

    Returns:
        The delay until a timer's row was visible to readers of the sink: `p50_ms`, `p99_ms`, `max_ms`.

    Raises:
        TimersLostError: A row is missing or doubled.
    """
    source, output = Path(work, "input"), Path(work, "output")
    source.mkdir()
    parameters = {"input": str(source), "output": str(output)}
    with Driver(Path(work), ARTIFACT, parameters, cores=cores, checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS) as driver:
        while (heartbeat := driver.heartbeat()) is None or heartbeat.state is not DriverState.RUNNING:
            time.sleep(POLL_SECONDS)
        first_ms = int((time.time() + LEAD_SECONDS) * 1000)
        records = [{"id": number, "due_ms": first_ms + number * apart_ms} for number in range(timers)]
        written = Path(work, "timers.json")
        written.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="ascii")
        written.rename(source / written.name)
        time.sleep(max(0.0, (records[-1]["due_ms"] / 1000) - time.time()))
        late_ms = _late_ms(output, timers)
        driver.cancel()
    p50, p99 = np.percentile(late_ms, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(late_ms.max())}


def _late_ms(output: Path, timers: int) -> np.ndarray[Any, Any]:
    """Returns the delays by id.

    A batch's files are visible once its folder has been renamed into place.
    """
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while True:
        tables = {folder: pq.ParquetDataset(list(folder.glob("part-*"))).read() for folder in output.glob("batch=*")}
        rows = sorted(
            (number, folder.stat().st_ctime * 1000 - due)
            for folder, table in tables.items()
            for number, due in zip(table["id"].to_pylist(), table["due_ms"].to_pylist(), strict=True)
        )
        if [number for number, _ in rows] == list(range(timers)):
            return np.array([late for _, late in rows])
        if time.monotonic() > give_up:
            message = f"{len(rows)} timers have fired of {timers}"
            raise TimersLostError(message)
        time.sleep(POLL_SECONDS)

"""A control plane of a benchmark, with the history of many jobs."""

from __future__ import annotations

from hashlib import md5
from typing import TYPE_CHECKING

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from bench.api_rows import fill
from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.clock import now_ms
from keyscale.db.embedded import EmbeddedPostgres
from keyscale.db.repositories import series
from keyscale.db.repositories.series import RETENTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path


def started(home: Path, settings: Mapping[str, str], running: ExitStack) -> ControlPlaneProcess:
    """Starts a control plane, which `running` ends."""
    process = ControlPlaneProcess(home, free_port(), {"KEYSCALE_SPARE_DRIVERS": "0", **settings})
    process.start()
    running.callback(process.stop)
    return process


def cpu_seconds(members: Sequence[ControlPlaneProcess]) -> dict[str, float]:
    """Returns the CPU seconds so far, by side.

    Ended processes count.
    """
    server = psutil.Process(int((members[0].home / "postgres" / "data" / "postmaster.pid").read_text().split()[0]))
    sides = {
        "the control planes": [psutil.Process(member.pid) for member in members],
        "PostgreSQL": [server, *server.children(recursive=True)],
        "the sender": [psutil.Process()],
    }
    return {name: sum(sum(each.cpu_times()[:4]) for each in processes) for name, processes in sides.items()}


def fill_database(home: Path, *, jobs: int, checkpoints: int) -> None:
    """Writes jobs with a history into a control plane's embedded database.

    Args:
        home: Its home.
        jobs: The number of jobs, called `job-1` and so on. The first also has an hour of series.
        checkpoints: The number of checkpoints per job.
    """
    url = EmbeddedPostgres(home / "postgres").url
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))  # without time limits
    with Session(engine) as session, session.begin():
        fill(session, jobs=jobs, checkpoints=checkpoints, subtasks=2, attempts=10, events=20, now_ms=now_ms())
        _fill_series(session, md5(b"job1", usedforsecurity=False).hexdigest())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


def _fill_series(session: Session, job_id: str) -> None:
    now = now_ms()
    for step in range(RETENTIONS[0].slots):
        values = {
            "input_records": 10_000 * step,
            "output_records": 9_000 * step,
            "late_records": step,
            "dead_letters": step // 10,
            "lag_ms": 1000 + step % 7,
            "lag_records": step % 70,
            "watermark_ms": now - 1000,
            "state_size": 1_000_000 + step,
            "checkpoint_duration_ms": 200 + step % 50,
            "checkpointed_size": 1000 + step,
            "processed_rate": 1500.0 + step % 100,
            "busy_ratio": 0.5,
            "batch_duration_ms": 300.0 + step % 20,
        }
        series.store(session, job_id, now - (RETENTIONS[0].slots - 1 - step) * RETENTIONS[0].step_ms, values)

"""Rescales of Flink's deduplication, by a savepoint or by its adaptive scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.flink_session import FlinkSession
from bench.peers.rescaled_peer import rescale_peer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def run(
    *, work: str, keys: int, parallelisms: Sequence[int], adaptive: bool, python: str, jars: Sequence[str]
) -> Mapping[str, Any]:
    """Rescales a job of a session; see `rescale_peer`.

    Args:
        work: A fresh folder.
        keys: The number of keys in the state before the first rescale.
        parallelisms: The parallelisms, in order.
        adaptive: Whether the adaptive scheduler rescales the job; else it is stopped with a savepoint.
        python: The interpreter of the Flink environment.
        jars: Flink's Parquet format.
    """
    folder = Path(work)
    scheduler = "Adaptive" if adaptive else "Default"
    slots = max(parallelisms)
    with FlinkSession(folder, python, jars, slots=slots, task_managers=1, scheduler=scheduler) as session:
        return rescale_peer(_Peer(session, adaptive=adaptive), session.source, keys, parallelisms)


class _Peer:
    def __init__(self, session: FlinkSession, *, adaptive: bool) -> None:
        self._session = session
        self._adaptive = adaptive
        self._job = ""

    def start(self, parallelism: int) -> None:
        self._job = self._session.submit(parallelism)

    def rescale(self, parallelism: int) -> None:
        if self._adaptive:
            self._session.change_parallelism(self._job, parallelism)
        else:
            self._job = self._session.submit(parallelism, self._session.stop_with_savepoint(self._job))

    def commits(self) -> int:
        return self._session.commits()

    def files(self) -> Iterable[Path]:
        return self._session.files()

    def state_bytes(self) -> int:
        return self._session.state_bytes(self._job)

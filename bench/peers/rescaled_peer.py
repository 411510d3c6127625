"""Rescales of a peer's deduplication while records come in."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Protocol

from bench.peers.commits import Commits, longest_pause, ordinary_gap_ms
from bench.peers.paced_job import COMMITS_BEFORE, NEW_PER_FILE, PacedInput, fill, rows_in, wait_for_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class RescaledPeer(Protocol):
    """Runs a job of a peer and rescales it.

    It reads the folder `input` and writes the folder `output`.
    """

    def start(self, parallelism: int) -> None:
        """Starts the job."""

    def rescale(self, parallelism: int) -> None:
        """Changes the parallelism of the running job."""

    def commits(self) -> int:
        """Returns the number of commits until now."""

    def files(self) -> Iterable[Path]:
        """Returns the output files that readers see."""

    def state_bytes(self) -> int:
        """Returns the size of the job's state."""


def rescale_peer(peer: RescaledPeer, source: Path, keys: int, parallelisms: Sequence[int]) -> Mapping[str, Any]:
    """Starts a job at the last parallelism, and rescales it to each.

    Args:
        peer: The job.
        source: The folder of its input.
        keys: UUIDs number 0 to `keys` are in the state before the first rescale.
        parallelisms: The parallelisms, in order.

    Returns:
        Medians over the rescales: `pause_ms`, from the last commit before to the first one after; `done_ms`, from the
        request to the first commit after. Also `gap_ms`, the time between ordinary commits, `state_bytes`, and
        `output_rows` with the right number, `expected_rows`.
    """
    fill(source, keys)
    with Commits(peer.commits) as commits, PacedInput(source, keys) as records:
        peer.start(parallelisms[-1])
        wait_for_rows(peer.files, keys)
        commits.wait_for(COMMITS_BEFORE)
        gap_ms = ordinary_gap_ms(commits.times[-COMMITS_BEFORE:])
        pauses = []
        for parallelism in parallelisms:
            request = time.monotonic()
            peer.rescale(parallelism)
            commits.wait_for(COMMITS_BEFORE)
            pauses.append(longest_pause(commits.times, request))
        expected = keys + records.end() * NEW_PER_FILE
        wait_for_rows(peer.files, expected)
        return {
            "pause_ms": statistics.median(pause.pause_ms for pause in pauses),
            "done_ms": statistics.median(pause.done_ms for pause in pauses),
            "gap_ms": gap_ms,
            "state_bytes": peer.state_bytes(),
            "output_rows": rows_in(peer.files()),
            "expected_rows": expected,
        }

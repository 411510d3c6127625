"""Plays histories by seed: `python -m tests.simulation --seed 7`, or `--seeds 0-99`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.environment import play
from tests.simulation.generator import data_plane_history
from tests.simulation.history import History
from tests.simulation.shortening import shortened
from tests.simulation.trace import Trace

SHORTENED_MAX = 3
"""So many histories of a run are shortened: each takes as long as some dozens."""


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="plays one history, and prints its trace")
    parser.add_argument("--seeds", help="plays the histories of a range of seeds, as FIRST-LAST")
    parser.add_argument("--history", type=Path, help="plays the history in a file, and prints its trace")
    parser.add_argument("--logs", action="store_true", help="prints the product's log, too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.logs else logging.CRITICAL, format="%(name)s %(message)s")
    if options.seed is not None:
        return play_one(data_plane_history(options.seed))
    if options.history is not None:
        return play_one(History.read(options.history.read_text()))
    first, _, last = options.seeds.partition("-")
    return play_many(range(int(first), int(last or first) + 1))


def play_one(history: History) -> int:
    """Plays a history, and prints all of it."""
    outcome = play(history, Trace(prints=True))
    for finding in outcome.findings:
        say(f"FINDING {finding}")
    say(f"{outcome.seconds:.0f} virtual seconds, {outcome.switches} switches, {outcome.rows} rows")
    say(f"digest {outcome.digest}")
    return bool(outcome.findings)


def show_shortened(seed: int) -> None:
    """Prints the events of a history that fails, without those that do not matter."""
    short = shortened(data_plane_history(seed), lambda history: bool(play(history).findings))
    say(f"seed {seed} fails with these {len(short.events)} events; play them with --history FILE:")
    for event in short.events:
        say(f"    {event}")
    say(short.text())


def play_many(seeds: range) -> int:
    """Plays the histories of many seeds; prints those that failed, and the counts of rare states."""
    began, reached, failed = time.perf_counter(), Counter[str](), list[int]()
    for seed in seeds:
        try:
            outcome = play(data_plane_history(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        reached += outcome.reached
        if outcome.findings:
            failed.append(seed)
            say(f"seed {seed}: {outcome.findings[:3]}")
            if len(failed) <= SHORTENED_MAX:
                show_shortened(seed)
    seconds = time.perf_counter() - began
    say(f"{len(seeds)} histories in {seconds:.1f} s ({len(seeds) / seconds:.1f} per second); failed: {failed}")
    for state, times in reached.most_common():
        say(f"{times:8} {state}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Plays histories by seed: `python -m tests.simulation --seed 7`, or `--seeds 0-99`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.control_plane_guards import CONTROL_PLANE
from tests.simulation.controlled import play_controlled
from tests.simulation.crash_points import KINDS, VICTIMS, crashes, steps_of
from tests.simulation.database import own_database
from tests.simulation.environment import play
from tests.simulation.generator import control_plane_history, data_plane_history, live_history
from tests.simulation.guards import DATA_PLANE
from tests.simulation.history import History
from tests.simulation.output_guards import OUTPUT
from tests.simulation.rare_states import never_reached
from tests.simulation.shortening import shortened
from tests.simulation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.database import Database
    from tests.simulation.environment import Outcome

RARE_SEEDS_MIN = 2000
"""A run of so many histories must reach every rare state."""
SHORTENED_MAX = 3
"""So many histories of a run are shortened: each takes as long as some dozens."""


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    played = parser.add_mutually_exclusive_group(required=True)
    played.add_argument("--seed", type=int, help="plays one history, and prints its trace")
    played.add_argument("--seeds", help="plays the histories of a range of seeds, as FIRST-LAST")
    played.add_argument(
        "--crash-points", choices=[*KINDS, "all"], help="crashes at each durable step of a kind of work"
    )
    played.add_argument("--guards", nargs="?", const="", help="switches off each guard whose name has this part")
    played.add_argument("--history", type=Path, help="plays the history in a file, and prints its trace")
    parser.add_argument("--victims", choices=VICTIMS, default="itself", help="what is lost at the step")
    parser.add_argument("--stride", type=int, default=1, help="every n-th step only")
    parser.add_argument("--as-they-are", action="store_true", help="shows no shortened histories")
    parser.add_argument("--control-plane", action="store_true", help="with the real control plane, on PostgreSQL")
    parser.add_argument("--live", action="store_true", help="with live rescales among the events")
    parser.add_argument("--logs", action="store_true", help="prints the product's log, too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.logs else logging.CRITICAL, format="%(name)s %(message)s")
    generate = control_plane_history if options.control_plane else live_history if options.live else data_plane_history
    with ExitStack() as stack:
        players = Players(stack)
        if options.seed is not None:
            return play_one(players, generate(options.seed))
        if options.crash_points is not None:
            kinds = list(KINDS) if options.crash_points == "all" else [options.crash_points]
            failed = [crash_at_each(players, kind, options.victims, options.stride) for kind in kinds]
            return int(any(failed))
        if options.guards is not None:
            return switch_off(players, options.guards)
        if options.history is not None:
            return play_one(players, History.read(options.history.read_text()))
        first, _, last = options.seeds.partition("-")
        shown = 0 if options.as_they_are else SHORTENED_MAX
        return play_many(players, generate, range(int(first), int(last or first) + 1), shown)


class Players:
    """Plays histories of both kinds; starts PostgreSQL for the first that needs it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._database: Database | None = None

    def play(self, history: History, trace: Trace | None = None) -> Outcome:
        """Plays a history."""
        if not history.has_control_plane:
            return play(history, trace)
        return play_controlled(history, self.database, trace)

    @property
    def database(self) -> Database:
        if self._database is None:
            self._database = self._stack.enter_context(own_database())
        return self._database


def switch_off(players: Players, part: str) -> int:
    """Switches off one guard after the other; prints within how many seeds each is found."""
    guards = [each for each in (*DATA_PLANE, *OUTPUT) if part in each.name]
    controlled = [each for each in CONTROL_PLANE if part in each.name]
    if not guards and not controlled:
        say(f"no guard has {part!r} in its name")
        return 2
    missed = 0
    for guard in guards:
        began = time.process_time()
        seed = next((seed for seed in range(guard.seeds) if guard.found_by(seed)), None)
        missed += seed is None
        found = "not found" if seed is None else f"seed {seed}"
        say(f"{found:10} {time.process_time() - began:5.1f} s  {guard.name}")
    for each in controlled:
        began = time.process_time()
        is_found = bool(each.findings(players.database, is_off=True))
        missed += not is_found
        say(f"{'found' if is_found else 'not found':10} {time.process_time() - began:5.1f} s  {each.name}")
    return missed


def play_one(players: Players, history: History) -> int:
    """Plays a history, and prints all of it."""
    outcome = players.play(history, Trace(prints=True))
    for finding in outcome.findings:
        say(f"FINDING {finding}")
    say(f"{outcome.seconds:.0f} virtual seconds, {outcome.switches} switches, {outcome.rows} rows")
    say(f"digest {outcome.digest}")
    return bool(outcome.findings)


def crash_at_each(players: Players, kind: str, victims: str, stride: int) -> int:
    """Plays the history of a kind once for each of its durable steps; returns how many failed."""
    began, steps, failed, played = time.perf_counter(), steps_of(kind, players.play), 0, 0
    for step, history in crashes(kind, len(steps), victims, stride=stride):
        outcome = players.play(history)
        played += 1
        if outcome.findings:
            failed += 1
            say(f"{kind}: with {victims} lost at step {step}, {steps[step]}: {outcome.findings[:2]}")
    say(f"{kind}: {len(steps)} steps, {played} crashes in {time.perf_counter() - began:.0f} s; {failed} failed")
    return failed


def show_shortened(players: Players, history: History) -> None:
    """Prints the events of a history that fails, without those that do not matter."""
    short = shortened(history, lambda each: bool(players.play(each).findings))
    say(f"seed {history.seed} fails with these {len(short.events)} events; play them with --history FILE:")
    for event in short.events:
        say(f"    {event}")
    say(short.text())


def play_many(players: Players, generate: Callable[[int], History], seeds: range, shown: int) -> int:
    """Plays the histories of many seeds; prints those that failed, and the counts of rare states."""
    began, busy, reached, failed = time.perf_counter(), time.process_time(), Counter[str](), list[int]()
    for seed in seeds:
        try:
            outcome = players.play(generate(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        reached += outcome.reached
        if outcome.findings:
            failed.append(seed)
            say(f"seed {seed}: {outcome.findings[:3]}")
            if len(failed) <= shown:
                show_shortened(players, generate(seed))
    seconds = time.perf_counter() - began
    busy = time.process_time() - busy
    say(f"{len(seeds)} histories in {seconds:.1f} s, {busy / len(seeds):.2f} s of a processor each; failed: {failed}")
    for state, times in reached.most_common():
        say(f"{times:8} {state}")
    tame = never_reached(reached, has_control_plane=generate is control_plane_history)
    for state in tame:
        say(f"       0 {state}")
    return bool(failed) or (bool(tame) and len(seeds) >= RARE_SEEDS_MIN)


if __name__ == "__main__":
    sys.exit(main())

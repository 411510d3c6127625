"""Repeated, paired measurements in separate processes.

A round runs every contender once, in turn, on the same input. Figures are medians over rounds, and a ratio is the
median of the ratios within each round: a disturbance of minutes affects both sides of a ratio.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.process_tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LIMIT_SECONDS = 1800.0
_POLL_SECONDS = 0.02
CHECKOUT = Path(__file__).resolve().parent.parent


class ContenderFailedError(RuntimeError):
    """A measured process ended without an answer; its log has the reason."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison, run in a fresh process.

    It is a module with a `run(**options)` function.

    Attributes:
        name: Its name in tables.
        module: The module with the function.
        options: Passed to the function, with `work` (a fresh folder) added.
        python: The interpreter, for peers that need a separate environment.
        python_path: A folder to import from beside the checkout.
        check: Called with the answer and the work folder; raises if the answer must not count.
        limit_seconds: A longer run has failed.
    """

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: Path = Path(sys.executable)
    python_path: str | None = None
    check: Callable[[Mapping[str, Any], Path], None] | None = None
    limit_seconds: float = LIMIT_SECONDS


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a contender: its own measurements, and its processes' usage.

    Attributes:
        answer: The result of the contender's function.
        seconds: Wall time of the whole process, start-up included.
        cpu_seconds: CPU time of the process tree, start-up included.
        memory_peak_bytes: Largest proportional set size of the process tree.
    """

    answer: Mapping[str, Any]
    seconds: float
    cpu_seconds: float
    memory_peak_bytes: int

    def figure(self, name: str) -> float:
        """Returns a measurement by name, or NaN.

        It belongs to the answer or to the process tree.
        """
        own = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "memory_peak_bytes": self.memory_peak_bytes}
        value = self.answer.get(name, own.get(name))
        return float("nan") if value is None else float(value)


class Rounds:
    """All runs of a benchmark, by round and contender."""

    def __init__(self, rounds: Sequence[Mapping[str, Run]]) -> None:
        self._rounds = rounds

    def __len__(self) -> int:
        return len(self._rounds)

    @classmethod
    def joined(cls, parts: Sequence[Rounds]) -> Rounds:
        """Joins the rounds of several measurements of the same contenders."""
        return cls([runs for part in parts for runs in part._rounds])

    def contenders(self) -> list[str]:
        """Returns the names of all contenders in the given order."""
        return list(self._rounds[0]) if self._rounds else []

    def figures(self, contender: str, figure: str) -> list[float]:
        """Returns a contender's measurement in each round that has it."""
        return [runs[contender].figure(figure) for runs in self._rounds if contender in runs]

    def median(self, contender: str, figure: str) -> float:
        """Returns the median over rounds, or NaN for a missing contender."""
        return median(self.figures(contender, figure))

    def ratio(self, contender: str, other: str, figure: str) -> float:
        """Returns the median ratio of two contenders, paired within each round."""
        return median(
            [
                runs[contender].figure(figure) / runs[other].figure(figure)
                for runs in self._rounds
                if {contender, other} <= runs.keys()
            ]
        )

    def ratio_to_best(self, contender: str, others: Sequence[str], figure: str) -> float:
        """Returns the median ratio to the best other contender per round."""
        ratios = []
        for runs in self._rounds:
            best = max((runs[other].figure(figure) for other in others if other in runs), default=float("nan"))
            if contender in runs:
                ratios.append(runs[contender].figure(figure) / best)
        return median(ratios)

    def spread(self, contender: str, figure: str) -> float:
        """Returns (largest - smallest) / median over rounds, a measure of noise."""
        figures = self.figures(contender, figure)
        return (max(figures) - min(figures)) / median(figures) if figures else float("nan")


def median(figures: Sequence[float]) -> float:
    """Returns the median, or NaN of an empty sequence."""
    return statistics.median(figures) if figures else float("nan")


def measure(contenders: Sequence[Contender], rounds: int, work: Path, cores: int, say: Callable[[str], None]) -> Rounds:
    """Runs every contender once per round, in turn.

    Args:
        contenders: In the order of their runs. Each round starts one further along, so that a contender does not always
            follow the same one.
        rounds: The number of rounds.
        work: Folder for the contenders' output, which is deleted after each run.
        cores: The number of cores for the processes.
        say: Called with progress.

    Raises:
        ContenderFailedError: A process failed.
    """
    finished: list[dict[str, Run]] = []
    for number in range(rounds if contenders else 0):
        runs: dict[str, Run] = {}
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            folder = work / f"{number}-{_slug(contender.name)}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            run = run_child(contender, folder, cores)
            if contender.check is not None:
                contender.check(run.answer, folder)
            runs[contender.name] = run
            say(f"round {number + 1}/{rounds}  {contender.name}: {run.seconds:.1f} s in all  {_brief(run.answer)}")
            shutil.rmtree(folder)
        finished.append(runs)
    return Rounds(finished)


def run_child(contender: Contender, folder: Path, cores: int, when_stopped: Callable[[], None] | None = None) -> Run:
    """Runs one contender in a process, pinned to the first `cores` cores.

    Earlier writes are synced first, so that this run does not pay for them.

    Args:
        contender: The contender.
        folder: Its folder.
        cores: The number of its cores.
        when_stopped: Called each time that the contender stops itself (SIGSTOP), with all threads, before it continues:
            so other contenders are measured in between.

    Raises:
        ContenderFailedError: The process failed.
    """
    os.sync()
    log, result = folder / "log.txt", folder / "result.json"
    options = json.dumps({**contender.options, "work": str(folder)})
    command = [str(contender.python), "-m", "bench.child", contender.module, str(result), str(cores), options]
    path = [str(CHECKOUT / "src"), str(CHECKOUT), *([contender.python_path] if contender.python_path else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own module, with options as one JSON argument
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
        )
        tree = ProcessTree(process.pid)
        tree.start()
        try:
            if when_stopped is not None:
                _attend(process, when_stopped, contender.limit_seconds)
            code = process.wait(contender.limit_seconds)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            usage = tree.end()
            process.wait()
    seconds = time.perf_counter() - started
    if code != 0 or not result.exists():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        raise ContenderFailedError(f"{contender.name} ended with {code}; the end of {log}:\n{tail}")
    return Run(json.loads(result.read_text(encoding="utf-8")), seconds, usage.cpu_seconds, usage.memory_peak_bytes)


def _attend(process: subprocess.Popen[bytes], when_stopped: Callable[[], None], limit_seconds: float) -> None:
    """Waits until the process has ended, without reaping it."""
    deadline = time.monotonic() + limit_seconds
    while True:
        # Not reaped: Popen does that.
        state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT | os.WNOHANG)
        if state is not None and state.si_code != os.CLD_STOPPED:
            return
        if state is not None:
            when_stopped()
            process.send_signal(signal.SIGCONT)
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, limit_seconds)
        time.sleep(_POLL_SECONDS)


def _slug(name: str) -> str:
    """Returns a name for a folder that every program accepts.

    Spark reads commas as separators of folders.
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _brief(answer: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {value:,.6g}" for name, value in answer.items() if isinstance(value, int | float))

"""A child process that is held at a sync point and lost there."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
import sys
from multiprocessing.forkserver import _forkserver
from multiprocessing.resource_tracker import _resource_tracker
from typing import TYPE_CHECKING

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The children are forks of one process that has imported their modules, which takes longer than what most children do.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.crash.consolidation_child", "tests.crash.state_child"])
atexit.register(_resource_tracker._stop)  # else the reaper finds these two, a moment before they end by themselves
atexit.register(_forkserver._stop)


class lost_child:  # noqa: N801 - reads as what it is
    """A module of ours as a child that is held at a step and lost there; a stopped one goes on when the block ends."""

    def __init__(
        self, module: str, arguments: Sequence[object], directory: Path, step: str, sent: signal.Signals
    ) -> None:
        barrier = directory / "barrier"
        barrier.mkdir()
        name = step.partition("@")[0]
        self._output = directory / "output"
        variables = {FAILPOINT: step, FAILPOINT_DIRECTORY: str(barrier)}
        self._process = CHILDREN.Process(
            target=run_child, args=(module, [*map(str, arguments)], variables, str(self._output))
        )
        self._process.start()
        wait_until(lambda: self._at(barrier, name), what=f"the child to reach {step}")
        self._send(sent)
        (barrier / f"{name}.go").touch()
        self._stopped = sent is signal.SIGSTOP
        if not self._stopped:
            self._process.join()

    def _at(self, barrier: Path, name: str) -> bool:
        if self._process.exitcode is not None:
            raise AssertionError(self._output.read_text())
        return (barrier / f"{name}.{self._process.pid}").exists()

    def _send(self, sent: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, sent)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._stopped:
            self._send(signal.SIGCONT)
        self._process.join(60)
        assert self._process.exitcode is not None, "the child goes on for ever"


def run_child(module: str, arguments: list[str], variables: dict[str, str], output: str) -> None:
    """Runs a module's `main` with what it writes in a file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.environ.update(variables)
    importlib.import_module(module).main(*arguments)

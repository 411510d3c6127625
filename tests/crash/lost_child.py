"""A child process that is held at a sync point and lost there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from keyscale.installation import IMPORT_PATH
from keyscale.state.syncpoint import SYNC_DIRECTORY, SYNC_POINT
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class lost_child:  # noqa: N801 - reads as what it is
    """A module of ours as a child that is held at a step and lost there; a stopped one goes on when the block ends."""

    def __init__(
        self, module: str, arguments: Sequence[object], directory: Path, step: str, sent: signal.Signals
    ) -> None:
        barrier = directory / "barrier"
        barrier.mkdir()
        name = step.partition("@")[0]
        environment = {
            **os.environ,
            SYNC_POINT: step,
            SYNC_DIRECTORY: str(barrier),
            "PYTHONPATH": os.pathsep.join((str(IMPORT_PATH), str(ROOT))),
        }
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        wait_until(lambda: self._at(barrier, name), what=f"the child to reach {step}")
        self._process.send_signal(sent)
        (barrier / f"{name}.go").touch()
        self._stopped = sent is signal.SIGSTOP
        if not self._stopped:
            self._process.wait()

    def _at(self, barrier: Path, name: str) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(self._process.communicate()[0])
        return (barrier / f"{name}.{self._process.pid}").exists()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._stopped:
            self._process.send_signal(signal.SIGCONT)
        self._process.communicate(timeout=60)

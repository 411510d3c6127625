"""The wait of a spare driver for its run."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from ...protocol.spare import ASSIGNMENT_SOCKET, READY, TAKEN

if TYPE_CHECKING:
    from pathlib import Path

    from ..preparation.warm_up import WarmUp

logger = logging.getLogger(__name__)


class SpareWait:
    """A connection to the spare's supervisor, which gives the driver its run.

    It is opened as soon as the driver starts, so that the supervisor sees a driver that ends.

    Args:
        directory: The spare's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        # The path of a socket must be short, and a JVM may have changed the working directory.
        descriptor = os.open(directory, os.O_PATH)
        try:
            self._connection.connect(f"/proc/self/fd/{descriptor}/{ASSIGNMENT_SOCKET}")
        finally:
            os.close(descriptor)
        self._began = time.monotonic()

    def variables(self, warm_up: WarmUp) -> dict[str, str] | None:
        """Waits for the variables of the driver's run, and warms up meanwhile.

        Returns None if the supervisor has ended: the driver is to end, too.
        """
        warm_up.start()
        threading.Thread(target=self._tell_ready, args=(warm_up,), name="spare-ready", daemon=True).start()
        with self._connection, self._connection.makefile("rb") as messages:
            line = messages.readline()
            if not line.endswith(b"\n"):
                return None
            variables: dict[str, str] = json.loads(line)
            self._connection.sendall(TAKEN)
        logger.info("the spare driver has its run after %.1f s", time.monotonic() - self._began)
        warm_up.finish()
        return variables

    def _tell_ready(self, warm_up: WarmUp) -> None:
        warm_up.wait()
        try:
            self._connection.sendall(READY)
        except OSError:  # the run came first
            return
        logger.info("the spare driver waits for a run")

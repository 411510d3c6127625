"""A connection to PostgreSQL that gives up on an unresponsive server.

PostgreSQL's own limits help only while PostgreSQL runs: a server that is stopped by a signal, or on a hanging disk,
keeps its clients waiting, and the kernel answers their keepalives.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.errors import _WaitTimeout

if TYPE_CHECKING:
    from psycopg.abc import PQGen

Result = TypeVar("Result")

ANSWER_TIMEOUT_S = 10.0
_WAKE_S = 0.1
_REFUSE_S = 1.0


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes too long.

    Attributes:
        answer_timeout_s: The longest wait for the answer to a statement; None: no limit.
    """

    answer_timeout_s: float | None = ANSWER_TIMEOUT_S

    def wait(self, gen: PQGen[Result], interval: float = _WAKE_S, timeout: float | None = None) -> Result:
        """Waits for the server, as psycopg does.

        Raises:
            psycopg.OperationalError: The server took too long; the connection is closed.
        """
        try:
            return super().wait(gen, interval, timeout if timeout is not None else self.answer_timeout_s)
        except _WaitTimeout:
            self.pgconn.finish()  # the answer may still come, and must not be taken for another statement's
            raise psycopg.OperationalError("PostgreSQL did not answer in time") from None

    def is_lost(self) -> bool:
        """Returns whether PostgreSQL has ended the idle connection, without a request.

        A server that ends an idle connection announces it, and sends nothing else.
        """
        if self.closed:
            return True
        socket = select.poll()
        socket.register(self.fileno(), select.POLLIN)
        return bool(socket.poll(0))


class Connector:
    """Opens connections, and refuses to for a moment after a failure.

    Threads then do not queue behind it.
    """

    def __init__(self) -> None:
        self._refuses_until_s = float("-inf")

    def connect(self, *arguments: Any, **parameters: Any) -> LimitedConnection:
        """Opens a connection, with the arguments of `psycopg.connect`.

        Raises:
            psycopg.OperationalError: The server does not answer.
        """
        if time.monotonic() < self._refuses_until_s:
            raise psycopg.OperationalError("PostgreSQL did not answer a moment ago")
        try:
            return LimitedConnection.connect(*arguments, **parameters)
        except psycopg.OperationalError:
            self._refuses_until_s = time.monotonic() + _REFUSE_S
            raise

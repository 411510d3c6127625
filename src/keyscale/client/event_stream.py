"""The lines of a stream of server-sent events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

RECONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """A message of a stream."""

    name: str
    data: Any


class EventReader:
    """Reads messages from lines.

    Attributes:
        reconnect_s: How long to wait before the stream is opened again, as the server says it.
    """

    def __init__(self) -> None:
        self.reconnect_s = RECONNECT_S
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> ServerEvent | None:
        """Takes a line; returns the message that it ends, if any."""
        if not line:
            return self._ended()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "retry" and value.isdigit():
            self.reconnect_s = int(value) / 1000
        return None

    def _ended(self) -> ServerEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data = "", []
        return ServerEvent(name, json.loads("\n".join(data))) if data else None

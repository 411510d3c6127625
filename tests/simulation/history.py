"""A history: the events that befall a world, as data, so that it can be printed, cut short and played again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens.

    Attributes:
        kind: Its name; the environment has a method of this name.
        after: Virtual seconds since the event before.
        given: What else there is to know.
    """

    kind: str
    after: float = 0.0
    given: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items())
        return f"+{self.after:g} s {self.kind}({given})"


@dataclass(frozen=True, slots=True)
class History:
    """Events in a world of a seed. The seed decides what the events leave to chance, such as how long a message takes.

    Attributes:
        seed: The world's.
        events: In order.
        has_control_plane: Whether the real control plane runs, on PostgreSQL.
    """

    seed: int
    events: tuple[Event, ...]
    has_control_plane: bool = False

    def with_events(self, events: Sequence[Event]) -> History:
        return History(self.seed, tuple(events), self.has_control_plane)

    def text(self) -> str:
        """Returns it in a form that `read` reads."""
        return json.dumps(
            {
                "seed": self.seed,
                "control_plane": self.has_control_plane,
                "events": [[event.kind, event.after, event.given] for event in self.events],
            }
        )

    @classmethod
    def read(cls, text: str) -> History:
        """Returns a history from its text."""
        found = json.loads(text)
        return cls(found["seed"], tuple(Event(*event) for event in found["events"]), found["control_plane"])

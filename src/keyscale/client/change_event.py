"""What a stream of changes reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

LAST_EVENTS = frozenset({"gone", "over"})


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """A message about changed jobs.

    Attributes:
        name: `change`; `gone`: the job was deleted; `over`: the token is no longer valid; `away`: the control plane's
            database does not answer.
        topics: What has changed, such as job, metrics or events.
        job_ids: The changed jobs; None: very many.
        at_ms: When it was sent; None for messages without topics.
    """

    name: str
    topics: tuple[str, ...] = ()
    job_ids: tuple[str, ...] | None = ()
    at_ms: int | None = None

    @classmethod
    def of(cls, name: str, data: dict[str, Any]) -> Self:
        """Returns the message of an event."""
        jobs = data.get("job_ids", ())
        return cls(name, tuple(data.get("topics", ())), None if jobs is None else tuple(jobs), data.get("at_ms"))

    def is_last(self) -> bool:
        """Returns whether the stream ends with the message."""
        return self.name in LAST_EVENTS

"""Idle state retention: how long a key that no record touches keeps its state. Pure; the timers are the caller's."""

from __future__ import annotations

from dataclasses import dataclass

from state.errors import DescriptorError


@dataclass(frozen=True, slots=True)
class IdleStateRetention:
    """State of an idle key is kept for at least `min_ms` and at most `max_ms` after its last record.

    With one timer a key, which the distance between the two keeps from being moved at every record; as Flink's
    `CleanupState` does it.
    """

    min_ms: int
    max_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.min_ms <= self.max_ms:
            message = f"idle state retention needs 0 < min <= max, not {self.min_ms} and {self.max_ms} ms"
            raise DescriptorError(message)

    def timer_ms(self, registered_ms: int | None, now_ms: int) -> int:
        """When the key's timer is to fire, now that a record touches it.

        Args:
            registered_ms: When it is to fire so far; None: there is no timer.
            now_ms: The time of the record.

        Returns:
            `registered_ms` if the timer can stay as it is.
        """
        if registered_ms is None or now_ms + self.min_ms > registered_ms:
            return now_ms + self.max_ms
        return registered_ms

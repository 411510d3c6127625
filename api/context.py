"""What request handlers and the reconciler share: settings, the database, and the way to wake the reconciler."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from api.launcher import Launcher
    from api.settings import Settings
    from api.store_check import StoreCheck


class Wakeup:
    """Lets the reconciler look again at once instead of at its next round."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Returns when rung (also before this call) or when the time is over."""
        self._event.wait(timeout_s)
        self._event.clear()


@dataclass(slots=True)
class ReconcilerPulse:
    """What the reconciler shows of itself, for GET /health.

    Attributes:
        role: `leader`, `standby` (another replica leads) or `down`.
        beat_at_s: Monotonic time of its last round.
    """

    role: str = "down"
    beat_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """One control plane."""

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    launcher: Launcher
    store: StoreCheck
    wakeup: Wakeup = field(default_factory=Wakeup)
    pulse: ReconcilerPulse = field(default_factory=ReconcilerPulse)

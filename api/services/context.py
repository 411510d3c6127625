"""The parts of one control plane, as the use cases share them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..access.in_flight import InFlight
from ..lifecycle.reconciler import ReconcilerPulse, Wakeup

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from ..access.openid import Issuer
    from ..access.rates import Rates
    from ..launching.launcher import Launcher
    from ..launching.program_loading import ProgramLoading
    from ..settings import Settings
    from ..store_check import StoreCheck
    from ..upkeep.announcer import Announcer
    from .news import News
    from .verifier import Verifier


REPORTS_MAX = 64
"""Large reports of drivers that come in at once, one of each job: each is up to 32 MiB."""
UPLOADS_MAX = 8
"""Uploads at once: each has a file on the disk while its sender takes its time."""
UPLOADS_OF_USER_MAX = 2
INSPECTIONS_MAX = 2
"""Uploads that are inspected at once: each may take a gigabyte of memory."""
PLANS_MAX = 8
"""Plans at once. Each holds one of the threads that answer requests for as long as it takes, and others need them."""
PLANS_OF_USER_MAX = 4
SEARCHES_MAX = 2  # each takes a whole core for a part of a second, which other requests then lack
SEARCHES_OF_USER_MAX = 1


@dataclass(frozen=True, slots=True)
class Context:
    """One control plane.

    Its `sessions` are for what writes, and `reads` for what only reads.
    """

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    reads: sessionmaker[Session]
    launcher: Launcher
    store: StoreCheck
    rates: Rates
    announcer: Announcer
    programs: ProgramLoading
    news: News
    verifier: Verifier
    issuer: Issuer | None = None
    wakeup: Wakeup = field(default_factory=Wakeup)
    reports: InFlight = field(default_factory=lambda: InFlight("large reports", REPORTS_MAX, 1))
    report_reading: threading.Lock = field(default_factory=threading.Lock)
    uploads: InFlight = field(default_factory=lambda: InFlight("uploads", UPLOADS_MAX, UPLOADS_OF_USER_MAX))
    inspections: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(INSPECTIONS_MAX))
    plans: InFlight = field(default_factory=lambda: InFlight("plans", PLANS_MAX, PLANS_OF_USER_MAX))
    searches: InFlight = field(default_factory=lambda: InFlight("log searches", SEARCHES_MAX, SEARCHES_OF_USER_MAX))
    pulse: ReconcilerPulse = field(default_factory=ReconcilerPulse)

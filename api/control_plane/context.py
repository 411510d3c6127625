"""The parts of one control plane, as the use cases share them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..access.in_flight import InFlight
from ..lifecycle.reconciler import ReconcilerPulse, Wakeup
from .key_readers import KeyReaders
from .own_metrics import OwnMetrics

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from ..access.openid import Issuer
    from ..access.rates import Rates
    from ..launching.launcher import Launcher
    from ..launching.program_loading import ProgramLoading
    from ..maintenance.announcer import Announcer
    from ..maintenance.verifier import Verifier
    from ..settings import Settings
    from ..store_check import StoreCheck
    from .calls import Calls
    from .change_feed import ChangeFeed


REPORTS_MAX = 64
"""Maximum number of large driver reports in progress, at most one per job: each is up to 32 MiB."""
UPLOADS_MAX = 8
"""Maximum number of concurrent uploads: each holds a file on the disk for as long as its sender takes."""
UPLOADS_OF_USER_MAX = 2
INSPECTIONS_MAX = 2
"""Maximum number of concurrent inspections of uploads: each may take a gigabyte of memory."""
PLANS_MAX = 8
"""Maximum number of concurrent plans. Each holds one of the threads that answer requests."""
PLANS_OF_USER_MAX = 4
CHECKS_MAX = 4
"""Maximum number of concurrent checks of programs. Each holds one of the threads that answer requests."""
CHECKS_OF_USER_MAX = 2
COMPARISONS_MAX = 2
"""Maximum number of concurrent comparisons of checkpoints: each may take 300 MB of memory."""
COMPARISONS_OF_USER_MAX = 1
STATE_READS_MAX = 2
"""Maximum number of concurrent reads of state: each may take a gigabyte of memory, and of the disk."""
STATE_READS_OF_USER_MAX = 1
SEARCHES_MAX = 2  # each takes a whole core for a part of a second
SEARCHES_OF_USER_MAX = 1


@dataclass(frozen=True, slots=True)
class Context:
    """One control plane.

    `sessions` are for writes, `reads` for reads.
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
    change_feed: ChangeFeed
    verifier: Verifier
    calls: Calls
    issuer: Issuer | None = None
    wakeup: Wakeup = field(default_factory=Wakeup)
    reports: InFlight = field(default_factory=lambda: InFlight("large report", "large reports", REPORTS_MAX, 1))
    report_reading: threading.Lock = field(default_factory=threading.Lock)
    uploads: InFlight = field(default_factory=lambda: InFlight("upload", "uploads", UPLOADS_MAX, UPLOADS_OF_USER_MAX))
    inspections: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(INSPECTIONS_MAX))
    plans: InFlight = field(default_factory=lambda: InFlight("plan", "plans", PLANS_MAX, PLANS_OF_USER_MAX))
    checks: InFlight = field(
        default_factory=lambda: InFlight("check of a program", "checks of programs", CHECKS_MAX, CHECKS_OF_USER_MAX)
    )
    recoveries: InFlight = field(default_factory=lambda: InFlight("recovery of jobs", "recoveries of jobs", 1, 1))
    searches: InFlight = field(
        default_factory=lambda: InFlight("log search", "log searches", SEARCHES_MAX, SEARCHES_OF_USER_MAX)
    )
    state_reads: InFlight = field(
        default_factory=lambda: InFlight("read of state", "reads of state", STATE_READS_MAX, STATE_READS_OF_USER_MAX)
    )
    key_readers: KeyReaders = field(default_factory=KeyReaders)
    comparisons: InFlight = field(
        default_factory=lambda: InFlight("comparison", "comparisons", COMPARISONS_MAX, COMPARISONS_OF_USER_MAX)
    )
    pulse: ReconcilerPulse = field(default_factory=ReconcilerPulse)
    metrics: OwnMetrics = field(default_factory=OwnMetrics)

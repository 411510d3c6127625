"""Decides when a policy takes a savepoint, and which it keeps.

Pure.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from keyscale.jobs.protocol.specification import SavepointSettings, known_settings
from keyscale.vocabulary import OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from keyscale.db.models import Checkpoint
    from keyscale.db.repositories.savepoint_policies import Kept, Taking

RETRY_MS = 600_000
"""The wait after a savepoint that has failed, if the interval is not shorter."""


def is_due(job: Taking, at_ms: int) -> bool:
    """Returns whether a running job's policy takes a savepoint now."""
    interval_ms = _settings(job.settings).interval_ms
    if interval_ms is None or job.status is OperationStatus.IN_PROGRESS:
        return False
    wait_ms = min(interval_ms, RETRY_MS) if job.status is OperationStatus.FAILED else interval_ms
    return job.requested_at_ms is None or at_ms - job.requested_at_ms >= wait_ms


def outdated(kept: Iterable[Kept], at_ms: int) -> list[Checkpoint]:
    """Returns the savepoints that their policies no longer keep.

    The newest savepoint stays, and the newest that was verified as intact.

    Args:
        kept: Of each job the newest first.
        at_ms: The present time.
    """
    found = []
    for _, of_job in groupby(kept, key=lambda each: each.savepoint.job_id):
        found += _outdated(list(of_job), at_ms)
    return found


def _outdated(kept: Sequence[Kept], at_ms: int) -> list[Checkpoint]:
    settings = _settings(kept[0].settings)
    intact = next((each.savepoint for each in kept if is_intact(each.savepoint)), None)
    found = []
    for place, each in enumerate(kept):
        age_ms = at_ms - each.savepoint.trigger_timestamp
        is_old = settings.keep_age_ms is not None and age_ms > settings.keep_age_ms
        if place > 0 and each.savepoint is not intact and (is_old or place >= settings.keep_count):
            found.append(each.savepoint)
    return found


def is_intact(savepoint: Checkpoint) -> bool:
    """Returns whether a savepoint was verified, and can be restored."""
    return bool((savepoint.verification or {}).get("restorable"))


def _settings(stored: Mapping[str, Any] | None) -> SavepointSettings:
    return SavepointSettings.model_validate(known_settings(dict(stored or {}), SavepointSettings))

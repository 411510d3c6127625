"""A alarm is found while it lasts, and not a moment that passes by itself."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.health.faults import FAULT_REPORT, faults_of
from keyscale.api.metrics.scrape import health_facts
from keyscale.api.notifications import job_alarms
from keyscale.api.notifications.job_alarms import alarms_of, can_have_ended
from keyscale.db.repositories.scrapes import ObservedJob, Snapshot
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.vocabulary import AttemptStage, DesiredState, JobStatus, NotificationKind

NOW_MS = 10_000_000
MINUTE_MS = 60_000


def job(report: dict[str, Any] | None = None, **facts: Any) -> ObservedJob:
    """A job that runs well, but for what is given."""
    known = ObservedJob(
        id="j1",
        name="orders",
        status=JobStatus.RUNNING,
        desired=DesiredState.RUNNING,
        restarts=0,
        checkpoints={"interval_ms": 10_000, "timeout_ms": 600_000},
        stage=AttemptStage.ACTIVE,
        driver_state="RUNNING",
        running_at_ms=NOW_MS - 60 * MINUTE_MS,
        totals_before=None,
        heartbeat_at_ms=NOW_MS - 1000,
        metrics={} if report is None else report,
        completed=saved(1),
        failed=None,
        downtime_ms=None,
        failure=None,
        last_commit_at_ms=NOW_MS - 1000,
    )
    return known._replace(**facts)


def saved(minutes_ago: int) -> Snapshot:
    return Snapshot(7, NOW_MS - minutes_ago * MINUTE_MS, 100, 10, 10)


def failed(*minutes_ago: int) -> dict[str, Any]:
    return {"failures": {"times_ms": [NOW_MS - each * MINUTE_MS for each in minutes_ago]}}


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (job(), set()),
        (job({"store_away_since_ms": 1}), {"STORE_AWAY"}),
        (job({"store_away_since_ms": 1}, stage=AttemptStage.ENDED), set()),
        (job({"lost_records_since_ms": 1, "lost_records": 3}), {"RECORDS_LOST"}),
        (job(failed(9, 5, 1)), {"RESTARTING_IN_A_LOOP"}),
        (job(failed(90, 5, 1)), set()),
        (job(failed(9, 5, 1), status=JobStatus.RESTARTING, driver_state="STANDBY"), {"RESTARTING_IN_A_LOOP"}),
        (job(failed(9, 5, 1), status=JobStatus.FAILED), set()),
        (job(failed(9, 5, 1), desired=DesiredState.STOPPED), set()),
        (job(completed=saved(11)), {"CHECKPOINTS_LATE"}),
        (job(completed=saved(9)), set()),
        (job(completed=saved(11), checkpoints={"interval_ms": 5 * MINUTE_MS}), set()),
        (job(completed=saved(26), checkpoints={"interval_ms": 5 * MINUTE_MS}), {"CHECKPOINTS_LATE"}),
        (job(completed=None), {"CHECKPOINTS_LATE"}),
        (job({"source_retention_ms": 12 * MINUTE_MS}, completed=saved(9)), {"RESTORABLE_SOON_OVER"}),
        (job({"source_retention_ms": 13 * MINUTE_MS}, completed=saved(9)), set()),
        (job({"source_retention_ms": 12 * MINUTE_MS}, completed=saved(900), driver_state="SLEEPING"), set()),
        (
            job(
                {"source_retention_ms": 12 * MINUTE_MS, "lag_age_ms": 9 * MINUTE_MS},
                completed=saved(900),
                driver_state="SLEEPING",
            ),
            {"RESTORABLE_SOON_OVER"},  # the sources have not answered the sleeping driver
        ),
        (
            job(
                {"source_retention_ms": 90 * MINUTE_MS},
                completed=saved(900),
                cause="wake",
                created_at_ms=NOW_MS - 9 * MINUTE_MS,
            ),
            set(),
        ),
        (job({"source_retention_ms": 1}, completed=saved(9), desired=DesiredState.STOPPED), set()),
        (job(completed=saved(900), running_at_ms=NOW_MS - MINUTE_MS), set()),  # just started after a long stop
        (job(completed=saved(900), status=JobStatus.STOPPED, desired=DesiredState.STOPPED), set()),
    ],
)
def test_an_alarm_follows_from_the_facts_of_its_job(found: ObservedJob, kinds: set[str]) -> None:
    assert alarms_of(found, NOW_MS).keys() == {NotificationKind(kind) for kind in kinds}


class Parts(dict[str, Any]):
    """A report that notes which of its parts are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def __bool__(self) -> bool:
        return True

    def get(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        reported = {"sink_outage": {"uid": "s", "reason": "r", "since_ms": 1}, "lost_records_since_ms": 1}
        return reported.get(name, *default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return 3


def test_troubles_follow_from_the_parts_of_a_report_that_the_watch_reads() -> None:
    report = Parts()
    alarms_of(job(report), NOW_MS)
    assert report.read == set(FAULT_REPORT)


def test_an_alarm_can_have_ended_only_if_its_job_reports_or_is_not_to_run() -> None:
    assert can_have_ended(job(), NOW_MS)
    assert can_have_ended(job(status=JobStatus.FAILED, driver_state="FAILED"), NOW_MS)
    assert not can_have_ended(job(driver_state="RESTORING"), NOW_MS)
    assert not can_have_ended(job(heartbeat_at_ms=NOW_MS - 60 * MINUTE_MS), NOW_MS)


def test_an_alarm_says_how_old_the_checkpoint_is_and_what_is_wrong_with_the_store() -> None:
    late = job({"store_away_since_ms": 1}, completed=saved(25), running_at_ms=NOW_MS - 11 * MINUTE_MS)
    found = alarms_of(late, NOW_MS)
    assert found[NotificationKind.CHECKPOINTS_LATE] == "the last checkpoint is 25 min 0 s old"
    assert found[NotificationKind.STORE_AWAY] == next(
        each.message
        for each in faults_of(health_facts(late, is_current=True, at_ms=NOW_MS))
        if each.code == StoreUnavailableError.code
    )
    without = job(completed=None, running_at_ms=NOW_MS - 11 * MINUTE_MS)
    assert alarms_of(without, NOW_MS) == {NotificationKind.CHECKPOINTS_LATE: "the last checkpoint is 11 min 0 s old"}


def test_a_job_is_judged_as_one_that_reports_only_while_its_report_is_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(job_alarms, "health_facts", lambda found, **more: asked.append((found, more)))
    monkeypatch.setattr(job_alarms, "faults_of", lambda _: [])
    silent = job(heartbeat_at_ms=NOW_MS - MINUTE_MS)
    for found in (job(), silent):
        alarms_of(found, NOW_MS)
    assert asked == [
        (job(), {"is_current": True, "at_ms": NOW_MS}),
        (silent, {"is_current": False, "at_ms": NOW_MS}),
    ]

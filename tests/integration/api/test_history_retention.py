"""The history of jobs does not grow without limit, and what is removed still counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from bench.api_rows import fill
from keyscale.api.errors import LeadershipLostError
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.maintenance import history_retention, object_removal
from keyscale.api.maintenance.history_retention import HistoryPolicy, HistoryRetention
from keyscale.api.maintenance.object_removal import ObjectRemoval
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Checkpoint, CheckpointDay, CheckpointSubtask, Event, Operation
from tests.integration.api.conftest import ReplacedSoon

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.real

POLICY = HistoryPolicy(checkpoints=50, detailed_checkpoints=10, attempts=3, operations=4, event_days=30)


@pytest.fixture
def filled(context: Context, client: httpx.Client) -> httpx.Client:
    with Session(context.engine) as session, session.begin():
        fill(session, jobs=2, checkpoints=250, subtasks=2, attempts=7, events=5, now_ms=now_ms())
        session.execute(text("UPDATE events SET at_ms = 1 WHERE id % 5 = 0"))
    return client


def test_only_the_history_of_the_policy_is_kept_and_the_counts_stay(
    context: Context, leadership: Leadership, filled: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_retention, "ROWS_AT_ONCE", 30)
    with (
        context.sessions.begin() as session
    ):  # of two snapshots that users have deleted, the objects of one still exist
        session.execute(
            text(
                "UPDATE checkpoints SET status = 'DISCARDED', discard_requested_at_ms = 1, objects_deleted_at_ms ="
                " CASE WHEN job_id = (SELECT min(id) FROM jobs) THEN 2 END WHERE checkpoint_id = 3"
            )
        )
        waiting = session.scalar(select(func.max(Checkpoint.job_id)))
    before = filled.get("/v1/jobs/job-1/checkpoints").json()
    removed = HistoryRetention(context.sessions, ReconcilerPulse(), POLICY).run(leadership)
    after = filled.get("/v1/jobs/job-1/checkpoints").json()
    assert {**after["counts"], "restored": 7} == before["counts"], "restores are those of the attempts that are kept"
    assert after["latest"] == before["latest"]
    with context.sessions() as session:
        kept = session.scalar(select(func.count()).select_from(Checkpoint)) or 0
        assert kept == 2 * (50 + 2 + 3) + 1, "older savepoints stay, and three that attempts were restored from"
        assert session.scalars(select(Checkpoint.job_id).where(Checkpoint.checkpoint_id == 3)).all() == [waiting]
        assert removed["checkpoints"] == 2 * 250 - kept
        assert (
            session.scalar(select(func.sum(CheckpointDay.completed + CheckpointDay.failed))) == removed["checkpoints"]
        )
        detailed = set(session.scalars(select(CheckpointSubtask.checkpoint_id)))
        assert detailed == set(range(241, 251)) | {200}
        assert session.scalar(select(func.count()).select_from(Attempt)) == 2 * 3
        assert session.scalar(select(func.count()).select_from(Operation)) == 2 * 4
        assert session.scalar(select(func.count()).where(Event.at_ms == 1)) == 0
    [report] = [one for one in filled.get("/v1/events").json()["events"] if one["kind"] == "HISTORY_REMOVED"]
    assert report["details"]["rows"] == {table: number for table, number in removed.items() if number}
    again = HistoryRetention(context.sessions, ReconcilerPulse(), POLICY).run(leadership)
    assert again.total() == 0


def test_a_deleted_jobs_checkpoints_are_removed_a_few_at_a_time(
    context: Context, leadership: Leadership, filled: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_removal, "ROWS_AT_ONCE", 40)
    with context.sessions.begin() as session:
        session.execute(text("UPDATE jobs SET store_url = :url"), {"url": context.settings.store_url})
    assert filled.delete("/v1/jobs/job-1", params={"keep_objects": True}).status_code == 204
    with context.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == 500, "the answer did not wait for it"
    removal = ObjectRemoval(context.sessions, ReconcilerPulse())
    assert removal.work(leadership)
    assert not removal.work(leadership)
    with context.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == 250
        assert session.scalar(select(func.count()).select_from(CheckpointSubtask)) == 200


@pytest.mark.usefixtures("filled")
def test_a_leader_that_is_replaced_during_a_pass_removes_nothing_more(context: Context, leadership: Leadership) -> None:
    retention = HistoryRetention(context.sessions, ReconcilerPulse(), POLICY)
    with pytest.raises(LeadershipLostError):
        retention.run(ReplacedSoon(context.sessions, leadership.epoch))
    with context.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Attempt)) == 2 * 7
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == 2 * 250

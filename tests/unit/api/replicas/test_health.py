"""The health names each part that does not work, and the leader as long as it gives signs of life."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.replicas import health, replicas
from keyscale.api.replicas.health import check
from keyscale.api.replicas.schemas import ReplicaAnswer
from keyscale.db.repositories import leaders
from keyscale.db.repositories import replicas as replica_rows
from keyscale.db.repositories.leaders import SILENT_MAX_MS, LeaderSeen
from keyscale.installation import VERSION

NOW_S = 1000.0
LEADER = {"url": "http://first:1", "epoch": 7}


class Platform:
    """The parts of a control plane that all work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent_ms, self.is_database_away = 0, False
        self.store_problem: str | None = None
        self.pulse = ReconcilerPulse("leader", NOW_S - 10.0)
        self.isolation = SimpleNamespace(why_not=None)
        monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: NOW_S))
        monkeypatch.setattr(leaders, "read", self.read)
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext("session"),
            store=SimpleNamespace(problem=lambda: self.store_problem),
            pulse=self.pulse,
            launcher=SimpleNamespace(
                isolation=self.isolation, enclosures=SimpleNamespace(means=SimpleNamespace(statement="by cgroups"))
            ),
        )

    def read(self, session: str) -> LeaderSeen | None:
        assert session == "session"
        if self.is_database_away:
            raise OperationalError("SELECT", None, Exception("away"))
        return None if self.silent_ms < 0 else LeaderSeen(7, "http://first:1", 55, self.silent_ms)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    return Platform(monkeypatch)


OK = {
    "version": VERSION,
    "database": "ok",
    "store": "ok",
    "reconciler": "ok",
    "leader": LEADER,
    "isolation": "ok",
    "quotas": "by cgroups",
}
AWAY = "unavailable"


@pytest.mark.parametrize(
    ("changes", "shown", "codes"),
    [
        ({}, {}, []),
        ({"silent_ms": SILENT_MAX_MS}, {}, []),
        ({"silent_ms": SILENT_MAX_MS + 1}, {"leader": None}, ["LEADER_MISSING"]),
        ({"silent_ms": -1}, {"leader": None}, ["LEADER_MISSING"]),
        ({"is_database_away": True}, {"database": AWAY, "leader": None}, ["DATABASE_UNAVAILABLE", "LEADER_MISSING"]),
        ({"store_problem": "no answer"}, {"store": AWAY}, ["STORE_UNAVAILABLE"]),
        ({"role": "standby"}, {}, []),
        ({"role": "down"}, {"reconciler": AWAY}, ["RECONCILER_DOWN"]),
        ({"beat_at_s": NOW_S - 10.1}, {"reconciler": AWAY}, ["RECONCILER_DOWN"]),
        ({"why_not": "not root"}, {"isolation": "not root"}, []),
    ],
)
def test_each_part_that_does_not_work_is_named(
    platform: Platform, changes: dict[str, Any], shown: dict[str, Any], codes: list[str]
) -> None:
    for name, value in changes.items():
        for part in (platform, platform.pulse, platform.isolation):
            if hasattr(part, name):
                setattr(part, name, value)
    parts, errors = check(platform.context)
    assert (parts, [error.code for error in errors]) == ({**OK, **shown}, codes)
    assert [error.detail for error in errors if error.code == "STORE_UNAVAILABLE"] in ([], ["no answer"])


@pytest.mark.parametrize("silent_ms", [0, SILENT_MAX_MS + 1, -1])
def test_of_all_replicas_the_leader_is_marked_while_it_is_there(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, silent_ms: int
) -> None:
    found = [
        SimpleNamespace(url=f"http://{name}:1", is_alive=name == "first", seen_at_ms=at_ms)
        for name, at_ms in (("first", 60), ("second", 50))
    ]
    monkeypatch.setattr(replica_rows, "list_all", lambda _: found)
    platform.silent_ms = silent_ms
    assert replicas.list_all(platform.context).replicas == [
        ReplicaAnswer(
            url="http://first:1", is_alive=True, seen_at_ms=60, leads_since_ms=55 if silent_ms == 0 else None
        ),
        ReplicaAnswer(url="http://second:1", is_alive=False, seen_at_ms=50, leads_since_ms=None),
    ]

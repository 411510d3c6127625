"""The address of a replica is in the database and in the store of each job that runs."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.maintenance import announcer as service
from keyscale.api.maintenance.announcer import ANNOUNCE_S, PUBLISH_S, Announcer, replica_id
from keyscale.jobs.protocol.control_address import ControlAddress

URL = "https://here:1"
OWN = replica_id("host:/home")


class Places:
    """The database and the stores to which an address goes, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.in_use = ["file:///b"]
        self.away: set[str] = set()
        self.said: list[Any] = []
        monkeypatch.setattr(service, "follow_database_clock", lambda _: self.said.append("clock"))
        monkeypatch.setattr(service.replicas, "announce", lambda _, *replica: self.said.append(replica))
        monkeypatch.setattr(service.replicas, "urls", lambda _: (URL, "https://there:1"))
        monkeypatch.setattr(service.replicas, "withdraw", lambda _, replica: self.said.append(f"without {replica}"))
        monkeypatch.setattr(service.jobs, "stores_in_use", lambda _: self.in_use)
        monkeypatch.setattr(service, "open_store", self._open)
        monkeypatch.setattr(service, "publish", lambda *published: self.said.append(published))
        monkeypatch.setattr(service, "withdraw", lambda *withdrawn: self.said.append(withdrawn))
        monkeypatch.setattr(service, "now_ms", lambda: 70)
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        sessions: Any = SimpleNamespace(begin=lambda: nullcontext(None))
        self.announcer = Announcer(sessions, place="host:/home", url=URL, store_url="file:///new")

    def _open(self, store_url: str) -> str:
        if store_url in self.away:
            raise OSError("away")
        return f"store {store_url}"

    def announce(self, after_s: float = 0.0) -> list[str]:
        """Announces the replica; returns the stores that get its address."""
        self.now_s += after_s
        self.said.clear()
        self.announcer.announce()
        assert self.said[:2] == ["clock", (OWN, URL)]
        address = ControlAddress(url=URL, recorded_at_ms=70)
        assert all(published[1:] == (OWN, address) for published in self.said[2:])
        return [published[0] for published in self.said[2:]]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(monkeypatch)


def test_the_store_of_new_jobs_and_the_stores_in_use_get_the_address_again_after_a_while(places: Places) -> None:
    assert places.announcer.urls == []
    places.in_use = ["file:///b", "file:///new", "file:///a"]
    places.away = {"file:///a"}
    assert places.announce() == ["store file:///b", "store file:///new"]
    assert places.announcer.urls == [URL, "https://there:1"]
    places.away.clear()
    assert places.announce(ANNOUNCE_S) == ["store file:///a"], "a store that was away gets it when it answers"
    assert places.announce(PUBLISH_S - ANNOUNCE_S) == []
    places.in_use = ["file:///a"]
    assert places.announce(1.0) == ["store file:///new"]
    assert places.announce(ANNOUNCE_S) == ["store file:///a"]


def test_a_replica_that_ends_withdraws_its_address_from_the_database_and_each_store(places: Places) -> None:
    places.away = {"file:///b"}
    places.announce()
    places.announcer._thread = SimpleNamespace(join=lambda: places.said.append("joined"))  # type: ignore[assignment]
    places.said.clear()
    places.announcer.close()
    assert places.announcer._closing.is_set()
    assert places.said == ["joined", f"without {OWN}", ("store file:///new", OWN)]
    places.away = {"file:///new"}
    places.announcer.close()  # the address gets old instead

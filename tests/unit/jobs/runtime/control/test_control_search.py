"""The search for another control plane: who is believed, in which sequence, and how often."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol import control_address
from keyscale.jobs.protocol.control_address import (
    ADDRESS_BYTES_MAX,
    ControlAddress,
    publish,
    read_addresses,
    withdraw,
)
from keyscale.jobs.protocol.messages import Heartbeat, HeartbeatResponse
from keyscale.jobs.runtime.control.channel import HttpControl
from keyscale.jobs.runtime.control.control_search import SEARCH_PAUSE_S, ControlSearch
from keyscale.jobs.runtime.errors import ControlUnreachableError
from keyscale.state.layout import control_plane
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import DriverState
from tests.support.repository import GOLDEN
from tests.support.servers.stand_in_server import StandInServer, stand_in_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.objects.object_store import ObjectStore

TOKEN, ATTEMPT = "the-token", "job:3"
TOKEN_SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
NOBODY = "http://127.0.0.1:9"
BEAT = Heartbeat(state=DriverState.RUNNING)


@pytest.fixture
def replica() -> Iterator[StandInServer]:
    with stand_in_server(TOKEN_SHA256) as started:
        started.body = HeartbeatResponse().model_dump_json().encode()
        yield started


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def search_in(store: ObjectStore, clock: list[float] | None = None) -> ControlSearch:
    now_s = clock or [0.0]
    return ControlSearch(ATTEMPT, TOKEN, lambda: store, lambda: now_s[0])


def test_a_control_plane_is_found_in_the_store(store: ObjectStore, replica: StandInServer) -> None:
    publish(store, "dead", ControlAddress(url=NOBODY, recorded_at_ms=2))
    publish(store, "alive", ControlAddress(url=replica.url, recorded_at_ms=1))
    assert search_in(store).find(besides="http://127.0.0.1:1") == replica.url
    assert (replica.asked, replica.credentials) == (["/driver/proof"], set())


def test_a_control_plane_that_the_last_one_named_is_found_without_the_store(
    store: ObjectStore, replica: StandInServer
) -> None:
    search = search_in(store)
    search.remember([NOBODY, replica.url])
    assert search.find(besides=NOBODY) == replica.url


def test_who_does_not_know_the_attempt_gets_no_token(store: ObjectStore) -> None:
    with stand_in_server("another-hash") as stranger:
        publish(store, "stranger", ControlAddress(url=stranger.url, recorded_at_ms=1))
        control = HttpControl(NOBODY, ATTEMPT, TOKEN, search_in(store))
        for _ in range(2):
            with pytest.raises(ControlUnreachableError):
                control.heartbeat(BEAT)
        control.close()
    assert (set(stranger.asked), stranger.credentials) == ({"/driver/proof"}, set())


def test_a_proof_that_was_made_for_another_address_is_not_believed(store: ObjectStore, replica: StandInServer) -> None:
    with stand_in_server(TOKEN_SHA256) as relay:
        relay.proves_as = replica.url
        publish(store, "relay", ControlAddress(url=relay.url, recorded_at_ms=1))
        assert search_in(store).find(besides=NOBODY) is None


def test_the_next_message_goes_to_the_control_plane_that_was_found(store: ObjectStore, replica: StandInServer) -> None:
    publish(store, "alive", ControlAddress(url=replica.url, recorded_at_ms=1))
    control = HttpControl(NOBODY, ATTEMPT, TOKEN, search_in(store))
    with pytest.raises(ControlUnreachableError):
        control.heartbeat(BEAT)
    control.heartbeat(BEAT)
    control.close()
    assert replica.asked == [
        "/driver/proof",
        "/driver/proof",
        "/driver/heartbeat",
    ]  # of the search, and of the connection
    assert replica.requests[-1][2] == f"Bearer {TOKEN}"


def test_a_search_without_success_is_not_repeated_at_once(store: ObjectStore, replica: StandInServer) -> None:
    clock = [0.0]
    search = search_in(store, clock)
    assert search.find(besides=NOBODY) is None
    publish(store, "alive", ControlAddress(url=replica.url, recorded_at_ms=1))
    assert search.find(besides=NOBODY) is None
    clock[0] = SEARCH_PAUSE_S
    assert search.find(besides=NOBODY) == replica.url


def test_addresses_are_read_the_newest_first_and_what_is_none_is_left_out(store: ObjectStore) -> None:
    publish(store, "old", ControlAddress(url="http://old:1", recorded_at_ms=1))
    publish(store, "new", ControlAddress(url="http://new:1", recorded_at_ms=2))
    publish(store, "gone", ControlAddress(url="http://gone:1", recorded_at_ms=3))
    withdraw(store, "gone")
    store.put(control_plane("broken"), b"\xff")
    large = b'{"version": 1, "url": "http://large:1", "recorded_at_ms": 9}'
    store.put(control_plane("large"), large + b" " * ADDRESS_BYTES_MAX)
    store.put(control_plane("later"), b'{"version": 2, "url": "http://later:1", "recorded_at_ms": 9}')
    assert [address.url for address in read_addresses(store)] == ["http://new:1", "http://old:1"]


def test_an_address_of_today_is_read_by_later_versions(store: ObjectStore) -> None:
    golden = (GOLDEN / "control-address-v1.json").read_bytes()
    store.put(control_plane("a"), golden)
    assert read_addresses(store) == [ControlAddress(url="http://10.0.0.7:8080", recorded_at_ms=1_795_000_000_000)]
    publish(store, "a", ControlAddress(url="http://10.0.0.7:8080", recorded_at_ms=1_795_000_000_000))
    assert store.get(control_plane("a")) == golden.rstrip()


def test_a_search_looks_for_those_that_know_the_attempt_of_now_though_the_store_is_away(
    replica: StandInServer, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> ObjectStore:
        raise StoreUnavailableError("away")

    caplog.set_level("INFO")
    now_s = [0.0]
    search = ControlSearch("job:2", "the token of the attempt before", away, lambda: now_s[0])
    search.remember([replica.url])
    assert search.find(besides=NOBODY) is None, "the other end cannot prove that it knows this token"
    assert "the store does not list other control planes: away" in caplog.messages
    search.speak_as(ATTEMPT, TOKEN)
    now_s[0] += SEARCH_PAUSE_S
    assert search.find(besides=NOBODY) == replica.url


def test_only_so_many_addresses_are_read(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_address, "ADDRESSES_MAX", 2)
    for at in range(3):
        publish(store, f"replica-{at}", ControlAddress(url=f"http://replica:{at}", recorded_at_ms=at))
    assert [address.url for address in read_addresses(store)] == ["http://replica:1", "http://replica:0"]

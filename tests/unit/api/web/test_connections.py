"""The limit of connections: beyond it new ones are cut, the others are served, and no file is missing."""

from __future__ import annotations

import resource
import threading
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING

import pytest
import uvicorn
from fastapi import FastAPI

from keyscale.api.settings import Settings
from keyscale.api.web import connections
from keyscale.api.web.connections import OPEN_FILES_MAX, OWN_FILES, connections_max, raise_open_files
from keyscale.api.web.serve import listen, server_config
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    settings = Settings(home=tmp_path, host="127.0.0.1", port=0)
    running = uvicorn.Server(server_config(FastAPI(), settings))
    with listen(settings) as listener:
        listener.listen()  # so that clients need not wait until the server does
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            running.should_exit = True
            thread.join()


def is_answered(client: HTTPConnection) -> bool:
    """Sends a request; returns whether the server answers, rather than cuts the connection."""
    try:
        client.request("GET", "/openapi.json")
        answer = client.getresponse()
        return answer.status == 200 and bool(answer.read())
    except (ConnectionError, HTTPException):
        return False


def test_a_connection_beyond_the_limit_is_cut_and_has_room_once_another_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "connections_max", lambda: 3)
    with server(tmp_path) as (host, port), ExitStack() as opened:

        def client() -> HTTPConnection:
            return opened.enter_context(closing(HTTPConnection(host, port, timeout=20)))

        kept = [client() for _ in range(3)]
        assert [is_answered(each) for each in kept] == [True, True, True]
        assert not is_answered(client())
        assert [is_answered(each) for each in kept] == [True, True, True]
        kept[0].close()
        wait_until(lambda: is_answered(client()), what="room for another connection")


@pytest.mark.parametrize(
    ("limit", "left"), [(100, 50), (1024, 1024 - OWN_FILES), (resource.RLIM_INFINITY, OPEN_FILES_MAX)]
)
def test_some_files_are_kept_for_the_control_planes_own_work(
    monkeypatch: pytest.MonkeyPatch, limit: int, left: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connections_max() == left


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (OPEN_FILES_MAX, 1 << 20)),
        ((1024, resource.RLIM_INFINITY), (OPEN_FILES_MAX, resource.RLIM_INFINITY)),
        ((1 << 20, 1 << 20), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_a_small_limit_of_open_files_is_raised_and_a_large_one_stays(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int] | None
) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    raise_open_files()
    assert given == ([] if after is None else [after])

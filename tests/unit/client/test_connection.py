from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING

import pytest

from keyscale.client.connection import ADDRESS_FILE, TOKEN_FILE, Connection, default_home, find_connection
from keyscale.client.errors import ControlPlaneNotFoundError, ControlPlaneNotProvenError, RefusedError
from keyscale.client.keyscale import AsyncKeyscale, Keyscale
from tests.support.coroutines import run_coroutine
from tests.support.servers.stand_in_server import stand_in_server

if TYPE_CHECKING:
    from pathlib import Path


KEY = hashlib.sha256(b"secret-of-the-home").hexdigest()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the address and token of a control plane."""
    (tmp_path / ADDRESS_FILE).write_text("http://127.0.0.1:9999\n")
    (tmp_path / TOKEN_FILE).write_text("secret-of-the-home\n")
    return tmp_path


def test_options_come_before_the_files_of_the_home(home: Path) -> None:
    assert find_connection("http://elsewhere/", "given", home) == Connection("http://elsewhere", "given")


def test_without_options_the_control_plane_of_the_home_is_used(home: Path) -> None:
    found = find_connection(None, None, home)
    assert found == Connection("http://127.0.0.1:9999", "secret-of-the-home", proof_key=KEY)
    assert KEY not in repr(found)


def test_who_listens_at_the_address_of_the_home_has_to_know_its_token(home: Path) -> None:
    with stand_in_server() as stranger:
        (home / ADDRESS_FILE).write_text(stranger.url)
        for token in (None, "another-token"):
            connection = find_connection(None, token, home)
            with Keyscale(connection=connection) as control_plane, pytest.raises(ControlPlaneNotProvenError):
                control_plane.get("/v1/whoami")
        assert (set(stranger.asked), stranger.credentials) == ({"/proofs/home"}, set())
        with Keyscale(connection=find_connection(stranger.url, None, home)) as control_plane:
            assert control_plane.get("/v1/whoami") == {}, "the user trusts the address"
    with stand_in_server(KEY) as right:
        (home / ADDRESS_FILE).write_text(right.url)
        with Keyscale(connection=find_connection(None, "another-token", home)) as control_plane:
            assert control_plane.get("/v1/whoami") == {}
        assert right.credentials == {"Bearer another-token"}


def test_without_the_homes_token_its_address_cannot_be_proven(home: Path) -> None:
    (home / TOKEN_FILE).unlink()
    with pytest.raises(ControlPlaneNotFoundError):
        find_connection(None, "given", home)
    assert find_connection("http://elsewhere", "given", home).proof_key is None


@pytest.mark.parametrize("missing", [ADDRESS_FILE, TOKEN_FILE])
def test_a_home_without_address_or_token_is_no_control_plane(home: Path, missing: str) -> None:
    (home / missing).unlink()
    with pytest.raises(ControlPlaneNotFoundError, match=str(home)):
        find_connection(None, None, home)


def test_an_empty_variable_is_no_address(home: Path) -> None:
    assert find_connection("", "", home).url == "http://127.0.0.1:9999"


def test_a_token_is_never_shown_in_full(home: Path) -> None:
    connection = find_connection(None, None, home)
    assert "secret-of-the-home" not in repr(connection)
    assert "secret-of-the-home" not in connection.masked_token()
    assert Connection("http://x", "short").masked_token() == "…"


def test_the_home_is_in_the_checkout_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEYSCALE_HOME", "")
    assert (default_home().parent / "keyscale").exists()
    monkeypatch.setenv("KEYSCALE_HOME", str(tmp_path))
    assert default_home() == tmp_path


def test_a_refusal_survives_pickling() -> None:
    error = RefusedError({"code": "JOB_NOT_FOUND", "detail": "there is no job x"}, 404)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (copy.problem, copy.status, copy.message) == (error.problem, 404, "there is no job x")


def test_an_event_loop_proves_the_address_of_the_home_too(home: Path) -> None:
    async def asked(connection: Connection) -> object:
        async with AsyncKeyscale(connection=connection) as client:
            return await client.get("/v1/whoami"), await client.get("/v1/whoami")

    with stand_in_server() as stranger:
        (home / ADDRESS_FILE).write_text(stranger.url)
        with pytest.raises(ControlPlaneNotProvenError):
            run_coroutine(asked(find_connection(None, None, home)))
        assert (set(stranger.asked), stranger.credentials) == ({"/proofs/home"}, set())
    with stand_in_server(KEY) as right:
        (home / ADDRESS_FILE).write_text(right.url)
        assert run_coroutine(asked(find_connection(None, None, home))) == ({}, {})
        assert right.asked == ["/proofs/home", "/v1/whoami", "/v1/whoami"], "a connection is proven once"
        assert right.credentials == {"Bearer secret-of-the-home"}

"""Access to the routes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import iter_route_contexts

from keyscale.api.access.tokens import token_sha256
from keyscale.db.repositories import tokens
from keyscale.installation import VERSION
from tests.integration.api.conftest import TOKEN

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

    from keyscale.api.services.context import Context

PUBLIC = {("GET", "/health"), ("GET", "/")}


def api_routes(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path of the API; the pages under /ui have their own session."""
    pages = ("/ui",)
    routes = [route for route in iter_route_contexts(app.routes) if not route.path.startswith(pages)]
    return sorted((method, route.path) for route in routes for method in route.methods)


def filled(path: str) -> str:
    return path.replace("{checkpoint_id}", "1").replace("{", "").replace("}", "")


def test_every_route_but_health_needs_a_token(app: FastAPI, anonymous: httpx.Client) -> None:
    routes = [route for route in api_routes(app) if route not in PUBLIC]
    assert len(routes) > 25
    for method, path in routes:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic eDp5"},
            {"Cookie": "keyscale_session=x"},
        ):
            answer = anonymous.request(method, filled(path), headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "TOKEN_INVALID"), (method, path, headers)


def test_no_route_reads_a_large_body_before_it_knows_the_sender(app: FastAPI, anonymous: httpx.Client) -> None:
    with_body = [route for route in api_routes(app) if route not in PUBLIC and route[0] in {"POST", "PUT", "PATCH"}]
    assert len(with_body) > 8
    for method, path in with_body:
        for size in ("Content-Length: 500000", "Transfer-Encoding: chunked"):
            with socket.create_connection(
                (anonymous.base_url.host, anonymous.base_url.port or 0), timeout=20
            ) as client:
                head = (
                    f"{method} {filled(path)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{size}"
                )
                client.sendall(f"{head}\r\n\r\n".encode())  # and nothing of the body
                assert client.recv(1000).startswith(b"HTTP/1.1 401 "), (method, path, size)


def test_the_login_form_which_everybody_may_send_is_short(anonymous: httpx.Client) -> None:
    assert anonymous.post("/ui/login", data={"token": "x" * (1 << 18)}).json()["code"] == "BODY_TOO_LARGE"


def test_a_users_token_is_refused_on_the_routes_of_drivers(app: FastAPI, client: httpx.Client) -> None:
    for method, path in api_routes(app):
        if path.startswith("/driver"):
            assert client.request(method, path, json={}).status_code == 401


def test_a_revoked_token_opens_nothing(anonymous: httpx.Client, context: Context) -> None:
    bearer, cookie = {"Authorization": f"Bearer {TOKEN}"}, {"Cookie": f"keyscale_session={TOKEN}"}
    for headers in (bearer, cookie):
        assert anonymous.get("/jobs", headers=headers).status_code == 200
    with context.sessions.begin() as session:
        found = tokens.find(session, token_sha256(TOKEN))
        assert found is not None
        found.revoked_at_ms = 1
    for headers in (bearer, cookie):
        assert anonymous.get("/jobs", headers=headers).status_code == 401


def test_health_needs_no_token(anonymous: httpx.Client) -> None:
    answer = anonymous.get("/health")
    assert answer.status_code == 503  # nothing is reconciled here
    assert answer.json()["code"] == "RECONCILER_DOWN"
    assert (answer.json()["database"], answer.json()["store"]) == ("ok", "ok")
    assert answer.json()["version"] == VERSION


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"])
def test_a_foreign_host_header_is_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080"])
def test_loopback_names_are_ours(client: httpx.Client, host: str) -> None:
    assert client.get("/jobs", headers={"Host": host}).status_code == 200


def test_the_pages_cookie_can_read_but_changes_need_a_request_of_our_own_page(anonymous: httpx.Client) -> None:
    anonymous.cookies.set("keyscale_session", TOKEN)
    assert anonymous.get("/jobs").status_code == 200
    post = {"url": "/jobs/none/start"}
    assert anonymous.post(**post).json()["code"] == "ORIGIN_NOT_ALLOWED"
    foreign = {"X-Requested-With": "keyscale", "Origin": "http://evil.example"}
    assert anonymous.post(**post, headers=foreign).json()["code"] == "ORIGIN_NOT_ALLOWED"
    own = {"X-Requested-With": "keyscale", "Origin": "http://127.0.0.1", "Host": "127.0.0.1"}
    assert anonymous.post(**post, headers=own).json()["code"] == "JOB_NOT_FOUND"


def test_an_oversize_body_is_refused_before_it_is_read(client: httpx.Client) -> None:
    answer = client.post("/jobs", content=b"x" * (2 << 20), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


def test_the_description_is_for_token_holders_and_names_every_route(client: httpx.Client) -> None:
    description = client.get("/openapi.json").json()
    assert {"/jobs/{job_id}/rescale", "/artifacts", "/health"} <= set(description["paths"])
    assert not any(path.startswith(("/driver", "/ui")) for path in description["paths"])
    assert description["info"]["version"] == VERSION


def test_unknown_paths_and_methods_are_problems_too(client: httpx.Client) -> None:
    assert client.get("/nowhere").json()["code"] == "ROUTE_NOT_FOUND"
    assert client.put("/jobs").json()["code"] == "METHOD_NOT_ALLOWED"

"""Access to the routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.address_proof import prove
from keyscale.api.access.tokens import token_sha256
from keyscale.db.repositories import replicas
from keyscale.installation import VERSION

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


def test_the_login_form_which_everybody_may_send_is_short(anonymous: httpx.Client) -> None:
    assert anonymous.post("/ui/login", data={"token": "x" * (1 << 18)}).json()["code"] == "BODY_TOO_LARGE"


def test_health_needs_no_token(anonymous: httpx.Client) -> None:
    answer = anonymous.get("/health")
    assert answer.status_code == 503  # nothing is reconciled here
    assert answer.json()["code"] == "RECONCILER_DOWN"
    assert (answer.json()["database"], answer.json()["store"]) == ("ok", "ok")
    assert answer.json()["version"] == VERSION


def test_the_first_page_is_the_dashboard_and_no_page_loads_programs_of_other_hosts(anonymous: httpx.Client) -> None:
    first = anonymous.get("/")
    assert (first.status_code, first.headers["location"]) == (307, "/ui/")
    assert [anonymous.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3
    assert anonymous.get("/v1/openapi.json").status_code == 401


def test_a_control_plane_proves_its_home_and_its_place_among_the_replicas(
    context: Context, anonymous: httpx.Client
) -> None:
    url, file = context.settings.control_url, context.settings.token_file
    assert anonymous.get("/proofs/home", params={"nonce": "n"}).status_code == 404, "it keeps no admin token"
    file.write_text("the-admin-token\n")
    home = anonymous.get("/proofs/home", params={"nonce": "n"}).json()
    assert home == {"proof": prove(token_sha256("the-admin-token"), "n", url)}
    with context.reads() as session:
        key = replicas.shared_key(session)
    replica = anonymous.get("/proofs/replica", params={"nonce": "n"}).json()
    assert replica == {"proof": prove(key, "n", url, context.announcer.replica_id)}


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"])
def test_a_foreign_host_header_is_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/v1/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080"])
def test_loopback_names_are_ours(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200


def test_an_oversize_body_is_refused_before_it_is_read(client: httpx.Client) -> None:
    answer = client.post("/v1/jobs", content=b"x" * (2 << 20), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


@pytest.mark.real
def test_the_description_is_for_token_holders_and_names_every_route(client: httpx.Client) -> None:
    description = client.get("/v1/openapi.json").json()
    assert {"/v1/jobs/{job_id}/rescale", "/v1/artifacts", "/health"} <= set(description["paths"])
    assert not any(path.startswith(("/driver", "/ui")) for path in description["paths"])
    assert description["info"]["version"] == VERSION


def test_unknown_paths_and_methods_are_problems_too(client: httpx.Client) -> None:
    assert client.get("/nowhere").json()["code"] == "ROUTE_NOT_FOUND"
    assert client.put("/v1/jobs").json()["code"] == "METHOD_NOT_ALLOWED"

"""Each route is for the users that the table of routes in the guide names."""

from __future__ import annotations

import re
from inspect import ismodule
from typing import TYPE_CHECKING, Any

from keyscale.api.access.identities import RequireRole, require_driver, require_known_attempt, require_lost_attempt
from keyscale.api.web import app as web_app
from keyscale.vocabulary import Role
from tests.support.repository import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi.dependencies.models import Dependant

OF_ATTEMPTS = {require_driver, require_known_attempt, require_lost_attempt}
UNVERSIONED = ("/driver", "/proofs", "/health", "/metrics", "/ui")


def documented_rules() -> dict[tuple[str, str], str]:
    text = (DOCS / "guide" / "access.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| (\w+) \|", text, re.MULTILINE)
    return {(method, path): rule for method, path, rule in rows}


def calls_of(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from calls_of(each)


def rule_of(route: Any) -> str:
    """Returns for whom a route is: for users with a role, for attempts, or for everybody."""
    guards = {*getattr(route, "_guards", {}).values(), *calls_of(route.dependant)}
    roles = {each.role for each in guards if isinstance(each, RequireRole)}
    if roles:
        [role] = roles
        return str(role)
    return "attempt" if guards & OF_ATTEMPTS else "everybody"


def routed_rules() -> dict[tuple[str, str], str]:
    routers = [each.router for each in vars(web_app).values() if ismodule(each) and hasattr(each, "router")]
    found = {}
    for router in routers:
        for route in router.routes:
            path = route.path if route.path.startswith(UNVERSIONED) else f"{web_app.API_VERSION}{route.path}"
            found |= {(method, path.replace(":int}", "}")): rule_of(route) for method in route.methods}
    return found


def test_a_route_is_for_the_users_that_the_guide_names() -> None:
    documented, routed = documented_rules(), routed_rules()
    of_users = {route: rule for route, rule in documented.items() if rule in Role.__members__}
    assert len(of_users) > 60
    assert {route: routed.get(route) for route in of_users if route[1] != "/v1/openapi.json"} == {
        route: rule for route, rule in of_users.items() if route[1] != "/v1/openapi.json"
    }
    of_others = {
        route for route, rule in routed.items() if rule not in Role.__members__ and route[1].startswith("/v1/")
    }
    assert of_others == set(), "every public route needs a user"
    assert {rule for (_, path), rule in routed.items() if path.startswith("/driver/")} == {"attempt"}


def test_a_viewer_changes_nothing() -> None:
    reading = {(method, path) for (method, path), rule in routed_rules().items() if rule == Role.VIEWER}
    assert sorted(each for each in reading if each[0] not in {"GET", "HEAD"}) == []

"""The routes that the application serves, so that a test of all routes meets a new one as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.routing import iter_route_contexts

if TYPE_CHECKING:
    from fastapi import FastAPI

Route = tuple[str, str]


def served_routes(app: FastAPI) -> set[Route]:
    """Returns the method and the path of every route, those of the pages included."""
    return {
        (method, route.path.replace(":int}", "}"))
        for route in iter_route_contexts(app.routes)
        for method in route.methods
    } - {("HEAD", "/")}


def api_routes(app: FastAPI) -> list[Route]:
    """Returns the method and the path of every route of the API; the pages under /ui have a session of their own."""
    return sorted((method, path) for method, path in served_routes(app) if not path.startswith("/ui"))

"""The web application."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse, RedirectResponse

from api.context import Context
from api.dashboard import router as dashboard
from api.launcher import Launcher
from api.lifecycle.reconciler import Reconciler
from api.limits import RequestLimits
from api.problems import add_handlers
from api.routers import artifacts, checkpoints, driver, events, health, jobs, operations, rescales, savepoints
from api.security import require_user
from api.store_check import StoreCheck
from db.engine import open_engine, session_factory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Engine

    from api.settings import Settings

DESCRIPTION = """Runs stateful PySpark streaming jobs and changes their parallelism.

Times are milliseconds since the epoch, durations milliseconds, sizes bytes. Errors are `application/problem+json` with a
stable `code`. Every route but `GET /health` needs a token: `Authorization: Bearer <token>`."""


def make_context(settings: Settings, engine: Engine | None = None) -> Context:
    """Returns a control plane's parts; its database is migrated already."""
    engine = engine or open_engine(settings.database_url or "")
    return Context(
        settings=settings,
        engine=engine,
        sessions=session_factory(engine),
        launcher=Launcher(settings),
        store=StoreCheck(settings.store_url),
    )


def create_app(context: Context, *, reconcile: bool = True) -> FastAPI:
    """Returns the application.

    Args:
        context: The control plane's parts.
        reconcile: Whether this process takes part in carrying jobs on.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reconciler = Reconciler(context)
        if reconcile:
            reconciler.start()
        yield
        if reconcile:
            reconciler.close()
        context.engine.dispose()

    # FastAPI's own pages of documentation load programs from elsewhere; the description itself is served, to token holders.
    app = FastAPI(
        title="Keyscale",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    app.add_middleware(RequestLimits, settings=context.settings)
    add_handlers(app)
    for router in (artifacts, jobs, checkpoints, savepoints, rescales, operations, events, driver, health):
        app.include_router(router.router)

    app.include_router(dashboard.router)

    @app.get("/", include_in_schema=False)
    def lead_to_dashboard() -> RedirectResponse:
        return RedirectResponse("/ui/")

    @app.get("/openapi.json", include_in_schema=False, dependencies=[Depends(require_user)])
    def describe() -> JSONResponse:
        return JSONResponse(app.openapi())

    return app

"""The web application."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse

from keyscale.certificates import trusted_certificates
from keyscale.db.connections import open_engine, reading_session_factory, session_factory
from keyscale.db.repositories import artifacts as artifact_rows
from keyscale.db.repositories import replicas as replica_rows
from keyscale.installation import VERSION
from keyscale.vocabulary import HTTP_CHANNELS, Channel

from ..access.identities import User  # noqa: TC001 - FastAPI reads the annotation when it starts
from ..access.openid import Issuer
from ..access.rates import Rates
from ..access_tokens import routes as access_tokens
from ..artifacts import check_routes as program_checks
from ..artifacts import routes as artifacts
from ..autoscaling import routes as autoscaling
from ..autoscaling.autoscaler import Autoscaler
from ..bundles import routes as bundles
from ..control_plane.calls import Calls
from ..control_plane.change_feed import ChangeFeed
from ..control_plane.context import Context
from ..control_plane.own_metrics import OwnMetrics
from ..dashboard import router as dashboard
from ..diagnostics import routes as diagnostics
from ..drivers import routes as driver
from ..events import routes as events
from ..events import stream_routes as event_streams
from ..jobs import routes as jobs
from ..jobs import setting_routes as job_settings
from ..jobs.restore_sources import why_not_own
from ..key_state import routes as key_state
from ..launching.enclosures import NO_ENCLOSURES, Enclosures
from ..launching.launcher import Launcher
from ..launching.program_loading import ProgramLoading
from ..lifecycle.facts import Timeouts
from ..lifecycle.reconciler import Reconciler
from ..logs import routes as logs
from ..maintenance.announcer import Announcer
from ..maintenance.history_retention import HistoryPolicy, HistoryRetention
from ..maintenance.object_removal import ObjectRemoval
from ..maintenance.run_removal import RunRemoval
from ..maintenance.savepoint_release import SavepointRelease
from ..maintenance.snapshot_removal import SnapshotRemoval
from ..maintenance.spare_keeper import SpareKeeper
from ..maintenance.verifier import Verifier
from ..metrics import key_group_routes as key_group_history
from ..metrics import scrape_routes as scrape
from ..metrics import series_routes as series
from ..notifications import routes as notifications
from ..notifications.alarm_watch import AlarmWatch
from ..notifications.deliveries import Deliveries
from ..notifications.http_sender import Sender
from ..operations import operations as operations_service
from ..operations import routes as operations
from ..recovery import routes as recovered_jobs
from ..replicas import health_routes as health
from ..replicas import proof_routes as proofs
from ..replicas import routes as replicas
from ..revisions import routes as revisions
from ..secret_labels import routes as secret_labels
from ..snapshots import checkpoint_routes as checkpoints
from ..snapshots import savepoint_routes as savepoints
from ..snapshots.savepoint_schedule import SavepointSchedule
from ..store_check import StoreCheck
from ..telemetry.collector import Collector
from .error_handlers import add_handlers
from .limits import RequestLimits
from .openapi import describe
from .request_origin import RequestOrigin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

    from sqlalchemy import Engine

    from ..launching.isolation import Isolation
    from ..settings import Settings

API_VERSION = "/v1"
"""The first part of the path of every public route.

The protocols of drivers and of replicas, `/health` and the pages have paths of their own.
"""
DESCRIPTION = """Runs stateful PySpark streaming jobs and changes their parallelism.

Times are milliseconds since the epoch, durations are milliseconds, sizes are bytes. Errors are
`application/problem+json` with a stable `code`. Every route except `GET /health` needs a token:
`Authorization: Bearer <token>`."""


def make_context(
    settings: Settings,
    engine: Engine | None = None,
    isolation: Isolation | None = None,
    enclosures: Enclosures = NO_ENCLOSURES,
) -> Context:
    """Returns a control plane's parts.

    Its database must have been migrated.

    Args:
        settings: Its settings.
        engine: Its database; None: the database of the settings.
        isolation: The users of jobs; None: jobs run as the control plane's user.
        enclosures: What holds the quotas of jobs.
    """
    engine = engine or open_engine(settings.database_url or "")
    sessions, reads = session_factory(engine), reading_session_factory(engine)

    def read_artifact(sha256: str) -> Iterator[bytes]:
        with reads() as session:
            yield from artifact_rows.read_bytes(session, sha256)

    def read_key() -> str:
        with reads() as session:
            return replica_rows.shared_key(session)

    own_metrics = OwnMetrics()
    launcher = Launcher(
        settings, isolation, read_artifact, read_key, enclosures, note_start=partial(own_metrics.count, "driver_starts")
    )
    own_metrics.watch(engine)
    return Context(
        settings=settings,
        engine=engine,
        sessions=sessions,
        reads=reads,
        launcher=launcher,
        programs=ProgramLoading(settings, launcher),
        change_feed=ChangeFeed(reads, operations_service.answers, note_look=partial(own_metrics.count, "looks")),
        verifier=Verifier(sessions, why_not_own),
        calls=Calls(reads),
        store=StoreCheck(settings.store_url, own_metrics.note_store_check),
        rates=Rates(
            per_user=settings.user_requests_per_second,
            per_address=settings.address_requests_per_second,
            failures_per_minute=settings.failures_per_minute,
        ),
        issuer=None if settings.openid is None else Issuer(settings.openid, ca_file=settings.ca_file),
        metrics=own_metrics,
        announcer=Announcer(sessions, place=launcher.place, url=settings.control_url, store_url=settings.store_url),
    )


def history_policy(settings: Settings) -> HistoryPolicy:
    """Returns the retention of history in the settings."""
    return HistoryPolicy(
        checkpoints=settings.keep_checkpoints,
        detailed_checkpoints=settings.keep_checkpoint_details,
        attempts=settings.keep_attempts,
        operations=settings.keep_operations,
        event_days=settings.keep_event_days,
        events=settings.keep_events,
    )


def deliveries_of(context: Context, channels: Collection[Channel]) -> Deliveries:
    """Returns a thread that delivers a control plane's notifications."""
    settings = context.settings
    return Deliveries(
        context.sessions,
        context.pulse,
        channels=channels,
        sender=Sender(allows_private=settings.allows_private_targets, ca_file=settings.ca_file),
        mail_server=settings.mail_server,
        source=settings.control_url,
    )


class _Thread(Protocol):
    """A thread that works while the control plane runs."""

    def start(self) -> None: ...
    def close(self) -> None: ...


def _collectors_of(context: Context) -> tuple[Collector, ...]:
    """Returns the thread that pushes to a collector, if any."""
    settings = context.settings
    if settings.otlp_endpoint is None:
        return ()
    return (
        Collector(
            context,
            endpoint=settings.otlp_endpoint,
            headers=settings.otlp_headers,
            every_ms=settings.otlp_interval_ms,
            certificates=trusted_certificates(settings.ca_file),
        ),
    )


def _threads_of(context: Context) -> tuple[_Thread, ...]:
    """Returns the threads that advance jobs and maintain the control plane."""
    settings, sessions, pulse = context.settings, context.sessions, context.pulse
    return (
        Reconciler(
            engine=context.engine,
            launcher=context.launcher,
            store=context.store,
            wakeup=context.wakeup,
            pulse=pulse,
            url=settings.control_url,
            timeouts=Timeouts(restore_ms=settings.restore_timeout_ms, verify_ms=settings.verify_timeout_ms),
            starts_at_once=settings.starts_at_once,
        ),
        ObjectRemoval(sessions, pulse),
        HistoryRetention(sessions, pulse, history_policy(settings)),
        RunRemoval(sessions, context.launcher),
        SpareKeeper(settings, sessions, context.launcher, pulse),
        SavepointRelease(sessions, pulse, context.store),
        SavepointSchedule(context),
        SnapshotRemoval(sessions, pulse),
        deliveries_of(context, HTTP_CHANNELS),
        deliveries_of(context, (Channel.MAIL,)),
        AlarmWatch(sessions, pulse),
        Autoscaler(context),
        context.announcer,
        *_collectors_of(context),
    )


@asynccontextmanager
async def _running(context: Context, *, reconcile: bool) -> AsyncIterator[None]:
    """Runs the threads of a control plane while it serves."""
    threads = _threads_of(context) if reconcile else ()
    context.change_feed.start()
    context.calls.start()
    if reconcile:
        context.programs.sweep()
    for thread in threads:
        thread.start()
    yield
    context.calls.close()
    context.change_feed.close()
    context.verifier.close()
    context.key_readers.close()
    for thread in reversed(threads):
        thread.close()
    if context.issuer is not None:
        context.issuer.close()
    context.engine.dispose()


def create_app(context: Context, *, reconcile: bool = True) -> FastAPI:
    """Returns the application.

    Args:
        context: The control plane's parts.
        reconcile: Whether this process runs a reconciler.
    """
    # FastAPI's documentation pages would load programs from other hosts. The description itself is served to token
    # holders.
    app = FastAPI(
        title="Keyscale",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=lambda _: _running(context, reconcile=reconcile),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # The control plane has metrics of its own. FastAPI would look for OpenTelemetry's settings in each request.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        generate_unique_id_function=attrgetter("name"),  # it names the functions of generated clients
    )
    app.state.context = context
    app.add_middleware(RequestLimits, settings=context.settings)
    app.add_middleware(
        RequestOrigin, rates=context.rates, metrics=context.metrics
    )  # the outermost middleware: it sees every request
    add_handlers(app)
    app.include_router(driver.router)  # first, as drivers send most requests
    for router in (
        artifacts,
        program_checks,
        jobs,
        bundles,
        logs,
        diagnostics,
        recovered_jobs,
        checkpoints,
        savepoints,
        series,
        key_group_history,
        key_state,
        event_streams,
        revisions,
        operations,
        autoscaling,
        events,
        access_tokens,
        secret_labels,
        job_settings,
        replicas,
        notifications,
    ):
        app.include_router(router.router, prefix=API_VERSION)
    for router in (proofs, health, scrape):
        app.include_router(router.router)
    app.include_router(dashboard.router)

    @app.get("/", include_in_schema=False)
    def lead_to_dashboard() -> RedirectResponse:
        return RedirectResponse("/ui/")

    @cache  # made when it is first asked for: it takes half a second
    def document() -> dict[str, Any]:
        return describe(app)

    @app.get(f"{API_VERSION}/openapi.json", include_in_schema=False)
    def show_description(_: User) -> JSONResponse:
        return JSONResponse(document())

    return app

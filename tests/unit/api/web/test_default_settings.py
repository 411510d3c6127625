"""A control plane whose administrator has set nothing: each default has its effect where the setting is used."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.maintenance.history_retention import HistoryPolicy
from keyscale.api.settings import Settings
from keyscale.api.web import app as web_app
from keyscale.api.web.app import create_app, history_policy, make_context
from keyscale.api.web.limits import MULTIPART_OVERHEAD_BYTES, RequestLimits
from keyscale.db.connections import open_engine
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.api.access.rates import RateLimit
    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.facts import Timeouts


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, store_url=(tmp_path / "store").as_uri())


def context_of(settings: Settings) -> Context:
    return make_context(settings, open_engine("postgresql://nobody@/none"))  # which connects when it is used


def test_an_environment_without_settings_gives_the_defaults(settings: Settings) -> None:
    assert Settings.from_environment({"KEYSCALE_HOME": str(settings.home)}) == settings


def taken_at_once(limit: RateLimit) -> int:
    limit._clock = lambda: 0.0
    return sum(limit.take("somebody") == 0 for _ in range(6000))


def test_a_sender_has_five_seconds_of_requests_at_once_and_a_minute_of_failures(settings: Settings) -> None:
    rates = context_of(settings).rates
    assert [taken_at_once(each) for each in (rates.per_user, rates.per_address, rates.failures)] == [1000, 5000, 20]
    without = replace(settings, user_requests_per_second=0, address_requests_per_second=0, failures_per_minute=0)
    rates = context_of(without).rates
    assert [taken_at_once(each) for each in (rates.per_user, rates.per_address, rates.failures)] == [6000] * 3


def test_the_history_of_a_job_has_bounds(settings: Settings) -> None:
    assert history_policy(settings) == HistoryPolicy(
        checkpoints=1000, detailed_checkpoints=100, attempts=100, event_days=90
    )


class ReconcilerMadeError(Exception):
    """The application is about to reconcile."""


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, (600_000, 120_000, len(os.sched_getaffinity(0)))),
        ({"restore_timeout_ms": 5000, "verify_timeout_ms": 7000, "starts_at_once": 3}, (5000, 7000, 3)),
    ],
)
def test_a_new_driver_has_its_turn_and_its_time_to_restore_and_to_commit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, int], expected: tuple[int, int, int]
) -> None:
    given: list[tuple[int, int, int]] = []

    def reconciler(*, timeouts: Timeouts, starts_at_once: int, **_: Any) -> None:
        given.append((timeouts.restore_ms, timeouts.verify_ms, starts_at_once))
        raise ReconcilerMadeError

    async def start() -> None:
        app = create_app(context_of(replace(settings, **chosen)))
        async with app.router.lifespan_context(app):
            """Its start fails."""

    monkeypatch.setattr(web_app, "Reconciler", reconciler)
    with pytest.raises(ReconcilerMadeError):
        run_coroutine(start())
    assert given == [expected]


def test_an_upload_may_have_256_mebibytes(settings: Settings) -> None:
    async def answered(length: int) -> int:
        statuses: list[int] = []

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200})

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        headers = [(b"host", b"localhost"), (b"content-length", str(length).encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/artifacts", "headers": headers}
        await RequestLimits(application, settings)(scope, None, send)  # type: ignore[arg-type]
        return statuses[0]

    most = (256 << 20) + MULTIPART_OVERHEAD_BYTES
    assert [run_coroutine(answered(each)) for each in (most, most + 1)] == [200, 413]

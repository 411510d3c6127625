"""The reports of a job's drivers are charged with the processor time that they take, in milliseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.access.rates import Rates
from keyscale.api.drivers import routes

if TYPE_CHECKING:
    from collections.abc import Callable

DRIVER = DriverIdentity("job", 4, over=False)


@pytest.mark.parametrize(
    ("route", "service"),
    [
        (routes.heartbeat, "heartbeat"),
        (routes.attach, "attach"),
        (routes.report_checkpoint, "report_checkpoint"),
        (routes.report_diagnostic, "report_diagnostic"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_report_is_charged_whether_it_is_taken_or_fails(
    monkeypatch: pytest.MonkeyPatch, route: Callable[..., Any], service: str, *, fails: bool
) -> None:
    rates = Rates(per_user=0, per_address=0, failures_per_minute=0)
    monkeypatch.setattr(rates.reports_ms, "_clock", lambda: 0.0)
    now_s = 100.0
    monkeypatch.setattr(routes.time, "thread_time", lambda: now_s)

    def work(*_: Any) -> None:
        nonlocal now_s
        now_s += 4.2
        if fails:
            raise ValueError

    monkeypatch.setattr(routes.drivers, service, work)
    monkeypatch.setattr(routes, "_read", lambda *_: None)
    context: Any = SimpleNamespace(rates=rates)
    try:
        route(context, DRIVER, b"")
    except ValueError:
        assert fails
    assert rates.reports_ms.wait_s("job") == pytest.approx((200 + 1) / 200), "4.2 s are 200 ms more than a full bucket"
    assert rates.reports_ms.wait_s("4") == 0, "another job's reports are read"

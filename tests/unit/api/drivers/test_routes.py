"""A driver's report is read whole and once, and a driver without news waits for a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from keyscale.api.access.identities import DriverIdentity
from keyscale.api.control_plane.guarded_route import ReportRoute
from keyscale.api.drivers import routes
from keyscale.db.repositories.operations import Listening
from keyscale.jobs.protocol.messages import DiagnosticReport, Heartbeat
from tests.support.coroutines import run_coroutine

DRIVER = DriverIdentity("job", 4, over=False)


class Platform:
    """A control plane that notes what drivers ask of it."""

    def __init__(self) -> None:
        self.waited: list[Any] = []
        self.charged: list[str] = []
        self.locked = 0
        self.context: Any = SimpleNamespace(
            calls=self,
            report_reading=self,
            rates=SimpleNamespace(reports_ms=SimpleNamespace(charge=lambda job, _: self.charged.append(job))),
        )

    async def wait(self, driver: Listening, seconds: float) -> bool:
        self.waited.append((driver, seconds))
        return False

    def __enter__(self) -> None:
        self.locked += 1

    def __exit__(self, *_: object) -> None:
        """Gives the lock of large reports back."""


def test_a_driver_waits_for_its_own_call_and_one_whose_attempt_is_over_does_not_wait() -> None:
    platform = Platform()
    call = run_coroutine(routes.wait_for_call(platform.context, DRIVER, 7, 30.0))
    assert (call.is_called, platform.waited) == (False, [(Listening("job", 4, 7), 30.0)])
    over = DriverIdentity("job", 4, over=True)
    assert run_coroutine(routes.wait_for_call(platform.context, over, 7, 30.0)).is_called
    assert len(platform.waited) == 1


def test_a_report_that_breaks_off_is_not_read() -> None:
    async def breaks_off() -> bytes:
        raise ClientDisconnect

    async def whole() -> bytes:
        return b"{}"

    request: Any = SimpleNamespace(body=breaks_off)
    with pytest.raises(HTTPException) as refused:
        run_coroutine(routes._body(request))
    assert refused.value.status_code == 400
    request.body = whole
    assert run_coroutine(routes._body(request)) == b"{}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [(("body",), "This is not JSON.")]),
        (b"[" * 100_000, [(("body",), "This is not JSON.")]),
        (b'{"state": "RUNNING", "revision": "x"}', [(("body", "revision"), None)]),
        (b'{"revision": 1}', [(("body", "state"), "Field required")]),
    ],
    ids=["nothing", "deep", "wrong", "missing"],
)
def test_what_is_wrong_with_a_report_is_named_without_its_values(body: bytes, expected: list[Any]) -> None:
    with pytest.raises(RequestValidationError) as refused:
        routes._read(Platform().context, Heartbeat, body)
    found = [(each["loc"], each["msg"]) for each in refused.value.errors()]
    assert [loc for loc, _ in found] == [loc for loc, _ in expected]
    for (_, message), (_, wanted) in zip(found, expected, strict=True):
        assert wanted in {None, message}
    assert all("input" not in each for each in refused.value.errors())


@pytest.mark.parametrize("is_large", [False, True])
def test_only_large_reports_are_read_one_after_the_other(is_large: bool) -> None:
    platform = Platform()
    body = b'{"state": "RUNNING"}'.ljust(ReportRoute.unguarded_bytes_max + is_large)
    assert routes._read(platform.context, Heartbeat, body).state == "RUNNING"
    assert platform.locked == int(is_large)


def test_the_time_of_a_diagnostics_report_is_charged_to_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    platform, taken = Platform(), []
    monkeypatch.setattr(routes.drivers, "report_diagnostic", lambda _, *of: taken.append(of))
    answer = routes.report_diagnostic(platform.context, DRIVER, b'{"diagnostic_id": "d"}')
    assert (answer.status_code, taken) == (204, [(DRIVER, DiagnosticReport(diagnostic_id="d"))])
    assert platform.charged == ["job"]

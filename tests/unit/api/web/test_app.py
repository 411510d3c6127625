"""The parts of a control plane: each one works while it serves, ends with it, and has its own settings."""

from __future__ import annotations

import ssl
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.jobs.restore_sources import why_not_own
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.mail_server import MailServer
from keyscale.api.maintenance.announcer import replica_id
from keyscale.api.maintenance.history_retention import HistoryPolicy
from keyscale.api.notifications.deliveries import Deliveries
from keyscale.api.settings import OpenIdSettings, Settings
from keyscale.api.telemetry.collector import Collector
from keyscale.api.web import app as web_app
from keyscale.api.web.app import deliveries_of, history_policy, make_context
from keyscale.db.connections import open_engine
from keyscale.vocabulary import HTTP_CHANNELS, Channel
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.api.control_plane.context import Context

STARTED = ["start feed", "start calls"]
ENDED = ["close calls", "close feed", "close verifier", "close readers"]
THREADS = ["sweep", "start first", "start second"]
THREADS_ENDED = ["close second", "close first"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, store_url=(tmp_path / "store").as_uri())


def context_of(settings: Settings) -> Context:
    return make_context(settings, open_engine("postgresql://nobody@/none"))  # which connects when it is used


class Parts:
    """The parts of a control plane, which note when they start and end."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.context: Any = SimpleNamespace(
            change_feed=self.part("feed"),
            calls=self.part("calls"),
            programs=SimpleNamespace(sweep=lambda: self.noted.append("sweep")),
            verifier=self.part("verifier"),
            key_readers=self.part("readers"),
            issuer=self.part("issuer"),
            engine=SimpleNamespace(dispose=lambda: self.noted.append("dispose")),
        )

    def part(self, name: str) -> Any:
        noted = self.noted
        return SimpleNamespace(start=lambda: noted.append(f"start {name}"), close=lambda: noted.append(f"close {name}"))


@pytest.mark.parametrize("has_issuer", [True, False])
@pytest.mark.parametrize("reconcile", [True, False])
def test_every_part_works_while_the_control_plane_serves_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, reconcile: bool, has_issuer: bool
) -> None:
    parts = Parts()
    if not has_issuer:
        parts.context.issuer = None
    monkeypatch.setattr(web_app, "_threads_of", lambda _: (parts.part("first"), parts.part("second")))

    async def serve() -> None:
        async with web_app._running(cast("Context", parts.context), reconcile=reconcile):
            assert parts.noted == STARTED + (THREADS if reconcile else [])
            parts.noted.clear()

    run_coroutine(serve())
    issuer = ["close issuer"] if has_issuer else []
    assert parts.noted == [*ENDED, *(THREADS_ENDED if reconcile else []), *issuer, "dispose"]


def test_a_control_plane_has_a_thread_for_each_of_its_tasks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "Sender", dict)
    context = context_of(settings)
    threads = web_app._threads_of(context)
    assert sorted(type(each).__name__ for each in threads) == [
        "AlarmWatch",
        "Announcer",
        "Autoscaler",
        "Deliveries",
        "Deliveries",
        "HistoryRetention",
        "ObjectRemoval",
        "Reconciler",
        "RunRemoval",
        "SavepointRelease",
        "SavepointSchedule",
        "SnapshotRemoval",
        "SpareKeeper",
    ]
    assert type(threads[0]).__name__ == "Reconciler", "it ends last: the other threads ask it who leads"
    of_channels = [each._channels for each in threads if isinstance(each, Deliveries)]
    assert sorted(channel for channels in of_channels for channel in channels) == sorted(Channel)
    assert (Channel.MAIL,) in of_channels, "a slow mail server delays no other message"


def test_a_collector_gets_the_metrics_only_if_the_settings_name_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted: list[Path] = []

    def certificates_of(file: Path) -> ssl.SSLContext:
        trusted.append(file)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(web_app, "trusted_certificates", certificates_of)
    assert web_app._collectors_of(context_of(settings)) == ()
    named = replace(
        settings,
        otlp_endpoint="http://collector:4318/",
        otlp_headers={"x-key": "secret"},
        otlp_interval_ms=7000,
        ca_file=settings.home / "ca.pem",
    )
    (collector,) = web_app._collectors_of(context_of(named))
    assert isinstance(collector, Collector)
    client = collector._client
    assert (str(client.base_url), client.headers["x-key"]) == ("http://collector:4318/", "secret")
    assert (collector._every_ms, trusted) == (7000, [named.ca_file])
    client.close()


def test_each_bound_of_the_history_is_a_setting_of_its_own(settings: Settings) -> None:
    chosen = replace(
        settings,
        keep_checkpoints=6,
        keep_checkpoint_details=5,
        keep_attempts=4,
        keep_operations=3,
        keep_event_days=2,
        keep_events=1,
    )
    assert history_policy(chosen) == HistoryPolicy(
        checkpoints=6, detailed_checkpoints=5, attempts=4, operations=3, event_days=2, events=1
    )


@pytest.mark.parametrize("allows_private", [True, False])
def test_notifications_go_where_the_settings_allow(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, allows_private: bool
) -> None:
    monkeypatch.setattr(web_app, "Sender", dict)
    mail = MailServer("mail", 25, "from@example.com")
    chosen = replace(
        settings,
        allows_private_targets=allows_private,
        ca_file=settings.home / "ca.pem",
        mail_server=mail,
        own_url="https://keyscale.example",
    )
    context = SimpleNamespace(settings=chosen, sessions="sessions", pulse="pulse")
    sender = deliveries_of(cast("Context", context), (Channel.MAIL,))
    assert sender._sender == cast("Any", {"allows_private": allows_private, "ca_file": chosen.ca_file})
    assert (sender._mail_server, sender._source, sender._channels) == (
        mail,
        "https://keyscale.example",
        (Channel.MAIL,),
    )


def test_the_issuer_and_the_own_address_are_those_of_the_settings(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "Issuer", lambda *given, **named: (given, named))
    assert context_of(settings).issuer is None
    named = OpenIdSettings("https://issuer.example", "client")
    chosen = replace(settings, openid=named, ca_file=settings.home / "ca.pem", port=7)
    context = context_of(chosen)
    assert context.issuer == cast("Any", ((named,), {"ca_file": chosen.ca_file}))
    announcer = context.announcer
    assert (announcer._url, announcer._store_url) == ("http://127.0.0.1:7", settings.store_url)
    assert announcer.replica_id == replica_id(context.launcher.place)


def test_the_launcher_gets_programs_and_the_replicas_key_and_its_starts_are_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def launcher(*parts: Any, note_start: Any) -> Any:
        given.extend([*parts, note_start])
        return SimpleNamespace(place="here")

    def read_bytes(session: Any, sha256: str) -> list[bytes]:
        assert session.get_bind().url.database == "none"
        return [sha256.encode(), b"more"]

    monkeypatch.setattr(web_app, "Launcher", launcher)
    monkeypatch.setattr(web_app.artifact_rows, "read_bytes", read_bytes)
    monkeypatch.setattr(web_app.replica_rows, "shared_key", lambda _: "the key")
    isolation, enclosures = cast("Any", "isolation"), cast("Any", "enclosures")
    context = make_context(settings, open_engine("postgresql://nobody@/none"), isolation, enclosures)
    of, of_jobs, read_artifact, read_key, quotas, note_start = given
    assert (of, of_jobs, quotas, context.launcher.place) == (settings, isolation, enclosures, "here")
    assert (list(read_artifact("abc")), read_key()) == ([b"abc", b"more"], "the key")
    note_start("spare")
    context.change_feed._note_look()
    context.change_feed._note_look()
    context.store._on_checked(0.5, True)
    told = context.metrics.text()
    assert 'keyscale_driver_starts_total{way="spare"} 1.0' in told
    assert "keyscale_looks_total 2.0" in told
    assert "keyscale_store_errors_total 1.0" in told


def test_requests_are_limited_as_the_settings_say(settings: Settings) -> None:
    chosen = replace(
        settings, user_requests_per_second=3, address_requests_per_second=5, failures_per_minute=120, port=7
    )
    rates = context_of(chosen).rates
    limits = (rates.per_user, rates.per_address, rates.failures)
    assert [each._per_second for each in limits] == [3, 5, 2]


def test_each_thread_has_the_settings_and_the_parts_of_its_control_plane(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, list[Any]] = {}

    def note(name: str) -> Any:
        def make(*parts: Any, **more: Any) -> Any:
            given.setdefault(name, []).append((parts, more))
            return name

        return make

    names = ("Reconciler", "ObjectRemoval", "HistoryRetention", "RunRemoval", "SpareKeeper", "SavepointRelease")
    names += ("SavepointSchedule", "SnapshotRemoval", "AlarmWatch", "Autoscaler")
    for name in names:
        monkeypatch.setattr(web_app, name, note(name))
    monkeypatch.setattr(web_app, "deliveries_of", note("deliveries"))
    monkeypatch.setattr(web_app, "_collectors_of", lambda _: ("collector",))
    parts = ("engine", "launcher", "store", "wakeup", "pulse", "sessions", "announcer")
    chosen = replace(
        settings,
        restore_timeout_ms=5,
        verify_timeout_ms=6,
        starts_at_once=7,
        own_url="https://here",
        keep_attempts=8,
    )
    context: Any = SimpleNamespace(settings=chosen, **{name: f"the {name}" for name in parts})
    assert web_app._threads_of(context)[-2:] == ("the announcer", "collector")
    sessions, pulse, launcher = "the sessions", "the pulse", "the launcher"
    of_reconciler = {name: f"the {name}" for name in ("engine", "launcher", "store", "wakeup", "pulse")}
    timeouts = Timeouts(restore_ms=5, verify_ms=6)
    own = {"url": "https://here", "timeouts": timeouts, "starts_at_once": 7}
    assert given == {
        "Reconciler": [((), {**of_reconciler, **own})],
        "ObjectRemoval": [((sessions, pulse), {})],
        "HistoryRetention": [((sessions, pulse, history_policy(chosen)), {})],
        "RunRemoval": [((sessions, launcher), {})],
        "SpareKeeper": [((chosen, sessions, launcher, pulse), {})],
        "SavepointRelease": [((sessions, pulse, "the store"), {})],
        "SavepointSchedule": [((context,), {})],
        "SnapshotRemoval": [((sessions, pulse), {})],
        "deliveries": [((context, HTTP_CHANNELS), {}), ((context, (Channel.MAIL,)), {})],
        "AlarmWatch": [((sessions, pulse), {})],
        "Autoscaler": [((context,), {})],
    }


def test_the_parts_of_a_control_plane_write_with_one_factory_and_read_with_another(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def note(name: str) -> Any:
        def make(*parts: Any, **more: Any) -> Any:
            given[name] = (parts, {key: value for key, value in more.items() if key != "note_look"})
            return f"the {name}"

        return make

    monkeypatch.setattr(web_app, "session_factory", lambda engine: f"writes to {engine}")
    monkeypatch.setattr(web_app, "reading_session_factory", lambda engine: f"reads from {engine}")
    monkeypatch.setattr(web_app, "open_engine", lambda url: f"engine of {url}")
    monkeypatch.setattr(web_app.OwnMetrics, "watch", lambda _, engine: given.update(watched=engine))
    names = ("ProgramLoading", "ChangeFeed", "Verifier", "Calls", "Announcer")
    for name in names:
        monkeypatch.setattr(web_app, name, note(name))
    monkeypatch.setattr(web_app, "Launcher", lambda *_, **__: SimpleNamespace(place="here"))
    chosen = replace(settings, database_url="postgresql://db", own_url="https://here")
    context = make_context(chosen)
    engine = "engine of postgresql://db"
    writes, reads = f"writes to {engine}", f"reads from {engine}"
    assert (context.engine, context.sessions, context.reads) == cast("Any", (engine, writes, reads))
    assert given == {
        "watched": engine,
        "ProgramLoading": ((chosen, context.launcher), {}),
        "ChangeFeed": ((reads, web_app.operations_service.answers), {}),
        "Verifier": ((writes, why_not_own), {}),
        "Calls": ((reads,), {}),
        "Announcer": ((writes,), {"place": "here", "url": "https://here", "store_url": settings.store_url}),
    }
    attributes = ("programs", "change_feed", "verifier", "calls", "announcer")
    assert [getattr(context, each) for each in attributes] == [f"the {name}" for name in names]

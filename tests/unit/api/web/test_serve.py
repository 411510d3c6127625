"""The web server: its socket sends small answers at once, and it reads nothing endless but bodies."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from stat import S_IMODE
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import uvicorn
from fastapi import FastAPI, Request
from sqlalchemy.exc import OperationalError

from keyscale.api.errors import SettingInvalidError
from keyscale.api.settings import Settings
from keyscale.api.web import serve as web_serve
from keyscale.api.web.connections import HEAD_BYTES_MAX, LimitedHttpProtocol
from keyscale.api.web.serve import alone_in, listen, main, prepare_home, serve, server_config
from tests.support.control_plane.web_server import web_server
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def delay_is_off(
    listener: socket.socket, server_side: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> int:
    """Accepts a connection as the web server does; returns the accepted socket's TCP_NODELAY."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: socket.socket = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(answer, sock=listener, ssl=server_side):
        host, port = listener.getsockname()[:2]
        _, writer = await asyncio.open_connection(host, port, ssl=client)
        try:
            return await asyncio.wait_for(accepted, 10)
        finally:
            writer.close()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_small_answer_does_not_wait_for_an_acknowledgement(tmp_path: Path, host: str, is_tls: bool) -> None:
    server_side = client = None
    if is_tls:
        authority = trustme.CA()
        server_side, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert(host).configure_cert(server_side)
        authority.configure_trust(client)
    with listen(Settings(home=tmp_path, host=host, port=0)) as listener:
        assert run_coroutine(delay_is_off(listener, server_side, client))


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalidError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(Settings(home=tmp_path, host="127.0.0.1", port=port))


ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\nHost: a\r\n", [b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(50_000)]),
    "a header": (b"GET / HTTP/1.1\r\nHost: a\r\nx: ", [b"y" * 1_000_000] * 50),
    "a path": (b"GET /", [b"y" * 1_000_000] * 50),
    "trailers": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        [b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(50_000)],
    ),
    "a chunk's extension": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        [b"y" * 1_000_000] * 50,
    ),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_what_is_around_a_body_and_does_not_end_is_cut_off_before_it_fills_the_memory(
    tmp_path: Path, part: str
) -> None:
    begin, endless = ENDLESS[part]
    with web_server(tmp_path, FastAPI()) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(begin)
        with pytest.raises(ConnectionError):
            client.sendall(b"".join(endless))


def test_a_body_of_many_small_chunks_is_read_whole_and_its_trailers_are_no_headers(tmp_path: Path) -> None:
    app = FastAPI()

    @app.post("/")
    async def describe(request: Request) -> dict[str, Any]:
        body = await request.body()
        return {"bytes": len(body), "names": sorted(name.decode() for name, _ in request.scope["headers"])}

    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1;of=many\r\nx\r\n" * 50_000 + b"0\r\nAuthorization: Bearer x\r\nX-Last: x\r\n\r\n"
    with web_server(tmp_path, app) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(head + chunks)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "bytes": 50_000,
        "names": ["connection", "host", "transfer-encoding"],
    }


def test_a_connection_is_kept_for_any_number_of_requests(tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/")
    async def answer() -> str:
        return "here"

    with web_server(tmp_path, app) as address, closing(HTTPConnection(*address, timeout=20)) as client:
        for _ in range(2 * HEAD_BYTES_MAX // 1000):
            client.request("GET", "/", headers={"X-Padding": "x" * 1000})
            if client.getresponse().read() != b'"here"':
                pytest.fail("the request was not answered")


class Host:
    """A host on which a control plane is started, with every effect noted in its order.

    Args:
        monkeypatch: Puts the host in the place of the real one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[Any] = []
        self.failure: Exception | None = None
        self.handlers: dict[int, Any] = {}
        names = ("raise_open_files", "prepare_home", "enclosures_here", "migrate", "ensure_admin_token", "run")
        for name in (*names, "listen", "alone_in", "open_engine", "EmbeddedPostgres", "EmbeddedPostgresKeeper"):
            monkeypatch.setattr(web_serve, name, getattr(self, name))
        monkeypatch.setattr(signal, "signal", self.handlers.__setitem__)

    def raise_open_files(self) -> None:
        self.noted.append("files")

    def prepare_home(self, settings: Settings) -> str:
        settings.home.mkdir()
        return "isolation"

    def enclosures_here(self, _: Settings, isolation: str) -> Any:
        assert isolation == "isolation"
        return SimpleNamespace(means=SimpleNamespace(statement="quotas"))

    @contextmanager
    def alone_in(self, home: Path) -> Iterator[None]:
        self.noted.append(("lock", home.name))
        yield
        self.noted.append("unlock")

    @contextmanager
    def listen(self, settings: Settings) -> Iterator[Any]:
        assert settings.port == 0
        yield SimpleNamespace(getsockname=lambda: ("127.0.0.1", 4711))
        self.noted.append("deaf")

    def EmbeddedPostgres(self, home: Path) -> Any:  # noqa: N802 - in place of a class
        begin, end = (lambda: self.noted.append("start")), (lambda: self.noted.append("stop"))
        return SimpleNamespace(start=begin, stop=end, url=f"embedded:{home.name}")

    def EmbeddedPostgresKeeper(self, _: Any) -> Any:  # noqa: N802 - in place of a class
        begin, end = (lambda: self.noted.append("keep")), (lambda: self.noted.append("leave"))
        return SimpleNamespace(start=begin, close=end)

    def open_engine(self, url: str) -> str:
        return url

    def migrate(self, engine: str) -> None:
        self.noted.append(("migrate", engine))

    def ensure_admin_token(self, engine: str, file: Path) -> str:
        self.noted.append(("token", engine, file.name))
        return "the-token"

    def run(self, settings: Settings, engine: str, listener: Any, isolation: str, enclosures: Any) -> None:
        assert (isolation, enclosures.means.statement) == ("isolation", "quotas")
        assert listener.getsockname()[1] == settings.port
        self.noted.append(("run", settings.control_url, engine))
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize("database_url", [None, "postgresql://elsewhere/keyscale"])
def test_the_embedded_database_is_there_while_the_control_plane_serves_and_ends_completely(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    database_url: str | None,
    is_failing: bool,
) -> None:
    host = Host(monkeypatch)
    home = tmp_path / "home"
    host.failure = ZeroDivisionError() if is_failing else None
    settings = Settings(home=home, port=0, database_url=database_url)
    if is_failing:
        with pytest.raises(ZeroDivisionError):
            serve(settings)
    else:
        assert serve(settings) == 0
    url, address = database_url or "embedded:postgres", "http://127.0.0.1:4711"
    begun, ended = (["start", "keep"], ["leave", "stop"]) if database_url is None else ([], [])
    work = [("migrate", url), ("token", url, "token"), ("run", address, url)]
    left = [] if is_failing else ["deaf", "unlock"]
    assert host.noted == ["files", ("lock", "home"), *begun, *work, *ended, *left]
    assert host.handlers == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}
    assert (home / "address").read_text() == f"{address}\n"
    assert S_IMODE((home / "address").stat().st_mode) == 0o600
    assert capsys.readouterr().out == f"Keyscale is at {address}\nToken: the-token (in {home}/token)\n"


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (SettingInvalidError("KEYSCALE_PORT must be a number"), "keyscale: SETTING_INVALID: KEYSCALE_PORT must be a n"),
        (OperationalError("SELECT 1", None, Exception("refused")), "keyscale: DATABASE_UNAVAILABLE: refused\n"),
    ],
)
def test_a_control_plane_that_cannot_start_says_why_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, told: str
) -> None:
    handlers: dict[int, Any] = {}

    def fail(_: Settings) -> int:
        with pytest.raises(SystemExit) as ended:
            handlers[signal.SIGTERM](signal.SIGTERM, None)
        assert ended.value.code == 0
        raise failure

    limited: list[bool] = []
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(web_serve, "configure_logging", lambda *_: None)
    monkeypatch.setattr(web_serve, "limit_lines_of_refusals", lambda: limited.append(True))
    monkeypatch.setattr(web_serve, "serve", fail)
    assert main() == 1
    assert capsys.readouterr().err.startswith(told)
    assert (set(handlers), limited) == ({signal.SIGINT, signal.SIGTERM}, [True])


def test_only_one_control_plane_runs_on_a_home(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path),
        pytest.raises(SettingInvalidError, match=f"KEYSCALE_HOME: a control plane already runs on {tmp_path}"),
        alone_in(tmp_path),
    ):
        pytest.fail("a second one runs")
    with alone_in(tmp_path):
        """The first one has ended."""


@pytest.mark.parametrize("has_users", [False, True])
@pytest.mark.parametrize("is_own_store", [False, True])
def test_users_of_jobs_enter_the_home_and_read_nothing_else_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_own_store: bool,
    has_users: bool,
) -> None:
    let_in: list[Path] = []
    isolation: Any = SimpleNamespace(count=9 if has_users else 0, why_not=None if has_users else "not root")
    monkeypatch.setattr(web_serve, "isolation_here", lambda _: isolation)
    monkeypatch.setattr(web_serve, "let_enter", let_in.append)
    home = tmp_path / "above" / "home"
    store = home / "store" if is_own_store else tmp_path / "store"
    settings = Settings(home=home, store_url=store.as_uri())
    assert prepare_home(settings) is isolation
    mode = 0o711 if has_users else 0o700
    made = [home, home / "runs", *([store] if is_own_store else [])]
    assert {path: S_IMODE(path.stat().st_mode) for path in made} == dict.fromkeys(made, mode)
    assert store.exists() is is_own_store
    assert let_in == ([home] if has_users else [])
    assert ["not root" in line for line in caplog.messages] == ([] if has_users else [True])


@pytest.mark.parametrize(("master", "secret"), [("local", ""), ("spark://a:7077", ""), ("spark://a:7077", "s")])
def test_a_cluster_without_a_secret_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, master: str, secret: str
) -> None:
    monkeypatch.setattr(web_serve, "isolation_here", lambda _: SimpleNamespace(count=0, why_not=None))
    prepare_home(Settings(home=tmp_path / "home", store_url="s3://b/p", spark_master=master, spark_secret=secret))
    is_told = (master, secret) == ("spark://a:7077", "")
    assert ["KEYSCALE_SPARK_SECRET" in line for line in caplog.messages] == [True] * is_told


def test_the_web_server_has_the_limits_the_certificate_and_the_proxies_of_the_settings(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    plain = server_config(FastAPI(), settings)
    assert (plain.http, plain.timeout_keep_alive, plain.timeout_graceful_shutdown) == (LimitedHttpProtocol, 30, 5)
    assert (plain.ssl_certfile, plain.ssl_keyfile, plain.proxy_headers, plain.server_header) == (
        None,
        None,
        False,
        False,
    )
    changed = replace(
        settings, tls_certificate=tmp_path / "cert", tls_key=tmp_path / "key", trusted_proxies=("10.0.0.1", "10.0.0.2")
    )
    behind = server_config(FastAPI(), changed)
    assert (behind.ssl_certfile, behind.ssl_keyfile) == (tmp_path / "cert", tmp_path / "key")
    assert (behind.proxy_headers, behind.forwarded_allow_ips) == (True, ["10.0.0.1", "10.0.0.2"])


def test_streams_and_waiting_drivers_end_before_the_web_server_waits_for_open_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Any] = []

    async def shutdown(_: uvicorn.Server, sockets: Any) -> None:
        noted.append(sockets)

    monkeypatch.setattr(uvicorn.Server, "shutdown", shutdown)
    app = FastAPI()
    app.state.context = SimpleNamespace(
        change_feed=SimpleNamespace(end_all=lambda: noted.append("streams")),
        calls=SimpleNamespace(end_all=lambda: noted.append("drivers")),
    )
    run_coroutine(web_serve._Server(server_config(app, Settings(home=tmp_path)), app).shutdown([]))
    assert noted == ["streams", "drivers", []]


def test_the_application_of_the_control_plane_is_served_on_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Any] = []
    parts: Any = ("engine", "listener", "isolation", "enclosures")
    engine, listener, isolation, enclosures = parts
    settings = Settings(home=tmp_path)
    memory = {name: lambda *_, name=name: noted.append(name) for name in ("collect", "freeze", "set_threshold")}
    monkeypatch.setattr(web_serve, "gc", SimpleNamespace(**memory))
    monkeypatch.setattr(web_serve, "make_context", lambda *given: ("context", *given))
    monkeypatch.setattr(web_serve, "create_app", lambda context: ("app", *context))
    monkeypatch.setattr(web_serve, "server_config", lambda app, of: ("config", app, of))

    def server(config: Any, app: Any) -> Any:
        noted.append((config, app))
        return SimpleNamespace(run=lambda *, sockets: noted.append(sockets))

    monkeypatch.setattr(web_serve, "_Server", server)
    web_serve.run(settings, engine, listener, isolation, enclosures)
    app = ("app", "context", settings, "engine", "isolation", "enclosures")
    assert noted == ["collect", "freeze", "set_threshold", (("config", app, settings), app), ["listener"]]

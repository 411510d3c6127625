"""The demo's broker starts on other ports when another process takes its ports; its store comes back at its address."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import click
import pytest

from keyscale.deploy.demo.outage import outage_play, servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """#!/usr/bin/env bash
printf '%s %s\\n' "$1" "${KEYSCALE_STACK_KAFKA_PORT:-none}" >>"$KEYSCALE_STACK_DIR/commands"
[[ $1 != start || $(grep -c start "$KEYSCALE_STACK_DIR/commands") -gt FAILURES ]]
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    script = tmp_path / "kafka"
    script.write_text(SCRIPT.replace("FAILURES", str(request.param)))
    script.chmod(0o700)
    monkeypatch.setattr(servers, "_KAFKA", script)
    return tmp_path


@pytest.mark.parametrize("directory", [0, 1, 2], indirect=True)
def test_a_broker_starts_on_the_ports_that_are_free(directory: Path) -> None:
    with servers.running_broker(directory, "orders", 2) as address:
        pass
    commands = [line.split() for line in (directory / "commands").read_text().splitlines()]
    ports = [port for name, port in commands if name == "start"]
    assert [name for name, _ in commands] == ["install", *["start"] * len(ports), "create-topic", "stop"]
    assert address == f"127.0.0.1:{ports[-1]}"
    assert commands[-1][1] == ports[-1]


@pytest.mark.parametrize("directory", [3], indirect=True)
def test_a_broker_that_never_starts_is_an_error(directory: Path) -> None:
    with pytest.raises(click.ClickException, match="did not start"), servers.running_broker(directory, "orders", 2):
        pass
    assert "create-topic" not in (directory / "commands").read_text()


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The commands to the broker's script, with the variables that they get."""
    kept: list[tuple[Any, ...]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> None:
        kept.append((*command[1:], env.get("KEYSCALE_STACK_KAFKA_PORT"), env["KEYSCALE_STACK_DIR"]))
        if command[1] == "create-topic" and command[2] == "refused":
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(servers.subprocess, "run", run)
    monkeypatch.setattr(servers, "free_port", lambda: 4711)
    return kept


def test_a_broker_ends_with_its_block_however_that_ends(tmp_path: Path, controlled: list[tuple[Any, ...]]) -> None:
    here = str(tmp_path)
    with servers.running_broker(tmp_path, "orders", 4) as address:
        assert address == "127.0.0.1:4711"
        assert controlled == [
            ("install", None, here),
            ("start", "4711", here),
            ("create-topic", "orders", "4", "4711", here),
        ]
    assert controlled[3:] == [("stop", "4711", here)]
    controlled.clear()
    with pytest.raises(subprocess.CalledProcessError), servers.running_broker(tmp_path, "refused", 4):
        pass
    assert controlled[-1] == ("stop", "4711", here)


class Moto:
    """A server of moto's, played; what becomes of the servers is kept in order."""

    done: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *, ip_address: str, port: int, verbose: bool) -> None:
        assert (ip_address, verbose) == ("127.0.0.1", False)
        self.port = port or 4711 + len(self.done)

    def start(self) -> None:
        self.done.append(("start", self.port))

    def stop(self) -> None:
        self.done.append(("stop", self.port))

    def get_host_and_port(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    def client(kind: str, **given: str) -> SimpleNamespace:
        done.append((kind, given))
        return SimpleNamespace(create_bucket=create_bucket)

    def create_bucket(*, Bucket: str) -> None:  # noqa: N803 - boto3's name
        done.append(("bucket", Bucket))
        if "refuses" in done:
            raise ConnectionError("refused")

    done = Moto.done = list[Any]()
    monkeypatch.setattr(servers, "ThreadedMotoServer", Moto)
    monkeypatch.setattr(servers.boto3, "client", client)
    return done


def test_a_store_that_went_away_comes_back_at_its_address(store: list[tuple[Any, ...]]) -> None:
    with servers.running_s3_server() as s3:
        url = "http://127.0.0.1:4711"
        login = {"region_name": "us-east-1", "aws_access_key_id": "demo", "aws_secret_access_key": "demo"}
        assert store == [("start", 4711), ("s3", {"endpoint_url": url, **login}), ("bucket", "demo")]
        assert s3.variables == {
            "KEYSCALE_STORE_URL": "s3://demo/jobs",
            "KEYSCALE_S3_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
        }
        s3.go_away()
        s3.come_back()
        assert s3.url == url
    assert store[3:] == [("stop", 4711), ("start", 4711), ("stop", 4711)]


def test_a_store_without_its_bucket_is_ended(store: list[Any]) -> None:
    store.append("refuses")
    with pytest.raises(ConnectionError), servers.running_s3_server():
        pass
    (_, port), *_, last = store[1:]
    assert last == ("stop", port)


def test_the_servers_of_a_play_begin_in_an_empty_directory_without_processes_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "servers"
    (directory / "old").mkdir(parents=True)
    done: list[Any] = []

    @contextmanager
    def running(*given: Any, **options: Any) -> Iterator[str]:
        done.append((*given, options, sorted(each.name for each in directory.iterdir())))
        yield f"server {len(done)}"
        done.append("ended")

    monkeypatch.setattr(servers, "running_s3_server", running)
    monkeypatch.setattr(servers, "running_broker", running)
    monkeypatch.setattr(outage_play, "processes_of", lambda home: [home, (home / "old").exists()])
    monkeypatch.setattr(outage_play, "end_processes", lambda left: done.append(("end", *left)))
    scenario = outage_play.OutageScenario(rate=5.0)
    with outage_play.outage_play(scenario, directory) as play:
        assert (play.scenario, play.s3, play.servers) == (scenario, "server 2", "server 3")
    assert done == [
        ("end", directory, True),
        ({}, []),
        (directory, "payments", {"partitions": 4}, []),
        "ended",
        "ended",
    ]
